"""Snapshots, groups of pushes, and pulls of several variables as one state. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "snapshot_counts_later_steps": {
        "breaks": "The step of a snapshot is read after its point has been opened.",
        "rule": "snapshot.C13",
        "tests": ['interleavings "moments: the step of a snapshot*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("  made.is_forced = point.forced.load_acquire() == made.epoch;",
             "  made.step = job_.steps_done();\n  made.is_forced = point.forced.load_acquire() == made.epoch;"),
        ],
    },
    "snapshot_copies_now": {
        "breaks": "In-place variables are copied when they are read, not during the pause.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: small in-place variables*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("    if (part.copied.empty())\n",
             "    if (!part.copied.empty() || part.copied.empty())\n"),
        ],
    },
    "snapshot_child_gives_back": {
        "breaks": "A forked child gives its parent's snapshot back.",
        "rule": "locks.L2",
        "tests": ['forked_handles "fork: every call of a parent\'s object*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("  if (!taker.job.is_inherited()) unlock();",
             "  unlock();"),
        ],
    },
    "snapshot_failed_keeps_byte": {
        "breaks": "A snapshot that fails keeps the snapshot's byte.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: without space*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ('''  } catch (...) {
    unlock();
    throw;''',
             '''  } catch (...) {
    throw;'''),
        ],
    },
    "snapshot_forced_accepted": {
        "breaks": "A snapshot is taken at a point that a waiter has opened before the pushes were over.",
        "rule": "snapshot.C11",
        "tests": ['interleavings "moments: a snapshot whose point a waiter*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("        is_good = (small.empty() || maker.open(point.epoch)) && !point.is_forced;",
             "        is_good = small.empty() || maker.open(point.epoch);"),
        ],
    },
    "snapshot_guest_leaves_job": {
        "breaks": "A job that ends during a snapshot is not removed by the process that took it.",
        "rule": "names.N9",
        "tests": ['snapshot "snapshot: if its owner is the last*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("  if (taker.is_guest) shm::remove_if_ended(taker.job);  // names.N9\n",
             ""),
        ],
    },
    "snapshot_half_copied_accepted": {
        "breaks": "In-place variables that were copied after a waiter had ended the pause count as consistent.",
        "rule": "snapshot.C11",
        "tests": ['snapshot "snapshot: a maker that was stopped*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("  return point.forced.load_acquire() != epoch;  // (snapshot.C11)",
             "  return true;"),
        ],
    },
    "snapshot_hogwild_exact": {
        "breaks": "In-place variables of a Hogwild! job are called point-in-time.",
        "rule": "inplace.P1",
        "tests": ['snapshot "snapshot: in-place variables of a Hogwild*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("    part->is_point_in_time = bytes_of(part) <= bytes && taker.job.config().adds != Adds::kRacy;",
             "    part->is_point_in_time = bytes_of(part) <= bytes;"),
        ],
    },
    "snapshot_keeps_byte": {
        "breaks": "A snapshot that is given back keeps its byte.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: a job has one*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("  taker.job.locks().release(shm::kSnapshotByte);\n",
             ""),
        ],
    },
    "snapshot_large_exact": {
        "breaks": "Large in-place variables, which are copied later, are called point-in-time.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: small in-place variables*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("    part->is_point_in_time = bytes_of(part) <= bytes && taker.job.config().adds != Adds::kRacy;",
             "    part->is_point_in_time = taker.job.config().adds != Adds::kRacy;"),
        ],
    },
    "snapshot_lists_incomplete": {
        "breaks": "A snapshot lists partitioned variables of which parts are missing.",
        "rule": "directory.D6",
        "tests": ['snapshot "snapshot: a variable is in it once*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("  std::erase_if(variables, [](const auto& one) { return one.second.size() != one.second.front().record->parts; });\n",
             ""),
        ],
    },
    "snapshot_lists_uninitialised": {
        "breaks": "A snapshot lists variables that have no values yet.",
        "rule": "directory.D6",
        "tests": ['snapshot "snapshot: a variable is in it once*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("    if (!shm::is_variable(record) || record.init.load_acquire() != shm::kInitialised) continue;  // (directory.D6)",
             "    if (!shm::is_variable(record)) continue;  // (directory.D6)"),
        ],
    },
    "snapshot_of_now": {
        "breaks": "A chunk that has changed since the snapshot point is read as it is now.",
        "rule": "snapshot.C9",
        "tests": ['snapshot "snapshot: it shows the state*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("        chunks.pull_image(chunk, point.epoch, here, array);",
             "        chunks.pull_image(chunk, point.epoch + 1, here, array);"),
        ],
    },
    "snapshot_waits_for_itself": {
        "breaks": "A process that has the job's snapshot waits for itself before it is refused another one.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: a job has one*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("    if (*taker.is_taking || shm::now_ns() >= until) {",
             "    if (shm::now_ns() >= until) {"),
        ],
    },
    "snapshot_without_patience": {
        "breaks": "The caller's patience is ignored.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: a push that does not end*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("      if (options.patience_seconds > 0) return shm::to_ns(options.patience_seconds) + copying_ns;\n",
             ""),
        ],
    },
    "snapshot_without_pause": {
        "breaks": "In-place variables are copied while pushes continue.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: each of many in a row contains*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("        point = maker.drain(patience(), !small.empty(), taker.rank);",
             "        point = maker.drain(patience(), false, taker.rank);"),
        ],
    },
    "snapshot_without_reserves": {
        "breaks": "A snapshot makes no buffers for the pre-images of versioned chunks.",
        "rule": "snapshot.C6",
        "tests": ['snapshot "snapshot: it shows the state*"'],
        "file": "src/snapshot/snapshot.cpp",
        "changes": [
            ("    if (!is_versioned(record) || record.reserve.load_acquire() != 0) continue;  // (snapshot.C6)",
             "    if (!is_versioned(record) || record.reserve.load_acquire() == 0) continue;  // (snapshot.C6)"),
        ],
    },
    "snapshot_gives_up_without_stuck": {
        "breaks": "A snapshot that gives pushes up does not report those that were stuck before.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: a push that does not end*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ('''      for (std::uint32_t one = 0; one < job_.ranks(); ++one)
        if (pushers.stuck.contains(one)) made.partial_ranks.insert(one);
''',
             ""),
        ],
    },
    "snapshot_stuck_ends_drain": {
        "breaks": "A waiter ends the drain although a stuck push is under way, which is then not reported.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: a waiter does not end a drain*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("    if (pushers.old.empty() && pushers.stuck.empty()) return move_on(point, word, behind(word));",
             "    if (pushers.old.empty()) return move_on(point, word, behind(word));"),
        ],
    },
    "snapshot_waits_for_the_dead": {
        "breaks": "A snapshot waits for the push of a dead rank, and reports it as under way.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: a push that does not end*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("    if (look_at_locks && !job.is_alive(rank)) continue;\n",
             ""),
        ],
    },
    "group_child_ends": {
        "breaks": "The destructor of a PushGroup acts in a forked child.",
        "rule": "locks.L2",
        "tests": ['forked_handles "fork: every call of a parent\'s object*"'],
        "file": "src/worker/pushing.cpp",
        "changes": [
            ("    if (core.job.is_inherited()) scope.abandon();\n",
             ""),
        ],
    },
    "group_without_scope": {
        "breaks": "The pushes of a group are announced one by one.",
        "rule": "state.K1",
        "tests": ['snapshot "snapshot: a group of pushes*"'],
        "file": "src/worker/pushing.cpp",
        "changes": [
            ("  return PushGroup(std::make_unique<PushGroup::Impl>(impl));",
             "  static_cast<void>(impl);\n  return PushGroup(nullptr);"),
        ],
    },
    "snapshot_within_group": {
        "breaks": "A snapshot within a group of pushes contains a part of the group.",
        "rule": "state.K1",
        "tests": ['snapshot "snapshot: a group of pushes*"'],
        "file": "src/worker/pushing.cpp",
        "changes": [
            ("  if (impl.open_pushes != 0)\n    throw Error(\"a snapshot within",
             "  if (impl.open_pushes > 1000)\n    throw Error(\"a snapshot within"),
        ],
    },
    "pull_all_any_version": {
        "breaks": "A pull of several variables does not check that no version has changed.",
        "rule": "state.R3",
        "tests": ['pull_all "a pull of several variables is of one moment*"'],
        "file": "src/worker/pulling.cpp",
        "changes": [
            ("    if (!step || !state_of(handle).is_as_pulled()) return std::nullopt;  // (state.R3)",
             "    if (!step || state_of(handle).pieces == 0) return std::nullopt;  // (state.R3)"),
        ],
    },
    "pull_all_never_looks": {
        "breaks": "A pull of several variables never looks at locks, so that a dead worker's mark makes each a snapshot.",
        "rule": "state.R2",
        "tests": ['pull_all "a pull waits for a live worker*"'],
        "file": "src/worker/pulling.cpp",
        "changes": [
            ("    step = mode->steady_step(looks == kLooks);",
             "    step = mode->steady_step(false);"),
        ],
    },
    "pull_all_partial": {
        "breaks": "A pull of several variables accepts a part of a stopped worker's push.",
        "rule": "state.K1",
        "tests": ['pull_all "a pull waits for a live worker*"'],
        "file": "src/worker/pulling.cpp",
        "changes": [
            ("  if (!state.partial_ranks().empty())\n",
             "  if (state.partial_ranks().size() > 1000)\n"),
        ],
    },
    "pull_all_unsized": {
        "breaks": "A pull of several variables writes beyond a span that is too short.",
        "rule": "state.R1",
        "tests": ['pull_all "output spans*"'],
        "file": "src/worker/pulling.cpp",
        "changes": [
            ('    variables[i].state_->require_size(outs[i].size(), "pull");\n',
             ""),
        ],
    },
    "pull_all_within_recording": {
        "breaks": "A recorded worker may pull several variables as one state, which no recording contains.",
        "rule": "replay.E1",
        "tests": ['record "record: a job without a recordable*"'],
        "file": "src/worker/pulling.cpp",
        "changes": [
            ('  impl.refuse_recorded("pull_all");\n',
             ""),
        ],
    },
    "pull_changed_in_place": {
        "breaks": "A pull of what has changed accepts in-place variables, which have no versions.",
        "rule": "inplace.P3",
        "tests": ['pull_all "in place*"'],
        "file": "src/worker/pulling.cpp",
        "changes": [
            ('  state.require_versions("pull_if_changed");\n',
             ""),
        ],
    },
}
