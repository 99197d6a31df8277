"""Recordings of workers, their order, and their replay. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "recording_goes_on_after_kill": {
        "breaks": "A recording may go on after a push that did not succeed.",
        "rule": "replay.E2",
        "tests": ['record "record: a worker killed within*"'],
        "file": "src/record/cursor.cpp",
        "changes": [
            ('''    if (at_ != bytes_.size() && bytes_[at_] != std::byte{0}) fail("it goes on after a push that did not succeed");
''',
             ""),
        ],
    },
    "recording_life_missing": {
        "breaks": "A folder in which a recording is missing is accepted.",
        "rule": "replay.L1",
        "tests": ['record "record: impossible orders*"'],
        "file": "src/record/folder.cpp",
        "changes": [
            ("    if (one.life != ++last)\n",
             "    if (one.life < ++last)\n"),
        ],
    },
    "order_counts_unseen": {
        "breaks": "A killed worker's last push counts although no worker has seen it.",
        "rule": "replay.E2",
        "tests": ['record "record: a killed worker\'s last push*"'],
        "file": "src/record/order.cpp",
        "changes": [
            ("was_seen[one.chunk])\n      continue;",
             "was_seen[one.chunk] || true)\n      continue;"),
        ],
    },
    "order_counts_late_step": {
        "breaks": "A killed worker's last step counts although a later life of its rank did not wait for it.",
        "rule": "replay.E2",
        "tests": ['record "record: a killed worker\'s last step*"'],
        "file": "src/record/order.cpp",
        "changes": [
            ("    if (one.is_last && !last_step(one.record)) last_steps_[one.record] = next++;",
             "    if (!last_step(one.record)) last_steps_[one.record] = next++;"),
        ],
    },
    "order_of_a_circle": {
        "breaks": "Recordings that wait for each other are accepted.",
        "rule": "replay.P2",
        "tests": ['record "record: impossible orders*"'],
        "file": "src/record/order.cpp",
        "changes": [
            ("  require_no_circle(records);\n",
             ""),
        ],
    },
    "order_with_a_gap": {
        "breaks": "Recordings in which a step is missing are accepted.",
        "rule": "replay.E2",
        "tests": ['record "record: impossible orders*"'],
        "file": "src/record/order.cpp",
        "changes": [
            ("    if (step != next++)\n",
             "    if (step < next++)\n"),
        ],
    },
    "order_with_two_makers": {
        "breaks": "Recordings in which two pushes make the same version are accepted.",
        "rule": "replay.E2",
        "tests": ['record "record: impossible orders*"'],
        "file": "src/record/order.cpp",
        "changes": [
            ("    if (version >= makers.size() || makers[version] != 0) return false;",
             "    if (version >= makers.size()) return false;"),
        ],
    },
    "recorder_child_cuts": {
        "breaks": "A forked child truncates its parent's recording.",
        "rule": "locks.L2",
        "tests": ['record "record: a forked child*"'],
        "file": "src/record/recorder.cpp",
        "changes": [
            ("  if (owner_ == getpid())                                                    // a forked child's parent writes on\n",
             ""),
        ],
    },
    "recorder_done_before_swap": {
        "breaks": "A push is recorded as done before its swap.",
        "rule": "replay.E1",
        "tests": ['record "record: a killed worker\'s last push*"'],
        "file": "src/record/recorder.cpp",
        "changes": [
            ("& shm::kVersionMask) << 2 | kTried);",
             "& shm::kVersionMask) << 2 | kTried | kDone);"),
        ],
    },
    "recorder_keeps_rates": {
        "breaks": "A change of the learning rate is not recorded.",
        "rule": "replay.E1",
        "tests": ['replay "record: a replayed call waits*"'],
        "file": "src/record/recorder.cpp",
        "changes": [
            ("  if (!has_rates_ || now.rate != facts_.rate || now.clip != facts_.clip || now.momentum != facts_.momentum ||\n"
             "      now.beta1 != facts_.beta1) {",
             "  if (!has_rates_) {"),
        ],
    },
    "recorder_leaves_within_call": {
        "breaks": "A worker whose call has thrown records that it leaves, within the call.",
        "rule": "replay.E1",
        "tests": ['record "record: a call that has thrown*"'],
        "file": "src/record/recorder.cpp",
        "changes": [
            ("  if (left_ != 0 || at_ + 1 >= kWindow) return false;",
             "  if (at_ + 1 >= kWindow) return false;"),
        ],
    },
    "recorder_moves_back": {
        "breaks": "A recording that outgrows what is mapped overwrites its last events.",
        "rule": "replay.E1",
        "tests": ['record "record: a recording longer than*"'],
        "file": "src/record/recorder.cpp",
        "changes": [
            ("  at_ = at;\n",
             "  at_ = at % 2;\n"),
        ],
    },
    "recorder_overwrites_life": {
        "breaks": "The next life of a rank overwrites the recording of the last one.",
        "rule": "replay.L1",
        "tests": ['record "record: a killed worker\'s last step*"'],
        "file": "src/record/recorder.cpp",
        "changes": [
            ("O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);",
             "O_RDWR | O_CREAT | O_CLOEXEC, 0644);"),
        ],
    },
    "replay_any_gradient": {
        "breaks": "A replay does not notice that other values are pushed.",
        "rule": "replay.L1",
        "tests": ['replay "record: a replayed call waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("  if (event.check != check) differ_in_values();\n",
             "  if (event.check != check && event.check == 0) differ_in_values();\n"),
        ],
    },
    "replay_any_step": {
        "breaks": "A replayed step does not wait for its turn.",
        "rule": "replay.P2",
        "tests": ['replay "record: a replayed step waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("  wait([&] { return job_.steps_done() >= *step; }, ",
             "  wait([&] { return job_.steps_done() <= *step; }, "),
        ],
    },
    "replay_count_kept": {
        "breaks": "A replayed push does not clear the count of its version's pulls.",
        "rule": "replay.P2",
        "tests": ['replay "record: a replayed call waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("  pulls.store_relaxed(0);  // relaxed: the swap publishes it (slot.W6)\n",
             ""),
        ],
    },
    "replay_difference_unsaid": {
        "breaks": "A worker that differs from its recording does not tell the others.",
        "rule": "replay.L1",
        "tests": ['replay "record: a replayed call waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ('''void Replayer::differ(const std::string& how) {
  coordinator_.state().differs.store_release(rank_ + 1);  // (replay.L1)
''',
             "void Replayer::differ(const std::string& how) {\n"),
        ],
    },
    "replay_end_unsaid": {
        "breaks": "A replaying worker that leaves in good order counts as dead.",
        "rule": "replay.L1",
        "tests": ['replay "record: a replayed step waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("  coordinator_.state().ended[rank_].store_release(life_);  // (replay.L1)\n",
             ""),
        ],
    },
    "replay_pull_early": {
        "breaks": "A replayed pull does not wait for its version.",
        "rule": "replay.P2",
        "tests": ['replay "record: a replayed call waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("      [&] { return has_come(part.version(chunk), event.version); },\n",
             "      [&] { return true; },\n"),
        ],
    },
    "replay_push_early": {
        "breaks": "A replayed push does not wait for the pulls of its version.",
        "rule": "replay.P2",
        "tests": ['replay "record: a replayed call waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("  wait([&] { return has_come(part.version(chunk_of_part), event.version) && pulls.load_acquire() >= wanted; },",
             "  wait([&] { return has_come(part.version(chunk_of_part), event.version); },"),
        ],
    },
    "replay_rates_of_now": {
        "breaks": "A replay uses the job's present learning rate.",
        "rule": "replay.E2",
        "tests": ['replay "record: a replayed call waits*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("  return facts_;\n",
             "  return now;\n"),
        ],
    },
    "replay_waits_for_the_dead": {
        "breaks": "A replay waits for ever for a worker that has died.",
        "rule": "replay.L2",
        "tests": ['replay "record: a replay ends when*"'],
        "file": "src/record/replayer.cpp",
        "changes": [
            ("    if (lives.ended[rank].load_acquire() < begun && lives.begun[rank].load_acquire() == begun)\n",
             "    if (lives.ended[rank].load_acquire() > begun && lives.begun[rank].load_acquire() == begun)\n"),
        ],
    },
}
