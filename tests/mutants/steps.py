"""The steps of training: barrier, clock of bounded staleness, snapshot points, waiting. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "guest_chunk_ignores_ticket": {
        "breaks": "A guest's change does not skip a chunk that has its ticket.",
        "rule": "guest.G3",
        "tests": ['interleavings "guests: a change is made once*"'],
        "file": "src/worker/versioned_state.cpp",
        "changes": [
            ("chunk, ticket - 1, ", "chunk, ticket + part.versioned->version(chunk), "),
        ],
    },
    "guest_keeps_attempt": {
        "breaks": "A new ticket begins with the progress of the one before.",
        "rule": "guest.G3",
        "tests": ['interleavings "guests: a change is made once*"'],
        "file": "src/shm/steps/guest.hpp",
        "changes": [
            ("    entry.attempt.store_release(0);      // (guest.G3)\n", ""),
        ],
    },
    "guest_block_not_begun": {
        "breaks": "A guest does not note that it begins a block.",
        "rule": "guest.G4",
        "tests": ['interleavings "guests: a change is made once*"'],
        "file": "src/shm/steps/guest.hpp",
        "changes": [
            ("    progress_.store_release(begun);  // (guest.G4)\n", ""),
        ],
    },
    "guest_attempt_not_noted": {
        "breaks": "A guest does not note the round of its contribution.",
        "rule": "guest.G5",
        "tests": ['interleavings "guests: in mode sync too*"'],
        "file": "src/worker/sync_steps.cpp",
        "changes": [
            ("      if (core_.options.guest) shm::note_attempt(core_.entry, round);\n", ""),
        ],
    },
    "guest_is_waited_for": {
        "breaks": "A step waits for a guest.",
        "rule": "guest.G2",
        "tests": ['interleavings "guests: a job of two workers does not begin*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("      if (!is_guest_absent) set.insert(rank);\n",
             "      if (!is_guest_absent) set.insert(rank);\n      else if (worker.state.load_acquire() == 1) missing.push_back(rank);\n"),
        ],
    },
    "guest_begins_job": {
        "breaks": "A guest counts as one of the workers that the first step waits for.",
        "rule": "guest.G1",
        "tests": ['interleavings "guests: a job of two workers does not begin*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    if (is_guest(worker)) [[unlikely]] {", "    joined += is_guest(worker);\n    if (is_guest(worker)) [[unlikely]] {"),
        ],
    },
    "guest_ends_job": {
        "breaks": "A guest counts as a worker when the ps looks whether all have been there.",
        "rule": "guest.G1",
        "tests": ['interleavings "guests: a job of two workers does not end*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  if (is_guest(entry)) return WorkerState::kNever;\n", ""),
        ],
    },
    "guest_keeps_job": {
        "breaks": "A job does not end while a guest is there.",
        "rule": "guest.G1",
        "tests": ['interleavings "guests: a job ends beside*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  census.any_worker_alive = census.anybody_alive && has_other_than_guest();",
             "  census.any_worker_alive = census.anybody_alive;"),
        ],
    },
    "barrier_backwards": {
        "breaks": "A decision may move backwards.",
        "rule": "barrier.B3",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  while (decided_rounds(decision) <= round) {                 // barrier.B3: never backwards",
             "  while (decided_rounds(decision) != round + 1) {                 // barrier.B3: never backwards"),
        ],
    },
    "barrier_dead_for_ever": {
        "breaks": "A rank known to be dead stays so, even if a successor joins.",
        "rule": "barrier.B1",
        "tests": ['barrier "barrier: a new owner of a dead*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    bool gone = static_cast<RankState>(worker.state.load_acquire()) == RankState::kLeft || known_dead_[rank] == holder;",
             "    bool gone = static_cast<RankState>(worker.state.load_acquire()) == RankState::kLeft || known_dead_[rank] != 0;"),
        ],
    },
    "barrier_decided_nobody_told": {
        "breaks": "The process that decides a round wakes no waiter.",
        "rule": "barrier.A4",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    futex_announce(shared().futex);  // the others can help\n",
             ""),
        ],
    },
    "barrier_does_not_wait_to_begin": {
        "breaks": "The first round does not wait for workers that have not joined yet.",
        "rule": "barrier.B7",
        "tests": ['barrier "barrier: the first round waits*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (arrived == 0 || (round == job_.first_round(which_) && joined < job_.config().workers)) return false;",
             "  if (arrived == 0) return false;"),
        ],
    },
    "barrier_epoch_while_applying": {
        "breaks": "A snapshot point moves the epoch of a step that is being applied.",
        "rule": "snapshot.C10",
        "tests": ['barrier "barrier: snapshot points move their epoch*"'],
        "file": "src/shm/steps/epoch.cpp",
        "changes": [
            ("    if (barrier.step.load_acquire() != rounds) return std::nullopt;  // (barrier.A6) that step is being applied\n",
             ""),
        ],
    },
    "barrier_forgets_epoch": {
        "breaks": "A decision loses the epoch of snapshot points.",
        "rule": "snapshot.C10",
        "tests": ['snapshot_sync "snapshot: sync*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    const std::uint64_t mine = make_decision(round + 1, epoch_to_decide(job_, round, decision), rank_);",
             "    const std::uint64_t mine = make_decision(round + 1, 0, rank_);"),
        ],
    },
    "barrier_ignores_order": {
        "breaks": "A decision does not get the epoch that a snapshotter has ordered for its step.",
        "rule": "snapshot.C12",
        "tests": ['barrier "barrier: the decision of a step for which*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    const std::uint64_t mine = make_decision(round + 1, epoch_to_decide(job_, round, decision), rank_);",
             "    const std::uint64_t mine = make_decision(round + 1, epoch_bits(decision), rank_);"),
        ],
    },
    "snapshot_bits_of_a_decision": {
        "breaks": "An ordered snapshot point has the epoch bits of an old decision.",
        "rule": "snapshot.C12",
        "tests": ['barrier "barrier: while a step is applied*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("(kDecisionEpoch + 1) == taken ? 2 : 1)",
             "(kDecisionEpoch + 1) == taken ? 1 : 1)"),
        ],
    },
    "barrier_holder_behind": {
        "breaks": "The owner of a rank is read after its state.",
        "rule": "barrier.A2",
        "tests": ['interleavings "moments: a worker that joins while a round*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ('''    const std::uint64_t holder = worker.holders.load_acquire();  // (ranks.J4)
    if (holder == 0) continue;''',
             '''    if (worker.holders.load_acquire() == 0) continue;
    const bool was_alive = !look_at_locks || rank == rank_ || job_.is_alive(rank);
    const std::uint64_t holder = worker.holders.load_acquire();  // (ranks.J4)
    if (!was_alive) known_dead_[rank] = holder;'''),
        ],
    },
    "barrier_included_lowered": {
        "breaks": "A decider that sleeps for rounds reverts a later inclusion.",
        "rule": "barrier.B11",
        "tests": ['interleavings "moments: a sleeping decider*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    while (seen < round && !included.try_exchange_acq_rel(seen, round)) {  // (barrier.B11) pairs with was_in",
             "    while (!included.try_exchange_acq_rel(seen, round)) {  // (barrier.B11) pairs with was_in"),
        ],
    },
    "barrier_late_asks_the_note_alone": {
        "breaks": "A late worker checks only the note, which does not exist before the next decision.",
        "rule": "barrier.B11",
        "tests": ['barrier "barrier: a worker that checks after the round is over*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (decided_rounds(decision) == round + 1 && proposes(proposer_of(decision), rank_)) return true;\n",
             ""),
        ],
    },
    "barrier_late_not_fenced": {
        "breaks": "A late worker reads the note before the set of the proposer that wrote the note.",
        "rule": "barrier.B11",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  fence_acquire();                                           // (barrier.B11) pairs with barrier.A3's fence: the note\n",
             ""),
        ],
    },
    "barrier_left_behind": {
        "breaks": "A rank that was included and is late is not noted when the others continue.",
        "rule": "barrier.B11",
        "tests": ['barrier "barrier: a worker that checks after the round is over*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (arrived != joined || is_guest_absent)\n    note_left_behind(round, set);  // before anything of the previous round is overwritten\n",
             ""),
        ],
    },
    "barrier_left_out_by_arrival": {
        "breaks": "A return without an arrival is not detected.",
        "rule": "barrier.B12",
        "tests": ['barrier "barrier: a worker that was left out*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  return then.is_set && then.published == now.published && then.active_from == now.active_from;",
             "  return then.is_set && then.published == now.published;"),
        ],
    },
    "barrier_left_out_for_ever": {
        "breaks": "A rank that was left out once is never waited for again.",
        "rule": "barrier.B12",
        "tests": ['barrier "barrier: a worker that was left out*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  return then.is_set && then.published == now.published && then.active_from == now.active_from;",
             "  return then.is_set && (now.is_set || now.published == 0);"),
        ],
    },
    "barrier_meets_by_quorum": {
        "breaks": "A user barrier uses the quorum of the steps.",
        "rule": "barrier.B7",
        "tests": ['quorum "barrier: a quorum applies to*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ('''    if (missing.empty()) open(round);
    return missing.empty();''',
             '''    const std::uint32_t few = read_live(job_).settings.quorum;
    if (missing.empty() || (few != 0 && arrived >= few)) open(round);
    return this->round() != round;'''),
        ],
    },
    "barrier_nobody_told": {
        "breaks": "The process that opens a round wakes no waiter.",
        "rule": "barrier.A6",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ('''  futex_announce(shared().futex);
}''',
             "}"),
        ],
    },
    "barrier_note_not_fenced": {
        "breaks": "A decider that has read a later set does not pass on the notes of its proposer.",
        "rule": "barrier.B11",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  fence_acquire();  // (barrier.B11) pairs with barrier.A3's fence: a later proposer's notes come before barrier.A4\n",
             ""),
        ],
    },
    "barrier_noted_after": {
        "breaks": "Ranks left behind are noted after the proposal, which may have overwritten which they are.",
        "rule": "barrier.B11",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (arrived != joined || is_guest_absent)\n    note_left_behind(round, set);  // before anything of the previous round is overwritten\n",
             ""),
            ("  std::uint64_t decision = shared().decision.load_acquire();  // (barrier.A4)",
             '''  if (arrived != joined || is_guest_absent)
    note_left_behind(round, set);  // before anything of the previous round is overwritten
  std::uint64_t decision = shared().decision.load_acquire();  // (barrier.A4)'''),
        ],
    },
    "barrier_of_nobody": {
        "breaks": "A round is decided at which no rank has arrived.",
        "rule": "barrier.B7",
        "tests": ['barrier "barrier: no round is decided*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (arrived == 0 || (round == job_.first_round(which_) && joined < job_.config().workers)) return false;",
             "  if ((round == job_.first_round(which_) && joined < job_.config().workers)) return false;"),
        ],
    },
    "barrier_opens_backwards": {
        "breaks": "The process that opens a round does not check whether it is already open.",
        "rule": "barrier.A6",
        "tests": ['interleavings "moments: a sleeping helper*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (!shared().step.try_exchange_acq_rel(expected, round + 1)) return;  // (barrier.A6) pairs with round(), steps.T2",
             "  shared().step.store_release(expected + 1);  // (barrier.A6) pairs with round(), steps.T2"),
        ],
    },
    "barrier_proposal_not_fenced": {
        "breaks": "A proposal is overwritten without a fence.",
        "rule": "barrier.A3",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    fence_release();\n",
             ""),
        ],
    },
    "barrier_proposal_unchecked": {
        "breaks": "A reader of a proposal does not check the round after reading it.",
        "rule": "barrier.B6",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  return this->round() == round;  // barrier.B6: a proposal is overwritten only once the round is over",
             "  return true;  // barrier.B6: a proposal is overwritten only once the round is over"),
        ],
    },
    "barrier_proposes_again": {
        "breaks": "A predecessor's proposal for the round is overwritten.",
        "rule": "barrier.B3",
        "tests": ['barrier "barrier: a new owner adopts*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (mine.proposal.load_relaxed() != round + 1) {  // relaxed: only this rank writes it",
             "  if (mine.proposal.load_relaxed() <= round + 1) {  // relaxed: only this rank writes it"),
        ],
    },
    "barrier_publication_first": {
        "breaks": "The decider reads the publication before it checks liveness.",
        "rule": "barrier.B2",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    bool gone = static_cast<RankState>(worker.state.load_acquire()) == RankState::kLeft || known_dead_[rank] == holder;",
             '''    const bool has_published = worker.barriers[which_].published.load_acquire() == round + 1;  // (barrier.A2)
    bool gone = static_cast<RankState>(worker.state.load_acquire()) == RankState::kLeft || known_dead_[rank] == holder;'''),
            ("    if (worker.barriers[which_].published.load_acquire() == round + 1) {  // (barrier.A2) pairs with barrier.A1",
             "    if (has_published) {"),
        ],
    },
    "barrier_quorum_alone": {
        "breaks": "A round that all live ranks have reached waits for the quorum.",
        "rule": "barrier.B7",
        "tests": ['quorum "barrier: fewer live*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (!missing.empty() && !has_quorum) return false;",
             "  if (quorum != 0 ? !has_quorum : !missing.empty()) return false;"),
        ],
    },
    "barrier_quorum_not_fenced": {
        "breaks": "A proposal is read without a fence.",
        "rule": "barrier.A5",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  fence_acquire();                // (barrier.A5) pairs with barrier.A3's fence\n",
             ""),
        ],
    },
    "barrier_rate_of_the_helper": {
        "breaks": "A helper uses the current learning rate instead of the decision's.",
        "rule": "barrier.B8",
        "tests": ['quorum "barrier: a decision carries*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  out.learning_rate = std::bit_cast<float>(proposer.learning_rate.load_relaxed());",
             "  out.learning_rate = read_live(job_).settings.learning_rate;"),
        ],
    },
    "barrier_silent_return": {
        "breaks": "A rank that was left out does not report that it is back.",
        "rule": "barrier.B12",
        "tests": ['barrier "barrier: a worker that was left out*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  entry(rank_).active_from.store_release(round());  // (barrier.B12) pairs with barrier.A2\n",
             ""),
        ],
    },
    "barrier_takes_part_late": {
        "breaks": "Whether a rank takes part is checked after its publication.",
        "rule": "barrier.A2",
        "tests": ['weak_weak "weak: ranks*"',
                  'weak_barrier_interleavings "interleavings: ranks*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ('''    const bool takes_part = worker.barriers[which_].active_from.load_acquire() <= round;
    if (worker.barriers[which_].published.load_acquire() == round + 1) {  // (barrier.A2) pairs with barrier.A1
      set.insert(rank);
      ++arrived;
    } else if (!gone && takes_part && !is_left_out(rank)) {''',
             '''    if (worker.barriers[which_].published.load_acquire() == round + 1) {  // (barrier.A2) pairs with barrier.A1
      set.insert(rank);
      ++arrived;
    } else if (!gone && worker.barriers[which_].active_from.load_acquire() <= round && !is_left_out(rank)) {'''),
        ],
    },
    "barrier_tells_again": {
        "breaks": "A missed quorum is reported in every round.",
        "rule": "barrier.B7",
        "tests": ['quorum "barrier: *reported*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("  if (told == now_short || !job_.state().short_quorum.try_exchange_acq_rel(told, now_short)) return;  // (barrier.B7)",
             "  if (!job_.state().short_quorum.try_exchange_acq_rel(told, now_short)) return;  // (barrier.B7)"),
        ],
    },
    "barrier_waits_for_newcomers": {
        "breaks": "A worker that joins during a round is waited for in it.",
        "rule": "barrier.B1",
        "tests": ['barrier "barrier: a worker that joins during a round*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    } else if (!gone && takes_part && !is_left_out(rank)) {",
             "    } else if (!gone && !is_left_out(rank)) {"),
        ],
    },
    "barrier_waits_for_the_left": {
        "breaks": "A worker that has left is waited for.",
        "rule": "barrier.B2",
        "tests": ['barrier "barrier: a worker that has left*"'],
        "file": "src/shm/steps/barrier.cpp",
        "changes": [
            ("    bool gone = static_cast<RankState>(worker.state.load_acquire()) == RankState::kLeft || known_dead_[rank] == holder;",
             "    bool gone = known_dead_[rank] == holder;"),
        ],
    },
    "barrier_opens_first": {
        "breaks": "The round opens before it is applied.",
        "rule": "barrier.B6",
        "tests": ['PS_SHM_WEAK_SCENE=barrier weak_weak "weak: the barrier"'],
        "file": "src/shm/steps/barrier.hpp",
        "changes": [
            ('''      apply(std::as_const(decision));
      open(round);''',
             '''      open(round);
      apply(std::as_const(decision));'''),
        ],
    },
    "snapshot_forced_unsaid": {
        "breaks": "A process that opens a snapshot point after a time-out does not record that.",
        "rule": "snapshot.C11",
        "tests": ['snapshot "snapshot: a maker that was stopped*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ('''  while (forced < epoch_of(word) && !point.forced.try_exchange_acq_rel(forced, epoch_of(word))) {
  }
''',
             ""),
        ],
    },
    "snapshot_given_up_forgotten": {
        "breaks": "Every snapshot waits for a push that does not end.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: a push that does not end*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("      point.given_up.store_relaxed(made.epoch);  // relaxed: a hint for the next snapshotter\n",
             ""),
        ],
    },
    "snapshot_opens_any_state": {
        "breaks": "A snapshot point is opened over a later one.",
        "rule": "snapshot.C8",
        "tests": ['PS_SHM_WEAK_SCENE=snapshot: weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("  if (!point.word.try_exchange_acq_rel(from, next)) return;  // (snapshot.C8) pairs with snapshot.C3",
             "  point.word.store_release(next);  // (snapshot.C8) pairs with snapshot.C3"),
        ],
    },
    "snapshot_silent": {
        "breaks": "The end of a pause wakes no waiter.",
        "rule": "snapshot.C8",
        "tests": ['PS_SHM_WEAK_SCENE=snapshot: weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("  if (to == SnapshotState::kOpen) futex_announce(point.futex);\n",
             ""),
        ],
    },
    "snapshot_stuck_state": {
        "breaks": "The successor of a dead snapshot maker does not end its pause.",
        "rule": "snapshot.C8",
        "tests": ['snapshot "snapshot: the next maker*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("  if (snapshot_state(word) != SnapshotState::kOpen) move_on(point, word, SnapshotState::kOpen);",
             "  static_cast<void>(word);"),
        ],
    },
    "snapshot_unfenced": {
        "breaks": "A snapshot point reads the announcements without a fence.",
        "rule": "snapshot.C8",
        "tests": ['PS_SHM_WEAK_SCENE=snapshot: weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ('''  fence_store_load();  // (snapshot.C8) pairs with snapshot.C2
  constexpr std::uint64_t kSpinNs = 50'000, kSleepNs = 50'000, kLookNs = 1'000'000;''',
             "  constexpr std::uint64_t kSpinNs = 50'000, kSleepNs = 50'000, kLookNs = 1'000'000;"),
        ],
    },
    "snapshot_without_drain": {
        "breaks": "A snapshot point opens before the pushes of the previous epoch have ended.",
        "rule": "snapshot.C8",
        "tests": ['PS_SHM_WEAK_SCENE=snapshot: weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/snapshot_point.cpp",
        "changes": [
            ("    if (pushers.old.empty() && (pushers.stuck.empty() || looks)) {",
             "    if (pushers.stuck.empty() || looks) {"),
        ],
    },
    "push_begins_unseen": {
        "breaks": "A push continues although the snapshot point has moved since its announcement.",
        "rule": "snapshot.C3",
        "tests": ['PS_SHM_WEAK_SCENE=snapshot: weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/snapshot_point.hpp",
        "changes": [
            ("    if (word == guess && snapshot_state(word) == SnapshotState::kOpen) return epoch;",
             "    if (epoch_of(word) == epoch || snapshot_state(word) == SnapshotState::kOpen) return epoch;"),
        ],
    },
    "futex_keeps_bit": {
        "breaks": "An announcement does not clear the bit for sleepers.",
        "rule": "waiting.W1",
        "tests": ["futex",
                  'PS_SHM_WEAK_SCENE=futex weak_weak "weak: futexes*"'],
        "survives": "each later announcement makes a useless system call, which costs time and changes no result",
        "file": "src/shm/base/futex.cpp",
        "changes": [
            ("  word.fetch_and_acq_rel(~kSleeper);  // (waiting.W1) a bit that is set from here on is followed by a check of the fact\n",
             ""),
        ],
    },
    "futex_not_counted": {
        "breaks": "An announcement does not change the count.",
        "rule": "waiting.W1",
        "tests": ['PS_SHM_WEAK_SCENE=futex weak_weak "weak: futexes*"'],
        "file": "src/shm/base/futex.cpp",
        "changes": [
            ("  word.fetch_add_acq_rel(kAnnouncement);              // (waiting.W1) pairs with futex_prepare\n",
             ""),
        ],
    },
    "futex_unfenced": {
        "breaks": "An announcing process checks for sleepers without a fence.",
        "rule": "waiting.W1",
        "tests": ['PS_SHM_WEAK_SCENE=futex weak_weak "weak: futexes*"'],
        "file": "src/shm/base/futex.cpp",
        "changes": [
            ("  fence_store_load();                                 // (waiting.W1) the fact before the check\n",
             ""),
        ],
    },
    "futex_wakes_one": {
        "breaks": "An announcement wakes only one sleeper.",
        "rule": "waiting.W1",
        "tests": ['futex "wait: an announcement wakes all*"'],
        "file": "src/shm/base/futex.cpp",
        "changes": [
            ("  syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);",
             "  syscall(SYS_futex, &word.value, FUTEX_WAKE, 1, nullptr, nullptr, 0);"),
        ],
    },
    "futex_without_slices": {
        "breaks": "A sleep has no time limit of its own.",
        "rule": "waiting.W2",
        "tests": ["futex"],
        "file": "src/shm/base/futex.cpp",
        "changes": [
            ("  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &slice, nullptr, 0);",
             "  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, seen == 0 ? &slice : nullptr, nullptr, 0);"),
        ],
    },
    "futex_looks_first": {
        "breaks": "A sleeper checks the condition before it announces that it sleeps.",
        "rule": "waiting.W1",
        "tests": ['PS_SHM_WEAK_SCENE=futex weak_weak "weak: futexes*"'],
        "file": "src/shm/base/futex.hpp",
        "changes": [
            ('''    const std::uint32_t seen = futex_prepare(word);  // before the check: a fact that comes later changes the word
    if (fact()) return;''',
             '''    if (fact()) return;
    const std::uint32_t seen = futex_prepare(word);  // before the check: a fact that comes later changes the word'''),
        ],
    },
    "futex_slice_unused": {
        "breaks": "A wait does not check for deaths and deadlines.",
        "rule": "waiting.W2",
        "tests": ['futex "wait: what each slice*"'],
        "file": "src/shm/base/futex.hpp",
        "changes": [
            ("    each_slice();\n",
             ""),
        ],
    },
    "ssp_dead_counts": {
        "breaks": "Dead workers hold up the others.",
        "rule": "ssp.C4",
        "tests": ['ssp_clock "ssp clock: a dead worker does not*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  if (look_at_locks && !job_.is_alive(rank)) {",
             "  if (look_at_locks && rank == rank_) {"),
        ],
    },
    "ssp_dead_for_ever": {
        "breaks": "A rank known to be dead stays so, even if a successor joins.",
        "rule": "ssp.C4",
        "tests": ['ssp_clock "ssp clock: a successor of a dead*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("    if (holder == 0 || known_dead_[rank] == holder) return std::nullopt;",
             "    if (holder == 0 || known_dead_[rank] != 0) return std::nullopt;"),
        ],
    },
    "ssp_entering_counts": {
        "breaks": "A newcomer also uses the clock of a worker that is still entering.",
        "rule": "ssp.C1",
        "tests": ['PS_SHM_WEAK_SCENE=ssp weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("    if (clock && !is_entering(*clock)) smallest = std::min(steps_of(*clock), smallest.value_or(steps_of(*clock)));",
             "    if (clock) smallest = std::min(steps_of(*clock), smallest.value_or(steps_of(*clock)));"),
        ],
    },
    "ssp_enters_again": {
        "breaks": "A worker that is in the epoch enters it again.",
        "rule": "ssp.C1",
        "tests": ['ssp_clock "ssp clock: a worker that is in an epoch*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  if (epoch_of(own().load_relaxed()) == (epoch & 0xffff)) return;  // relaxed: only this rank writes it\n",
             ""),
        ],
    },
    "ssp_enters_unfenced": {
        "breaks": "A newcomer makes its second check without a fence.",
        "rule": "waiting.W1",
        "tests": ['PS_SHM_WEAK_SCENE=ssp weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  fence_store_load();  // (ssp.C1) waiting.W1: if two workers store their clocks and then read, one sees the other\n",
             ""),
        ],
    },
    "ssp_left_counts": {
        "breaks": "Workers that have left hold up the others.",
        "rule": "ssp.C4",
        "tests": ['ssp_clock "ssp clock: a worker that has left*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  if (state == RankState::kLeft || epoch_of(clock) != (epoch & 0xffff)) return std::nullopt;",
             "  if ((state == RankState::kLeft && rank == rank_) || epoch_of(clock) != (epoch & 0xffff)) return std::nullopt;"),
        ],
    },
    "ssp_no_entering_flag": {
        "breaks": "A newcomer does not publish that it is still entering.",
        "rule": "ssp.C1",
        "tests": ['PS_SHM_WEAK_SCENE=ssp weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  own().store_release(make_clock(epoch, entered) | kEntering);  // (ssp.C1)",
             "  own().store_release(make_clock(epoch, entered));  // (ssp.C1)"),
        ],
    },
    "ssp_no_lead_check": {
        "breaks": "The bound is one step too wide.",
        "rule": "ssp.C4",
        "tests": ['PS_SHM_WEAK_SCENE=ssp weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("    if (ahead() > bound) blockers.push_back(rank);",
             "    if (ahead() > bound + 1) blockers.push_back(rank);"),
        ],
    },
    "ssp_old_epoch_counts": {
        "breaks": "A clock of an older epoch counts.",
        "rule": "ssp.C4",
        "tests": ['ssp_clock "ssp clock: clocks of an older*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  if (state == RankState::kLeft || epoch_of(clock) != (epoch & 0xffff)) return std::nullopt;",
             "  if (state == RankState::kLeft) return std::nullopt;"),
        ],
    },
    "ssp_one_look": {
        "breaks": "A newcomer does not read the clocks a second time.",
        "rule": "ssp.C2",
        "tests": ['PS_SHM_WEAK_SCENE=ssp weak_weak "weak: futexes*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  own().store_release(make_clock(epoch, std::max(entered, smallest_other(epoch).value_or(0))));  // (ssp.C2)",
             "  own().store_release(make_clock(epoch, entered));  // (ssp.C2)"),
        ],
    },
    "ssp_one_look_at_holder": {
        "breaks": "A clock is read without a second check of its owner.",
        "rule": "ssp.C4",
        "tests": ['PS_SHM_WEAK_SCENE=ssp weak_weak "weak: futexes*"',
                  "ssp_clock"],
        "survives": "a successor has the byte before it clears the clock; the second check only makes a mix-up rarer",
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ("  } while (worker.holders.load_acquire() != holder);              // (ranks.J4)",
             "  } while (holder == 0);              // (ranks.J4)"),
        ],
    },
    "ssp_silent_advance": {
        "breaks": "Advancing the clock wakes no waiter.",
        "rule": "ssp.C3",
        "tests": ['PS_SHM_WEAK_SCENE=ssp weak_weak "weak: futexes*"',
                  'ssp_clock "ssp clock: an advance wakes*"'],
        "file": "src/shm/steps/ssp_clock.cpp",
        "changes": [
            ('''  fault_point(FaultPoint::kClockAdvanced);
  futex_announce(job_.state().clocks);
}
''',
             '''  fault_point(FaultPoint::kClockAdvanced);
}
'''),
        ],
    },
}
