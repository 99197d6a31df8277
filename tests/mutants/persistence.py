"""Checkpoints, files of tensors and summaries. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "checkpoint_of_another_model": {
        "breaks": "A checkpoint with variables of other shapes is accepted.",
        "rule": "checkpoint",
        "tests": ['checkpoint "a checkpoint of another model*"'],
        "file": "src/persistence/checkpoint.cpp",
        "changes": [
            ("    else if (stored->shape != variable.shape || stored->dtype != variable.dtype)",
             "    else if (stored->dtype != variable.dtype)"),
        ],
    },
    "checkpoint_unverified": {
        "breaks": "The newest checkpoint is used although its contents are damaged.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "the newest complete checkpoint*"'],
        "file": "src/persistence/checkpoint.cpp",
        "changes": [
            ("      checkpoint.verify();\n",
             ""),
        ],
    },
    "checkpoint_any_name": {
        "breaks": "A name in a checkpoint may lead outside its folder.",
        "rule": "checkpoint",
        "tests": ['checkpoint "a name in checkpoint.json*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("  if (text.empty() || text[0] == '.' || text.find('/') != std::string::npos || text.find('\\0') != std::string::npos)",
             "  if (text.empty())"),
        ],
    },
    "checkpoint_any_version": {
        "breaks": "A checkpoint of another version of the format is read.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "the newest complete checkpoint*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    if (const std::uint64_t version = whole(json.at(\"version\")); version != kVersion)\n",
             "    if (const std::uint64_t version = whole(json.at(\"version\")); version > 1000)\n"),
        ],
    },
    "checkpoint_best_removed": {
        "breaks": "The checkpoint of the lowest loss is removed.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "the last checkpoint is kept*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    if (all[i].second != best && !is_same(all[i].second, begun_with)) remove_checkpoint(all[i].second);",
             "    if (!is_same(all[i].second, begun_with)) remove_checkpoint(all[i].second);"),
        ],
    },
    "checkpoint_first_removed": {
        "breaks": "The checkpoint with which the run began is removed.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "the last checkpoint is kept*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    if (all[i].second != best && !is_same(all[i].second, begun_with)) remove_checkpoint(all[i].second);",
             "    if (all[i].second != best) remove_checkpoint(all[i].second);"),
        ],
    },
    "checkpoint_last_removed": {
        "breaks": "The checkpoint that was just written is removed because of an older run's later ones.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "the last checkpoint is kept*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("  all.erase(all.begin(), last);\n",
             "  static_cast<void>(last);\n"),
        ],
    },
    "checkpoint_folder_shared": {
        "breaks": "Two processes keep checkpoints in one folder.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "only one process keeps*"'],
        "file": "src/persistence/folder_lock.cpp",
        "changes": [
            ("    case FolderLock::kInUse:\n      throw",
             "    case FolderLock::kInUse:\n      if (!path.empty()) break;\n      throw"),
        ],
    },
    "checkpoint_leftovers_stay": {
        "breaks": "What a killed process has left half written stays for ever.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "only one process keeps*"'],
        "file": "src/persistence/folder_lock.cpp",
        "changes": [
            ("    if (lock_folder(hidden, entry->path().string()) == FolderLock::kHeld) fs::remove_all(entry->path(), ignored);",
             "    if (lock_folder(hidden, entry->path().string()) == FolderLock::kInUse) fs::remove_all(entry->path(), ignored);"),
        ],
    },
    "checkpoint_named_too_early": {
        "breaks": "A checkpoint has its name before it is complete.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "a process killed at any moment*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ('''    for (const auto& [group, tensors] : arrays.groups()) write_group(made, group, tensors, max_file_bytes, facts.files);
    write_tables(made, arrays.tables(), facts);
    write_text(made + "/" + kFactsFile, to_json(facts));
    sync_folder(made);
    put_in_place(made, dir + "/" + name);
''',
             '''    put_in_place(made, dir + "/" + name);
    for (const auto& [group, tensors] : arrays.groups())
      write_group(dir + "/" + name, group, tensors, max_file_bytes, facts.files);
    write_text(dir + "/" + name + "/" + kFactsFile, to_json(facts));
'''),
        ],
    },
    "checkpoint_one_file": {
        "breaks": "A file may be larger than asked for.",
        "rule": "checkpoint",
        "tests": ['checkpoint "large models*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    if (files.empty() || bytes + tensor.bytes() > max_file_bytes) files.emplace_back(), bytes = 0;",
             "    if (files.empty()) files.emplace_back(), bytes = 0;"),
        ],
    },
    "checkpoint_rest_stays": {
        "breaks": "A checkpoint that cannot be written leaves its files.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "a checkpoint that cannot be written*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ('''  } catch (...) {
    fs::remove_all(made, error);
    throw;''',
             '''  } catch (...) {
    throw;'''),
        ],
    },
    "checkpoint_unlocked": {
        "breaks": "A folder that is being written is taken for one that a dead process has left.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "a process that begins to keep*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    if (lock_folder(file, path) != FolderLock::kInUse && ::stat(path.c_str(), &status) == 0) return path;",
             "    if (::stat(path.c_str(), &status) == 0) return path;"),
        ],
    },
    "checkpoint_folder_unsynced": {
        "breaks": "The new folder is not synced before it gets its name.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "after a save a power failure*"'],
        "survives": "write_text() has synced the folder with its last file, checkpoint.json, a moment before",
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    sync_folder(made);\n",
             ""),
        ],
    },
    "checkpoint_name_unsynced": {
        "breaks": "The folder of the checkpoints is not synced: a power failure takes the new checkpoint's name.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "after a save a power failure*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    sync_folder(fs::path(folder).parent_path().string());\n",
             ""),
        ],
    },
    "checkpoint_dir_unsynced": {
        "breaks": "A power failure takes the name of a new folder of checkpoints.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "after a save a power failure*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("  if (fs::create_directories(dir, error)) sync_folder(fs::absolute(dir).parent_path().string());",
             "  fs::create_directories(dir, error);"),
        ],
    },
    "checkpoint_unsynced_stays": {
        "breaks": "A checkpoint whose name cannot be synced stays in place of the one before.",
        "rule": "checkpoint",
        "tests": ['checkpoint_folder "a checkpoint that cannot be written*"'],
        "file": "src/persistence/checkpoint_folder.cpp",
        "changes": [
            ("    ::renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, made.c_str(), is_exchanged ? RENAME_EXCHANGE : 0);\n",
             "    static_cast<void>(is_exchanged);\n"),
        ],
    },
    "summary_half_record": {
        "breaks": "A record that the disk took only in part stays, and no reader gets past it.",
        "rule": "summaries",
        "tests": ['event_file "event files: on a full disk*"'],
        "file": "src/persistence/event_file.cpp",
        "changes": [
            ("  if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) close();\n",
             ""),
        ],
    },
    "summary_of_lost_file": {
        "breaks": "Records go to a file that has been removed.",
        "rule": "summaries",
        "tests": ['event_file "event files: a folder that vanishes*"'],
        "file": "src/persistence/event_file.cpp",
        "changes": [
            ("  if (descriptor_ >= 0 && !is_there()) close();\n",
             ""),
        ],
    },
    "file_follows_link": {
        "breaks": "A file is written through a link that another user has put under its temporary name.",
        "rule": "files",
        "tests": ['tensor_files "a file is written beside links*"'],
        "file": "src/persistence/tensor_files.cpp",
        "changes": [
            ("O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);",
             "O_WRONLY | O_CREAT | O_CLOEXEC, 0666);"),
        ],
    },
    "folder_file_reused_in_use": {
        "breaks": "A file is written again while others have it open or mapped.",
        "rule": "publication",
        "tests": ['folder_publisher "*a process that has a file mapped*"'],
        "file": "src/publish/folder_publisher.cpp",
        "changes": [
            ("        !try_file_lease(descriptor))\n      return false;",
             "        (static_cast<void>(try_file_lease(descriptor)), false))\n      return false;"),
            ("    return end_file_lease(descriptor) && is_void;", "    static_cast<void>(end_file_lease(descriptor));\n    return is_void;"),
        ],
    },
    "folder_file_reused_with_links": {
        "breaks": "A file to which a user has made a link is written again.",
        "rule": "publication",
        "tests": ['folder_publisher "*a process that has a file mapped*"'],
        "file": "src/publish/folder_publisher.cpp",
        "changes": [(" || found.st_nlink != 1 ||", " ||")],
    },
    "folder_file_valid_too_long": {
        "breaks": "A file that is written again has a valid header meanwhile.",
        "rule": "publication",
        "tests": ['folder_publisher "*a file that is opened while it is written again*"'],
        "file": "src/publish/folder_publisher.cpp",
        "changes": [("::pwrite(descriptor, &none, sizeof none, 0) == sizeof none;", "none == 0;")],
    },
    "folder_latest_first": {
        "breaks": "`latest` leads to a generation before that is complete.",
        "rule": "publication",
        "tests": ['folder_publisher "*wherever a publisher is killed*"'],
        "file": "src/publish/folder_publisher.cpp",
        "changes": [("      fs::rename(made, path);\n      point_latest_at(generation);",
                     "      point_latest_at(generation);\n      fs::rename(made, path);")],
    },
    "folder_generation_in_place": {
        "breaks": "The folder of a generation has its name before it is complete.",
        "rule": "publication",
        "tests": ['folder_publisher "*wherever a publisher is killed*"'],
        "file": "src/publish/folder_publisher.cpp",
        "changes": [("made = hidden(folder_name(generation));", "made = path;"),
                    ("      fs::rename(made, path);\n", "")],
    },
    "folder_latest_stays_behind": {
        "breaks": "A publisher that takes over leaves `latest` at an older generation.",
        "rule": "publication",
        "tests": ['folder_publisher "*wherever a publisher is killed*"'],
        "file": "src/publish/folder_publisher.cpp",
        "changes": [("    if (!published.empty()) point_latest_at(published.back().number);\n", "")],
    },
    "folder_in_child": {
        "breaks": "A forked child publishes to its parent's folder.",
        "rule": "locks.L2",
        "tests": ['folder_publisher "*there is one for a folder*"'],
        "file": "src/publish/folder_publisher.cpp",
        "changes": [("    if (lock.descriptor() < 0)\n", "    if (lock.descriptor() < -1)\n")],
    },
    "file_unaligned": {
        "breaks": "A tensor of wide elements may follow one of narrow elements, unaligned.",
        "rule": "files",
        "tests": ['tensor_files "a file names each dtype*"'],
        "file": "src/persistence/tensor_files.cpp",
        "changes": [
            ("{ return alignment(a) > alignment(b); });",
             "{ return alignment(a) < alignment(b); });"),
        ],
    },
    "file_unsynced": {
        "breaks": "A file gets its name before its contents are on the disk.",
        "rule": "files",
        "tests": ['checkpoint_folder "after a save a power failure*"'],
        "file": "src/persistence/tensor_files.cpp",
        "changes": [
            ("    if (::fsync(descriptor_) != 0 || ::rename(partial_.c_str(), path_.c_str()) != 0) fail();",
             "    if (::rename(partial_.c_str(), path_.c_str()) != 0) fail();"),
        ],
    },
    "file_name_unsynced": {
        "breaks": "A power failure takes the name of a file that was written.",
        "rule": "files",
        "tests": ['checkpoint_folder "after a save a power failure*"'],
        "file": "src/persistence/tensor_files.cpp",
        "changes": [
            ("    sync_folder(folder_of(path_));\n",
             ""),
        ],
    },
    "tensors_overlap": {
        "breaks": "A file whose tensors overlap is accepted.",
        "rule": "files",
        "tests": ['tensor_files "an invalid file*"'],
        "file": "src/persistence/tensor_reader.cpp",
        "changes": [
            ("    if (at != end)\n",
             "    if (at > end)\n"),
        ],
    },
    "tensor_of_another_size": {
        "breaks": "A file whose tensor has another size than its shape says is accepted.",
        "rule": "files",
        "tests": ['tensor_files "an invalid file*"'],
        "file": "src/persistence/tensor_reader.cpp",
        "changes": [
            (" || bits % 8 != 0 || tensor.bytes != bits / 8)",
             " || bits % 8 != 0)"),
        ],
    },
}
