"""What others see of a job, and what they change: views, saves, control. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "view_chunk_torn": {
        "breaks": "A chunk that stays torn is shown as if it were intact.",
        "rule": "invariant.I7",
        "tests": ['job_view "job view: a chunk whose stamp*"'],
        "file": "src/inspection/checked_records.cpp",
        "changes": [
            ("  if (result != PullResult::kWhole)\n    throw",
             "  if (result == PullResult::kNoBuffer)\n    throw"),
        ],
    },
    "view_incomplete": {
        "breaks": "A view lists partitioned variables of which parts are not declared yet.",
        "rule": "directory.D1",
        "tests": ['interleavings "moments: a variable is listed once*"'],
        "file": "src/inspection/checked_records.cpp",
        "changes": [
            ("  std::erase_if(groups, [](const Group& group) { return group.size() != group.front()->parts; });\n",
             ""),
        ],
    },
    "view_uninitialised": {
        "breaks": "A view shows values that do not exist yet.",
        "rule": "directory.D6",
        "tests": ['job_view "job view: an uninitialised variable*"'],
        "file": "src/inspection/checked_records.cpp",
        "changes": [
            ("    if (!is_initialised(*group.front()))\n",
             "    if (group.empty())\n"),
        ],
    },
    "view_hashed_rows": {
        "breaks": "The rows of a table that is partitioned by hash are shown in the order in which they lie.",
        "rule": "rows",
        "tests": ['rows "rows: parts by range*"'],
        "file": "src/inspection/checked_records.cpp",
        "changes": [
            ("  if (!is_hashed(first)) return all;\n",
             "  if (!all.empty()) return all;\n"),
        ],
    },
    "save_examples_of_later": {
        "breaks": "A checkpoint counts examples whose pushes it does not contain.",
        "rule": "snapshot.C8",
        "tests": ['interleavings "moments: a checkpoint counts no example*"'],
        "file": "src/inspection/checkpoint_save.cpp",
        "changes": [
            ("  if (is_sync) workers = workers_behind(",
             "  workers = job.workers();\n  if (is_sync) workers = workers_behind("),
        ],
    },
    "save_examples_under_way": {
        "breaks": "In sync mode a checkpoint counts the examples of a step that it does not contain.",
        "rule": "snapshot.C10",
        "tests": ['checkpoint "sync: each rank\'s data position*"'],
        "file": "src/inspection/checkpoint_save.cpp",
        "changes": [
            ("    const bool is_by_step = traits_of(config.mode).steps_together() && is_alive && worker.step_examples != 0;",
             "    const bool is_by_step = traits_of(config.mode).steps_together() && is_alive && worker.step_examples == 1;"),
        ],
    },
    "save_forgets_earlier_examples": {
        "breaks": "A checkpoint of a job that began with a checkpoint counts only its own examples.",
        "rule": "checkpoint",
        "tests": ['checkpoint "a different number of workers*"'],
        "file": "src/inspection/checkpoint_save.cpp",
        "changes": [
            ("    examples[worker.rank] = worker.restored_examples +\n",
             "    examples[worker.rank] = 0 +\n"),
        ],
    },
    "save_without_values": {
        "breaks": "A job cannot be saved while one of its variables has no values yet.",
        "rule": "directory.D6",
        "tests": ['snapshot "snapshot: a variable is in it once*"'],
        "file": "src/inspection/checkpoint_save.cpp",
        "changes": [
            ("    return std::find(there.begin(), there.end(), one.name) == there.end();",
             "    return there.empty() && one.name.empty();"),
        ],
    },
    "control_of_the_dead": {
        "breaks": "The settings of a dead job are changed, although no process will apply them.",
        "rule": "settings.S1",
        "tests": ['live_settings "live settings: those of a dead*"'],
        "file": "src/inspection/job_control.cpp",
        "changes": [
            ("  if (!job->locks().is_in_use_by_other())\n",
             "  if (job->ranks() == 0)\n"),
        ],
    },
    "control_unchecked": {
        "breaks": "Settings are changed to values that the job does not allow.",
        "rule": "settings.S1",
        "tests": ['live_settings "live settings: those of a dead*"'],
        "file": "src/inspection/job_control.cpp",
        "changes": [
            ("    check(settings, impl_->job.config());\n",
             ""),
        ],
    },
    "view_digest_by_order": {
        "breaks": "The digest depends on the order in which variables were declared.",
        "rule": "digest",
        "tests": ['job_view "job view: the digest depends*"'],
        "file": "src/inspection/job_view.cpp",
        "changes": [
            ("std::strcmp(a.front()->name, b.front()->name) < 0; });",
             "std::strcmp(a.front()->name, b.front()->name) < -1000; });"),
        ],
    },
    "view_floats_of_any_type": {
        "breaks": "The values of a variable of integers are shown as floats.",
        "rule": "invariant.I7",
        "tests": ["dtypes",
                  "job_view"],
        "file": "src/inspection/job_view.cpp",
        "changes": [
            ("    if (!update::takes_gradients(dtype))\n      throw Error(fmt::format(\"variable '{}' has dtype {}, not float32: use",
             "    if (static_cast<int>(dtype) > 1000)\n      throw Error(fmt::format(\"variable '{}' has dtype {}, not float32: use"),
        ],
    },
    "view_snapshot_of_another": {
        "breaks": "A view takes its snapshot of another job, which has the name by now.",
        "rule": "names.N3",
        "tests": ['job_view "job view: once another job*"'],
        "file": "src/inspection/job_view.cpp",
        "changes": [
            ("    if (job->instance() != impl_->job.instance())\n",
             "    if (job->instance() == 0)\n"),
        ],
    },
    "nan_accuses_rashly": {
        "breaks": "A worker is named with certainty although the update before its own was not seen.",
        "rule": "nan watch",
        "tests": ['nan_guard "nan watch*"'],
        "file": "src/inspection/nan_watch.cpp",
        "changes": [
            ("    found.is_certain = clean && *clean + 1 == first.version && found.suspects.size() == 1;",
             "    found.is_certain = found.suspects.size() == 1;"),
        ],
    },
    "nan_accuses_the_last": {
        "breaks": "The last worker that pushed to a chunk is named, not the first one with a NaN.",
        "rule": "nan watch",
        "tests": ['nan_guard "nan watch*"'],
        "file": "src/inspection/nan_watch.cpp",
        "changes": [
            ("      else if (old.version < first.version)\n",
             "      else if (old.version > first.version)\n"),
        ],
    },
    "probe_reads_torn": {
        "breaks": "A torn chunk is read.",
        "rule": "slot.R3",
        "tests": ['job_probe "probe: a chunk is read as it is now*"'],
        "file": "src/inspection/probe.cpp",
        "changes": [
            ("    if (source.try_pull_chunk(number, floats.data()) == PullResult::kWhole)\n",
             "    if (source.try_pull_chunk(number, floats.data()) != PullResult::kNoBuffer)\n"),
        ],
    },
    "probe_rows_uncounted": {
        "breaks": "Pushes of rows are not counted.",
        "rule": "inplace.P5",
        "tests": ['job_probe "probe: blocks of rows*"'],
        "file": "src/inspection/probe.cpp",
        "changes": [
            ("      if (job_.worker(rank).holders.load_relaxed() != 0) sum += inplace.row_pushes(number, rank);",
             "      if (job_.worker(rank).holders.load_relaxed() == 0) sum += inplace.row_pushes(number, rank);"),
        ],
    },
    "probe_stays_behind": {
        "breaks": "Variables that are declared later are not shown.",
        "rule": "directory.D1",
        "tests": ['job_probe "probe: variables that are declared*"'],
        "file": "src/inspection/probe.cpp",
        "changes": [
            ("  if (facts_.empty() || Directory(job_).has(static_cast<std::uint32_t>(records_.size()))) {",
             "  if (facts_.empty()) {"),
        ],
    },
    "waits_for_the_dead": {
        "breaks": "A worker is said to wait for ranks that are dead.",
        "rule": "waiting.W3",
        "tests": ['job_view "job view: no worker is said to wait*"'],
        "file": "src/inspection/texts.cpp",
        "changes": [
            ("    if (states[rank] == WorkerState::kAlive && entry.published.load_acquire() != round + 1 &&  // (barrier.A2)",
             "    if (states[rank] != WorkerState::kNever && entry.published.load_acquire() != round + 1 &&  // (barrier.A2)"),
        ],
    },
    "nan_watch_same_rows": {
        "breaks": "The watch for NaN looks at the same share of a large table's rows again and again.",
        "rule": "inspection",
        "tests": ['nan_guard "nan watch: in a large table*"'],
        "file": "src/inspection/nan_watch.cpp",
        "changes": [
            ("  ++looks_;\n",
             "  if (looks_ == 0) ++looks_;\n"),
        ],
    },
    "odd_rows_last_element": {
        "breaks": "A row whose last value is not finite is not counted.",
        "rule": "inspection",
        "tests": ['table_view "table: the view of a job shows*"'],
        "file": "src/inspection/tables.cpp",
        "changes": [
            ("             if (odd == row.values.size()) return true;\n",
             "             if (odd + 1 >= row.values.size()) return true;\n"),
        ],
    },
}
