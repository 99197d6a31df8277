"""The life of jobs and of their processes: names, locks, worker table, events, runtime settings. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "events_complete_at_once": {
        "breaks": "A writer does not mark the event as being written.",
        "rule": "events.E2",
        "tests": ['PS_SHM_WEAK_SCENE=events weak_weak "weak: futexes*"',
                  "events"],
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("        !place.sequence.try_exchange_acq_rel(sequence, kBuildingEvent | (ticket + 1)))  // (events.E2)",
             "        !place.sequence.try_exchange_acq_rel(sequence, ticket + 1))  // (events.E2)"),
        ],
    },
    "events_no_patience": {
        "breaks": "A writer gives its event up if a dead writer occupies the entry.",
        "rule": "events.E1",
        "tests": ["events"],
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("  constexpr int kTickets = 8;  // not so many adjacent writers will have died while writing",
             "  constexpr int kTickets = 1;  // not so many adjacent writers will have died while writing"),
        ],
    },
    "events_no_second_look": {
        "breaks": "A reader of an event does not check its sequence again.",
        "rule": "events.E5",
        "tests": ['PS_SHM_WEAK_SCENE=events weak_weak "weak: futexes*"'],
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("  return place.sequence.load_relaxed() == sequence;",
             "  return true;"),
        ],
    },
    "events_not_building": {
        "breaks": "A writer does not check whether another one is writing to the entry.",
        "rule": "events.E2",
        "tests": ['PS_SHM_WEAK_SCENE=events weak_weak "weak: futexes*"'],
        "survives": "a sequence with that bit is above every ticket, so the next condition rejects it, too",
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("    if ((sequence & kBuildingEvent) != 0 || sequence > ticket ||",
             "    if (sequence > ticket ||"),
        ],
    },
    "events_one_ring": {
        "breaks": "Decisions displace joins and deaths from the ring.",
        "rule": "events.E1",
        "tests": ['events "events: many decisions*"'],
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("  const Ring ring = ring_of(job, event.kind == EventKind::kDecided);",
             "  const Ring ring = ring_of(job, event.kind == EventKind::kDecided && event.step % 2 == 0);"),
        ],
    },
    "events_overwrite_newer": {
        "breaks": "A writer that was lapped overwrites a newer event.",
        "rule": "events.E2",
        "tests": ['events "events: a writer that was lapped*"'],
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("    if ((sequence & kBuildingEvent) != 0 || sequence > ticket ||",
             "    if ((sequence & kBuildingEvent) != 0 ||"),
        ],
    },
    "events_read_building": {
        "breaks": "A reader takes an event that is being written.",
        "rule": "events.E5",
        "tests": ["events"],
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("  if (sequence == 0 || (sequence & kBuildingEvent) != 0) return false;",
             "  if (sequence == 0) return false;"),
        ],
    },
    "events_unfenced": {
        "breaks": "The fields of an event are written without a fence.",
        "rule": "events.E2",
        "tests": ['PS_SHM_WEAK_SCENE=events weak_weak "weak: futexes*"'],
        "file": "src/shm/segment/events.cpp",
        "changes": [
            ("    fence_release();  // (events.E2) pairs with events.E5: a reader of a field of this event finds the sequence changed\n",
             ""),
        ],
    },
    "child_not_refused": {
        "breaks": "A forked child may use its parent's worker, whose memory it does not have.",
        "rule": "locks.L2",
        "tests": ['forked_handles "fork: every call of a parent\'s object*"'],
        "file": "src/shm/segment/job_segments.hpp",
        "changes": [
            ("    if (is_inherited()) [[unlikely]]\n      fail_inherited(what);",
             "    if (what == nullptr) [[unlikely]]\n      fail_inherited(what);"),
        ],
    },
    "create_keeps_leftovers": {
        "breaks": "Leftovers of an earlier job of the same name stay.",
        "rule": "names.N1",
        "tests": ['job_segments "job: shards left without*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ("    unlink_parts(config.job);  // of a job whose removal was interrupted; they are ours now, as the name is\n",
             ""),
        ],
    },
    "create_over_the_living": {
        "breaks": "A new job takes the name of a live one.",
        "rule": "names.N1",
        "tests": ['job_segments "job: one without a ps*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ('''    if (TaskLocks(other.descriptor()).is_in_use_by_other())
      throw Error(who_is_alive(config.job, other), ErrorCode::kAlreadyExists);
    if (remove_job(config.job, -1, {}, job.trust_) != RemoveOutcome::kAlive) continue;''',
             "        if (remove_job(config.job, -1, {}, job.trust_) != RemoveOutcome::kAlive) continue;"),
        ],
    },
    "create_unlocked": {
        "breaks": "A new job gets its name before its owner has its byte.",
        "rule": "names.N1",
        "tests": ['job_segments "job: a created one*"',
                  'job_segments "job: a second ps*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ('''  if (!job.locks().try_take(kTaskByte))
    throw Error("cannot lock a new segment: the file system of /dev/shm must support OFD locks", ErrorCode::kSystem);
''',
             ""),
        ],
    },
    "create_unpublished": {
        "breaks": "A new job is not published.",
        "rule": "names.N6",
        "tests": ['job_segments "job: a created one*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ("  job.control_.publish();\n",
             ""),
        ],
    },
    "remove_another": {
        "breaks": "A job is removed by a descriptor that its name does not lead to.",
        "rule": "names.N2",
        "tests": ['job_segments "job: a ps whose segments were deleted*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ("  if (leads_to(name, descriptor)) {  // names.N2: the name still leads to it",
             "  if (own >= 0 || leads_to(name, descriptor)) {  // names.N2: the name still leads to it"),
        ],
    },
    "remove_keeps_bytes": {
        "breaks": "The process that removes a job keeps its bytes.",
        "rule": "names.N3",
        "tests": ['job_segments "job: *"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ("  locks.release_all();  // the next process to take a byte finds that the name is gone (names.N3)\n",
             ""),
        ],
    },
    "remove_living": {
        "breaks": "A job is removed although processes of it are alive.",
        "rule": "names.N2",
        "tests": ['job_segments "job: removing a live one*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ("  if (!locks.try_take_all()) return RemoveOutcome::kAlive;  // names.N2: no ps, worker or joiner has any byte\n",
             ""),
        ],
    },
    "remove_strangers_files": {
        "breaks": "Removing a job also removes segments whose names start with its name.",
        "rule": "names.N2",
        "tests": ['job_segments "job: removing it does not affect files*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ("    if (!is_part_of(job, name)) continue;\n",
             ""),
        ],
    },
    "shard_of_another_instance": {
        "breaks": "A shard of another job of the same name is mapped.",
        "rule": "names.N4",
        "tests": ['job_segments "job: a shard of another*"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ("  if (shard.header().instance != instance()) return false;  // names.N4: being removed, or another job by now\n",
             ""),
        ],
    },
    "task_of_orphan": {
        "breaks": "A task takes its byte in a job that has lost its name.",
        "rule": "names.N3",
        "tests": ['job_segments "job: *"'],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ('''  if (is_orphaned()) {
    locks().release(kTaskByte + task);
    return false;
  }
''',
             ""),
        ],
    },
    "task_refused_keeps_byte": {
        "breaks": "A task that is refused keeps its byte.",
        "rule": "names.N9",
        "tests": ["ending",
                  "tasks",
                  "adopting"],
        "file": "src/shm/segment/job_segments.cpp",
        "changes": [
            ('''    locks().release(kTaskByte + task);
    remove_if_ended(*this);  // names.N9''',
             "    remove_if_ended(*this);  // names.N9"),
        ],
    },
    "settings_in_place": {
        "breaks": "A change writes to the record that is read.",
        "rule": "settings.S2",
        "tests": ['PS_SHM_WEAK_SCENE=settings weak_weak "weak: futexes*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("  write_live(job.state().live[(before.version + 1) % kLiveRecords], settings, epoch);  // (settings.S2)",
             "  write_live(job.state().live[before.version % kLiveRecords], settings, epoch);  // (settings.S2)"),
        ],
    },
    "settings_keep_byte": {
        "breaks": "A process that has changed the settings keeps the setter's byte.",
        "rule": "settings.S1",
        "tests": ['live_settings "live settings: the setter*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ('''  job.locks().release(kSetterByte);
  fault_point(FaultPoint::kSetReleased);''',
             "  fault_point(FaultPoint::kSetReleased);"),
        ],
    },
    "settings_keep_epoch": {
        "breaks": "A change to ssp does not start a new epoch of clocks.",
        "rule": "settings.S2",
        "tests": ['live_settings "live settings: each change to mode ssp*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("      before.clock_epoch + (has_clocks(settings.mode) && !has_clocks(before.settings.mode) ? 1 : 0);",
             "      before.clock_epoch + (has_clocks(settings.mode) && false ? 1 : 0);"),
        ],
    },
    "settings_moved_first": {
        "breaks": "The version advances before the record is written.",
        "rule": "settings.S3",
        "tests": ['PS_SHM_WEAK_SCENE=settings weak_weak "weak: futexes*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("  write_live(job.state().live[(before.version + 1) % kLiveRecords], settings, epoch);  // (settings.S2)",
             '''  job.state().live_version.store_release(before.version + 1);
  write_live(job.state().live[(before.version + 1) % kLiveRecords], settings, epoch);  // (settings.S2)'''),
        ],
    },
    "settings_no_second_look": {
        "breaks": "A reader of the settings does not check the version again.",
        "rule": "settings.S4",
        "tests": ['PS_SHM_WEAK_SCENE=settings weak_weak "weak: futexes*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("    if (job.state().live_version.load_relaxed() - live.version < kLiveRecords - 1) return live;",
             "    return live;"),
        ],
    },
    "settings_read_before_lock": {
        "breaks": "The settings on which a change is based are read before the byte is held.",
        "rule": "settings.S1",
        "tests": ['interleavings "moments: a setter reads*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ('''  if (!job.locks().try_take(kSetterByte)) return false;  // (settings.S1)
  fault_point(FaultPoint::kSetLocked);
  const Live before = read_live(job);''',
             '''  const Live before = read_live(job);
  if (!job.locks().try_take(kSetterByte)) return false;  // (settings.S1)
  fault_point(FaultPoint::kSetLocked);'''),
        ],
    },
    "settings_throw_keeps_byte": {
        "breaks": "A change that throws keeps the setter's byte.",
        "rule": "settings.S1",
        "tests": ['live_settings "live settings: a change that throws*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("    job.locks().release(kSetterByte);\n",
             ""),
        ],
    },
    "settings_two_records_too_late": {
        "breaks": "A reader accepts a record that is being rewritten.",
        "rule": "settings.S4",
        "tests": ['PS_SHM_WEAK_SCENE=settings weak_weak "weak: futexes*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("    if (job.state().live_version.load_relaxed() - live.version < kLiveRecords - 1) return live;",
             "    if (job.state().live_version.load_relaxed() - live.version < kLiveRecords + 1) return live;"),
        ],
    },
    "settings_unfenced": {
        "breaks": "A record of settings is written without a fence.",
        "rule": "settings.S2",
        "tests": ['PS_SHM_WEAK_SCENE=settings weak_weak "weak: futexes*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("  fence_release();  // (settings.S2) pairs with settings.S4: a reader of a new field finds the version near it\n",
             ""),
        ],
    },
    "settings_unlocked": {
        "breaks": "Two processes change the settings at the same time.",
        "rule": "settings.S1",
        "tests": ['live_settings "live settings: a change is refused*"'],
        "file": "src/shm/segment/live_settings.cpp",
        "changes": [
            ("  if (!job.locks().try_take(kSetterByte)) return false;  // (settings.S1)",
             "  if (!job.locks().try_take(kSetterByte) && job.ranks() == 0) return false;  // (settings.S1)"),
        ],
    },
    "locks_all_but_one": {
        "breaks": "A process that takes all bytes omits the last one.",
        "rule": "names.N2",
        "tests": ["liveness"],
        "file": "src/shm/segment/liveness.cpp",
        "changes": [
            ("bool TaskLocks::try_take_all() const noexcept { return set(descriptor_, F_WRLCK, 0, kLockBytes); }",
             "bool TaskLocks::try_take_all() const noexcept { return set(descriptor_, F_WRLCK, 0, kRankByte); }"),
        ],
    },
    "locks_of_the_process": {
        "breaks": "Locks are those of the process, not of the descriptor.",
        "rule": "locks.L1",
        "tests": ["liveness"],
        "file": "src/shm/segment/liveness.cpp",
        "changes": [
            ("  return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;",
             "  return fcntl(descriptor, F_SETLK, &lock) == 0;"),
        ],
    },
    "locks_one_too_many": {
        "breaks": "Taking a byte also takes the next one.",
        "rule": "locks.L1",
        "tests": ["liveness"],
        "file": "src/shm/segment/liveness.cpp",
        "changes": [
            ("bool TaskLocks::try_take(std::uint32_t byte) const noexcept { return set(descriptor_, F_WRLCK, byte, 1); }",
             "bool TaskLocks::try_take(std::uint32_t byte) const noexcept { return set(descriptor_, F_WRLCK, byte, 2); }"),
        ],
    },
    "locks_removers_count": {
        "breaks": "The process that removes a job counts as alive in it.",
        "rule": "names.N2",
        "tests": ["job_segments",
                  "adopting",
                  "ending",
                  "worker_table"],
        "file": "src/shm/segment/liveness.cpp",
        "changes": [
            ("  return lock.l_start + lock.l_len <= kRemoverByte;",
             "  return true;"),
        ],
    },
    "exec_keeps_descriptors": {
        "breaks": "A program that a worker starts inherits its locks.",
        "rule": "locks.L2",
        "tests": ['segment "segment: its descriptor*"'],
        "file": "src/shm/base/open_file.cpp",
        "changes": [
            ("  const int descriptor = ::open(path, flags | O_CLOEXEC, mode);",
             "  const int descriptor = ::open(path, flags, mode);"),
        ],
    },
    "lock_on_low_descriptor": {
        "breaks": "The descriptor with a process's lock keeps its low number, so the lock goes last.",
        "rule": "locks.L6",
        "tests": ['segment "segment: a raised descriptor has*"'],
        "file": "src/shm/base/open_file.cpp",
        "changes": [
            ("  if (entry_->descriptor >= first) return;",
             "  if (entry_->descriptor >= 0) return;"),
        ],
    },
    "hidden_names_stay": {
        "breaks": "Hidden files of dead creators stay, where files cannot be without a name.",
        "rule": "names.N1",
        "tests": ['segment "segment: where files cannot be*"'],
        "file": "src/shm/segment/segment.cpp",
        "changes": [
            ("    if (dead.open(path_of(left).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK) && try_lock(dead)) unlink_segment(left);",
             "    static_cast<void>(dead), static_cast<void>(left);"),
        ],
    },
    "fork_keeps_descriptors": {
        "breaks": "A forked child keeps the descriptors, and with them the locks.",
        "rule": "locks.L2",
        "tests": ['liveness "liveness: a forked child does not*"'],
        "file": "src/shm/base/open_file.cpp",
        "changes": [
            ("      ::close(std::exchange(entry->descriptor, -1));",
             "      static_cast<void>(entry->descriptor);"),
        ],
    },
    "fork_variable_viewed": {
        "breaks": "A forked child gets a view of memory that it does not have.",
        "rule": "locks.L2",
        "tests": ['forked_handles "fork: every call of a parent\'s object*"'],
        "file": "src/worker/variable.cpp",
        "changes": [
            ("  state_->job.refuse_inherited(\"worker\");\n",
             ""),
        ],
    },
    "fork_keeps_mappings": {
        "breaks": "A forked child keeps the mappings.",
        "rule": "locks.L2",
        "tests": ["forks",
                  "segment"],
        "file": "src/shm/base/open_file.cpp",
        "changes": [
            ("    if (madvise(made.get_address(), made.get_size(), MADV_DONTFORK) == 0)",
             "    if (madvise(made.get_address(), made.get_size(), MADV_NORMAL) == 0)"),
        ],
    },
    "streams_overwritten": {
        "breaks": "A segment gets the number of a standard stream.",
        "rule": "locks.L2",
        "tests": ['forks "a segment never*"'],
        "file": "src/shm/base/open_file.cpp",
        "changes": [
            ("  if (descriptor < 0 || descriptor >= kFirst) return descriptor;",
             "  if (descriptor < kFirst || descriptor >= kFirst) return descriptor;"),
        ],
    },
    "join_counted_first": {
        "breaks": "A successor is counted before it publishes the first round that it takes part in.",
        "rule": "ranks.J1",
        "tests": ['weak_weak "weak: ranks*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  entry.pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed, as all to `holders`: ranks.J1 publishes it",
             '''  entry.holders.store_release(entry.holders.load_relaxed() + 1);
  entry.pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed, as all to `holders`: ranks.J1 publishes it'''),
        ],
    },
    "join_dead_first": {
        "breaks": "A rank whose worker left is reused before that of a dead worker.",
        "rule": "ranks.J2",
        "tests": ['worker_table "joining: ranks never used*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  constexpr WorkerState kPreference[] = {WorkerState::kNever, WorkerState::kDead, WorkerState::kLeft};",
             "  constexpr WorkerState kPreference[] = {WorkerState::kNever, WorkerState::kLeft, WorkerState::kDead};"),
        ],
    },
    "join_keeps_clock": {
        "breaks": "A successor inherits its predecessor's clock.",
        "rule": "ssp.C1",
        "tests": ["ssp_clock"],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  entry.clock.store_relaxed(0);  // no epoch: it counts only after enter()\n",
             ""),
        ],
    },
    "join_keeps_push": {
        "breaks": "A push of a dead owner is attributed to its successor.",
        "rule": "snapshot.C7",
        "tests": ['worker_table "joining: *"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  entry.pushing.store_release(0);  // (snapshot.C7) a dead owner's push is over\n",
             ""),
        ],
    },
    "join_orphan": {
        "breaks": "A joining worker does not check whether the job still has its name.",
        "rule": "names.N3",
        "tests": ['worker_table "joining: a job that has been removed*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  if (job.is_orphaned()) {  // names.N3",
             "  if (job.is_orphaned() && rank == ~0U) {  // names.N3"),
        ],
    },
    "join_refused_keeps_byte": {
        "breaks": "A worker whose join is refused keeps the byte that it has taken.",
        "rule": "names.N9",
        "tests": ['ending "ending: a process that is refused*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ('''    job.locks().release(kRankByte + rank);
    remove_if_ended(job);  // names.N9
''',
             ""),
        ],
    },
    "join_takes_part_at_once": {
        "breaks": "A worker that joins during a round takes part in it.",
        "rule": "barrier.B1",
        "tests": ['worker_table "joining: before*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("        round == job.first_round(which) ? round : round + 1);",
             "        round);"),
        ],
    },
    "join_while_removed": {
        "breaks": "A joining worker does not check whether the job is being removed.",
        "rule": "names.N2",
        "tests": ['worker_table "joining: a job that is being removed*"'],
        "survives": "the remover holds every byte, so taking one fails, and the same check follows",
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  if (job.locks().is_being_removed()) return JoinOutcome::kJobRemoved;\n",
             ""),
        ],
    },
    "leave_stays": {
        "breaks": "The last process to leave an ended job does not remove it.",
        "rule": "names.N9",
        "tests": ["ending"],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ('''  remove_if_ended(job);  // names.N9
}''',
             "}"),
        ],
    },
    "leave_unlocks_first": {
        "breaks": "A leaving worker releases its byte before it records that it leaves.",
        "rule": "locks.L5",
        "tests": ['interleavings "moments: a leaving worker*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  entry.left_ns.store_relaxed(now_ns());",
             '''  job.locks().release(kRankByte + rank);
  entry.left_ns.store_relaxed(now_ns());'''),
        ],
    },
    "leave_unsaid": {
        "breaks": "A leaving worker does not record that it leaves.",
        "rule": "ranks.J3",
        "tests": ['worker_table "leaving*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  entry.state.store_release(static_cast<std::uint32_t>(RankState::kLeft));  // (ranks.J3) after `published`\n",
             ""),
        ],
    },
    "state_left_unseen": {
        "breaks": "A worker that leaves between two checks is reported as dead.",
        "rule": "ranks.J4",
        "tests": ['weak_weak "weak: ranks*"'],
        "file": "src/shm/steps/worker_table.cpp",
        "changes": [
            ("  return has_left() ? WorkerState::kLeft : WorkerState::kDead;  // it may have left between the two reads",
             "  return WorkerState::kDead;  // it may have left between the two reads"),
        ],
    },
}
