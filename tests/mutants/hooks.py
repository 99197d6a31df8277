"""Hooks of training loops: their order, checkpoints, and the guard against NaN. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "checkpointing_by_all": {
        "breaks": "Every worker keeps checkpoints.",
        "rule": "hooks",
        "tests": ['hooks "checkpointing saves*"'],
        "file": "src/hooks/checkpointing.cpp",
        "changes": [
            ("    if (!loop.worker().is_chief()) return;\n",
             ""),
        ],
    },
    "checkpointing_failure_ends": {
        "breaks": "A checkpoint that cannot be written ends the training.",
        "rule": "hooks",
        "tests": ['hooks "checkpointing that fails*"'],
        "file": "src/hooks/checkpointing.cpp",
        "changes": [
            ("      return hooks::tell(options_.log, fmt::format(\"checkpoint failed",
             "      hooks::tell(options_.log, fmt::format(\"checkpoint failed"),
            ("; training continues\", error.what()));\n",
             "; training continues\", error.what()));\n      throw;\n"),
        ],
    },
    "checkpointing_loss_of_all": {
        "breaks": "The loss of a checkpoint is the mean since the beginning, so the best one is the last.",
        "rule": "hooks",
        "tests": ['hooks "checkpointing saves*"'],
        "file": "src/hooks/checkpointing.cpp",
        "changes": [
            ("      losses_ = 0.0, count_ = 0;\n",
             ""),
        ],
    },
    "checkpointing_not_at_end": {
        "breaks": "The last state is not saved.",
        "rule": "hooks",
        "tests": ['hooks "checkpointing saves*"'],
        "file": "src/hooks/checkpointing.cpp",
        "changes": [
            ("    if (dir_ && loop.worker().global_step() != saved_) save(loop);\n",
             ""),
        ],
    },
    "guard_pushes_after_restore": {
        "breaks": "The gradient of a NaN is pushed after the restore.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: restore sets*"'],
        "file": "src/hooks/nan_guard.cpp",
        "changes": [
            ("      put_back(loss);\n      return false;",
             "      put_back(loss);\n      return true;"),
        ],
    },
    "guard_pushes_skipped": {
        "breaks": "A gradient that shall be skipped is pushed.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: skip pushes*"'],
        "file": "src/hooks/nan_guard.cpp",
        "changes": [
            ("      note_skip(loss);\n      return false;",
             "      note_skip(loss);\n      return true;"),
        ],
    },
    "guard_moment_unset": {
        "breaks": "The moment of a pull is not noted, so only the first NaN of a job leads to a restore.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: of two workers*"'],
        "file": "src/hooks/nan_guard.cpp",
        "changes": [
            ("  if (options_.on_nan == OnNan::kRestore) pulled_ = moment_of(*worker_);\n",
             ""),
        ],
    },
    "restore_follows_link": {
        "breaks": "A restore writes its record through a link.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: a link in place*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666)) {",
             "O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {"),
        ],
    },
    "restore_for_ever": {
        "breaks": "A checkpoint that leads to NaN again and again is restored for ever.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: a checkpoint is given up even*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("  if (is_again && last.count >= options.max_restores) return {Restored::kTooOften, found.folder};\n",
             ""),
        ],
    },
    "restore_half_checked": {
        "breaks": "Some variables are restored from a checkpoint of another model.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: nothing is restored*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("    const Variable& variable = variables.emplace_back(worker.variable(stored.name, kWaitSeconds));\n",
             '''    const Variable& variable = variables.emplace_back(worker.variable(stored.name, kWaitSeconds));
    if (stored.name == "n") worker.assign(variable, std::span<const std::byte>(values), Slots::kReset);
'''),
        ],
    },
    "restore_keeps_slots": {
        "breaks": "A restore keeps the state of the optimizer, which led to the NaN.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: restore sets*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("Slots::kReset);",
             "Slots::kKeep);"),
        ],
    },
    "restore_not_finite": {
        "breaks": "A checkpoint with a NaN is restored.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: a checkpoint that is damaged*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("    if (!update::are_finite(variable.dtype, values))\n",
             "    if (values.empty())\n"),
        ],
    },
    "restore_of_another_job": {
        "breaks": "What was restored into an earlier job counts for the next job of the folder.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: what was restored into an earlier*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("  const bool is_of_job = last.instance == instance;",
             "  const bool is_of_job = last.instance != 0;"),
        ],
    },
    "restore_own_forgotten": {
        "breaks": "Restores that cannot be recorded in the folder are not counted.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: a checkpoint is given up even*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("  own_records().put(options.dir, record.done);\n",
             ""),
        ],
    },
    "restore_piecemeal": {
        "breaks": "A restore is not a group of pushes, so that a snapshot contains a part of it.",
        "rule": "state.K1",
        "tests": ['interleavings "moments: each snapshot contains all of a restore*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("  const PushGroup group = worker.group_pushes();  // snapshots contain all of it or nothing\n",
             ""),
        ],
    },
    "restore_same_moment": {
        "breaks": "What was pulled in the nanosecond of a restore counts as pulled after it.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: what was pulled in the very*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("  if (is_of_job && (pulled.ns <= last.ns ||",
             "  if (is_of_job && (pulled.ns < last.ns ||"),
        ],
    },
    "restore_twice_in_sync": {
        "breaks": "In sync mode a second worker restores before the step has applied the first one's values.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: restore in sync*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("(with_step && pulled.global_step <= last.step)))",
             "(with_step && pulled.global_step < last.step)))"),
        ],
    },
    "restore_unlocked": {
        "breaks": "Two processes restore at the same time.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: while another process*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("      is_anothers_ = errno == EWOULDBLOCK;\n",
             ""),
        ],
    },
    "restore_unverified": {
        "breaks": "A checkpoint whose contents are damaged is restored.",
        "rule": "nan guard",
        "tests": ['nan_guard "nan guard: a checkpoint that is damaged*"'],
        "file": "src/hooks/restoring.cpp",
        "changes": [
            ("  checkpoint.verify();\n",
             ""),
        ],
    },
    "hooks_first_refusal": {
        "breaks": "After a hook that rejects a gradient the others are not asked.",
        "rule": "hooks",
        "tests": ['hooks "a gradient that one hook rejects*"'],
        "file": "src/hooks/step_loop.cpp",
        "changes": [
            ("is_pushed_ = hook->after_gradient(*this, loss) && is_pushed_;",
             "is_pushed_ = is_pushed_ && hook->after_gradient(*this, loss);"),
        ],
    },
    "hooks_without_end": {
        "breaks": "Hooks are not told that the job has ended.",
        "rule": "hooks",
        "tests": ['hooks "a loop ends with its job*"'],
        "file": "src/hooks/step_loop.cpp",
        "changes": [
            ("  loop.end();\n  return",
             "  return"),
        ],
    },
    "stop_at_few_losses": {
        "breaks": "A loop stops before there are enough losses for their mean.",
        "rule": "hooks",
        "tests": ['hooks "a loop stops when the mean*"'],
        "file": "src/hooks/stopping.cpp",
        "changes": [
            ("    if (count_ < losses_.size()) return;\n",
             ""),
        ],
    },
}
