"""Workers: declaring, rows, gradients, sync and free steps, joining. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "barrier_arrives_again": {
        "breaks": "A barrier() after one that threw arrives again.",
        "rule": "barrier",
        "tests": ['worker "after a barrier that threw*"'],
        "file": "src/worker/worker.cpp",
        "changes": [
            ("  impl.arrived_in = round;\n",
             ""),
        ],
    },
    "init_accumulator_last": {
        "breaks": "A variable is initialized before its accumulator.",
        "rule": "directory.D6",
        "tests": ['interleavings "moments: a first part*"'],
        "file": "src/worker/declaring.cpp",
        "changes": [
            ('''    if (part->accumulator_record != nullptr)
      part->accumulator_record->init.store_release(shm::kInitialised);  // (directory.D6)
    shm::fault_point(shm::FaultPoint::kInitPart);
    part->record.init.store_release(shm::kInitialised);  // (directory.D6)''',
             '''    part->record.init.store_release(shm::kInitialised);  // (directory.D6)
    shm::fault_point(shm::FaultPoint::kInitPart);
    if (part->accumulator_record != nullptr)
      part->accumulator_record->init.store_release(shm::kInitialised);  // (directory.D6)'''),
        ],
    },
    "init_claim_kept": {
        "breaks": "An initializer that throws keeps its claim.",
        "rule": "directory.D5",
        "tests": ['declaring "an initialiser that throws*"'],
        "file": "src/worker/declaring.cpp",
        "changes": [
            ("      record.init.store_release(0);  // (directory.D5) the next one may try\n",
             ""),
        ],
    },
    "init_claim_of_a_predecessor": {
        "breaks": "A dead initializer whose rank has a live successor is considered alive.",
        "rule": "directory.D5",
        "tests": ['declaring "an initialiser that dies is replaced while*"'],
        "file": "src/worker/declaring.cpp",
        "changes": [
            ("    if (of < job.ranks() && claim >> 16 != job.worker(of).holders.load_acquire()) return true;  // (ranks.J4)\n",
             ""),
        ],
    },
    "init_claim_of_the_dead": {
        "breaks": "A dead initializer is waited for.",
        "rule": "directory.D5",
        "tests": ['declaring "an initialiser that dies is replaced by*"'],
        "file": "src/worker/declaring.cpp",
        "changes": [
            ("    if (claim == shm::kInitialised || initialize == nullptr || (claim != 0 && !is_dead(claim))) return;",
             "    if (claim == shm::kInitialised || initialize == nullptr || claim != 0) return;"),
        ],
    },
    "init_first_part_first": {
        "breaks": "The first part is initialized before the other parts of the variable.",
        "rule": "directory.D6",
        "tests": ['interleavings "moments: a first part*"'],
        "file": "src/worker/declaring.cpp",
        "changes": [
            ("  for (auto part = state.parts.rbegin(); part != state.parts.rend(); ++part) {",
             "  for (auto part = state.parts.begin(); part != state.parts.end(); ++part) {"),
        ],
    },
    "init_values_behind": {
        "breaks": "A variable is marked as initialized before it has its values.",
        "rule": "directory.D6",
        "tests": ['interleavings "moments: a first part*"'],
        "file": "src/worker/declaring.cpp",
        "changes": [
            ("  state.set_values(given.floats(), live.settings.learning_rate, first ? *first : FirstState());",
             '''  state.parts.front().record.init.store_release(shm::kInitialised);
  state.set_values(given.floats(), live.settings.learning_rate, first ? *first : FirstState());'''),
        ],
    },
    "age_by_chunk": {
        "breaks": "Each push of a step is decided by itself.",
        "rule": "steps.D2",
        "tests": ['age_limit "age limit: the first push decides*"'],
        "file": "src/worker/free_steps.cpp",
        "changes": [
            ("  if (!core_.notes_pulls) return false;\n  return age_.is_decided() ? age_.drops() : decide(is_too_old());\n",
             "  return decide(is_too_old());\n"),
        ],
    },
    "age_of_own_steps": {
        "breaks": "A worker's own steps age its gradient.",
        "rule": "steps.D1",
        "tests": ['age_limit "age limit: own steps*"'],
        "file": "src/worker/age_limit.hpp",
        "changes": [
            ("    if (last_pull_) ++*last_pull_;\n",
             ""),
        ],
    },
    "age_of_the_last_pull": {
        "breaks": "The last pull of a step counts, not the first one.",
        "rule": "steps.D1",
        "tests": ['age_limit "age limit: the first pull*"'],
        "file": "src/worker/age_limit.hpp",
        "changes": [
            ("    if (!pull) pull = global_step;\n",
             "    pull = global_step;\n"),
        ],
    },
    "age_of_the_next_pull": {
        "breaks": "A pull after the first push of a step does not count for the next step.",
        "rule": "steps.D1",
        "tests": ['age_limit "age limit: a push that copies back*"'],
        "file": "src/worker/age_limit.hpp",
        "changes": [
            ("    pull_ = next_pull_;\n",
             "    pull_.reset();\n"),
        ],
    },
    "age_dropped_is_counted": {
        "breaks": "A dropped step is counted.",
        "rule": "steps.D3",
        "tests": ['age_limit'],
        "file": "src/worker/free_steps.cpp",
        "changes": [
            ("  if (is_dropped()) [[unlikely]]\n    return end_dropped_step(true);\n",
             ""),
        ],
    },
    "age_of_rows": {
        "breaks": "A pull of rows is not noted.",
        "rule": "steps.D1",
        "tests": ['age_limit "age limit: the first push decides*"'],
        "file": "src/worker/rows.cpp",
        "changes": [
            ('  static_cast<void>(require_rows(state, ids, out.size(), "pull"));\n  note_pull();\n',
             '  static_cast<void>(require_rows(state, ids, out.size(), "pull"));\n'),
        ],
    },
    "age_of_a_scalar": {
        "breaks": "The short path of a scalar does not ask for the age limit.",
        "rule": "steps.D2",
        "tests": ['age_limit "age limit: the first push decides*"'],
        "file": "src/worker/pushing.cpp",
        "changes": [
            ("  if (!state.is_scalar || impl.limits_pushes) return",
             "  if (!state.is_scalar || impl.live.settings.clip_norm > 0) return"),
        ],
    },
    "steps_end_unseen": {
        "breaks": "The end of the job does not end a wait of ssp.",
        "rule": "names.N7",
        "tests": ['modes "ssp: the end of a job*"'],
        "file": "src/worker/free_steps.cpp",
        "changes": [
            ("        core_.job.state().clocks, [&] { return may_begin(false) || core_.job.is_over(); },",
             "        core_.job.state().clocks, [&] { return may_begin(false); },"),
        ],
    },
    "steps_uncounted_clock": {
        "breaks": "A step of ssp does not advance the clock.",
        "rule": "ssp.C3",
        "tests": ['modes "ssp*"'],
        "file": "src/worker/free_steps.cpp",
        "changes": [
            ("  if (is_bounded()) clock_.advance();\n",
             ""),
        ],
    },
    "steps_wait_in_async": {
        "breaks": "A change to async does not release waiting workers.",
        "rule": "settings.S4",
        "tests": ['modes "ssp: a change to async*"'],
        "file": "src/worker/free_steps.cpp",
        "changes": [
            ("    refresh_live();\n    if (!is_bounded()) return true;\n",
             "    if (!is_bounded()) return true;\n"),
        ],
    },
    "gradient_noted_before_its_name": {
        "breaks": "A gradient segment is recorded before it has its name.",
        "rule": "barrier.G1",
        "tests": ['interleavings "moments: a gradient segment*"'],
        "file": "src/worker/gradients.cpp",
        "changes": [
            ("  shm::fault_point(shm::FaultPoint::kGradientMade);",
             '''  entry.generation.store_release(now);
  shm::fault_point(shm::FaultPoint::kGradientMade);'''),
        ],
    },
    "gradient_of_another_instance": {
        "breaks": "A gradient segment of another job of the same name is read.",
        "rule": "names.N4",
        "tests": ['published_gradient "published gradient: a segment of another*"'],
        "file": "src/worker/gradients.cpp",
        "changes": [
            ("      !other.segment.is_of(shm::SegmentKind::kGradient, rank, job_.job(), job_.instance()))",
             "      other.segment.mapped_bytes() == 0)"),
        ],
    },
    "gradient_of_any_step": {
        "breaks": "A gradient of another step counts.",
        "rule": "barrier.B5",
        "tests": ['worker "a sync step applies what*"',
                  'modes "sync*"'],
        "file": "src/worker/gradients.cpp",
        "changes": [
            ("  if (step_of(tag) != step) return {};\n",
             ""),
        ],
    },
    "leaver_unlinks_gradient": {
        "breaks": "A leaving worker unlinks the gradient with which it has arrived.",
        "rule": "barrier.B4",
        "tests": ['published_gradient "published gradient: a worker that leaves*"'],
        "file": "src/worker/gradients.cpp",
        "changes": [
            ("  if (published <= job_.steps_done()) shm::unlink_segment(own_.name());",
             "  if (published <= job_.steps_done() + 1) shm::unlink_segment(own_.name());"),
        ],
    },
    "take_over_begins_nothing": {
        "breaks": "A worker that takes over a rank does not recover its free buffers.",
        "rule": "slot.V6",
        "tests": ["kill_matrix"],
        "file": "src/worker/joining.cpp",
        "changes": [
            ("  has_recovered = shm::recover_buffers(job, rank, job.locks());",
             "  has_recovered = true;"),
        ],
    },
    "rows_any_slot": {
        "breaks": "Ids with the same position in the hash table are treated as equal.",
        "rule": "rows",
        "tests": ['rows "rows: many repeated*"'],
        "file": "src/worker/row_sums.cpp",
        "changes": [
            ("      if (is_new || unique[index] == id) break;",
             "      if (is_new || unique[index] != ~Id{0}) break;"),
        ],
    },
    "rows_assigned_in_any_order": {
        "breaks": "If rows are assigned twice, an arbitrary value remains.",
        "rule": "rows",
        "tests": ['rows "rows: if a row is assigned*"'],
        "file": "src/worker/row_access.cpp",
        "changes": [
            ("    threads.split(ids.size(), is_in_order ? ids.size() : grain(),",
             "    threads.split(ids.size(), grain(),"),
        ],
    },
    "rows_counted_by_row": {
        "breaks": "A push is counted in a block once for each of its rows.",
        "rule": "inplace.P5",
        "tests": ['rows "rows: staleness*"'],
        "file": "src/worker/row_access.cpp",
        "changes": [
            ("        found += block != previous;",
             "        found += block != table_.blocks();"),
        ],
    },
    "rows_group_forgotten": {
        "breaks": "A push is counted twice in a block whose rows lie in two groups.",
        "rule": "inplace.P5",
        "tests": ['rows "rows: a push counts once*"'],
        "file": "src/worker/row_access.cpp",
        "changes": [
            ("      std::size_t found = 0;",
             "      std::size_t found = 0; previous = table_.blocks();"),
        ],
    },
    "rows_last_gradient_wins": {
        "breaks": "For repeated ids in a large table only the last gradient counts.",
        "rule": "rows",
        "tests": ['rows "rows: many repeated*"'],
        "file": "src/worker/row_sums.cpp",
        "changes": [
            ("  for (std::size_t k = 0; k < width; ++k) sum[k] = (is_first ? 0.0F : sum[k]) + row[k];",
             "  for (std::size_t k = 0; k < width; ++k) sum[k] = row[k] + (is_first ? 0.0F : 0.0F * sum[k]);"),
        ],
    },
    "rows_sorted_by_some_digits": {
        "breaks": "Many ids are sorted by their last digit only.",
        "rule": "rows",
        "tests": ['rows "rows: thousands of repeated*"'],
        "file": "src/worker/row_sums.cpp",
        "changes": [
            ("  for (unsigned digit = 0; digit < digits; ++digit) {",
             "  for (unsigned digit = 0; digit < 1; ++digit) {"),
        ],
    },
    "rows_sorted_unstably": {
        "breaks": "Many repeated ids are summed in another order than that in which they occur.",
        "rule": "rows",
        "tests": ['rows "rows: thousands of repeated*"'],
        "file": "src/worker/row_sums.cpp",
        "changes": [
            ("  for (std::size_t i = 0; i < count; ++i) order_[i] = std::uint64_t{ids[i]} << 32 | i;",
             "  for (std::size_t i = 0; i < count; ++i) order_[i] = std::uint64_t{ids[count - 1 - i]} << 32 | (count - 1 - i);"),
        ],
    },
    "rows_own_pushes_count": {
        "breaks": "A worker's own pushes count as staleness of rows.",
        "rule": "inplace.P5",
        "tests": ['rows "rows: staleness*"'],
        "file": "src/worker/row_access.cpp",
        "changes": [
            ("    if (rank != rank_) pushes += watch.part->variable.row_pushes(watch.block, rank);",
             "    pushes += watch.part->variable.row_pushes(watch.block, rank);"),
        ],
    },
    "rows_sums_stay": {
        "breaks": "The sums of one push are included in the next one, too.",
        "rule": "rows",
        "tests": ['rows "rows: *"'],
        "file": "src/worker/row_sums.cpp",
        "changes": [
            ("      for (std::size_t k = 0; k < width; ++k) sums_[found * width + k] = std::exchange(places_[id * width + k], 0.0F);",
             "      for (std::size_t k = 0; k < width; ++k) sums_[found * width + k] = places_[id * width + k];"),
        ],
    },
    "rows_unchecked": {
        "breaks": "Ids that are not in ascending order are not checked.",
        "rule": "rows",
        "tests": ['rows "rows: an id out of range*"'],
        "file": "src/worker/row_access.cpp",
        "changes": [
            ("  const auto found = std::find_if(ids.begin(), ids.end(), [&](Id id) { return id >= table_.rows(); });",
             "  const auto found = std::find_if(ids.begin(), ids.end(), [&](Id id) { return id >= table_.rows() && are_ascending; });"),
        ],
    },
    "rows_clipped_apart": {
        "breaks": "The norm of a push is computed before repeated ids are combined.",
        "rule": "rows",
        "tests": ['rows "rows: clip_norm*"'],
        "file": "src/worker/rows.cpp",
        "changes": [
            ('''  if (!are_ascending) are_ascending = state.rows->combine(ids, gradients);
  float scale = 1.0F;
  if (limits_pushes && live.settings.clip_norm > 0 && state.is_clipped())
    scale = update::clip_scale(update::squared_norm(gradients.data(), gradients.size()), live.settings.clip_norm);''',
             '''  float scale = 1.0F;
  if (limits_pushes && live.settings.clip_norm > 0 && state.is_clipped())
    scale = update::clip_scale(update::squared_norm(gradients.data(), gradients.size()), live.settings.clip_norm);
  if (!are_ascending) are_ascending = state.rows->combine(ids, gradients);'''),
        ],
    },
    "rows_rate_stays": {
        "breaks": "The learning rate of rows does not follow the schedule.",
        "rule": "rows",
        "tests": ['rows "rows: the learning-rate*"'],
        "file": "src/worker/core.hpp",
        "changes": [
            ("  if (step != rate_step || base != rate_base) {  // a schedule's factor costs more than a short push",
             "  if (base != rate_base) {  // a schedule's factor costs more than a short push"),
        ],
    },
    "data_byte_kept": {
        "breaks": "A loader that throws keeps its byte.",
        "rule": "data.D3",
        "tests": ['shared_data "shared data: a loader that throws*"'],
        "file": "src/worker/sharing.cpp",
        "changes": [
            ("    job.locks().release(shm::kLoaderByte);  // the next one may try\n",
             ""),
        ],
    },
    "data_loaded_again": {
        "breaks": "A process that has the loader's byte loads even if the data exists.",
        "rule": "data.D2",
        "tests": ['interleavings "moments: a process that gets the loader*"'],
        "file": "src/worker/sharing.cpp",
        "changes": [
            ("    if (!shm::SharedData::try_attach(job)) shm::SharedData::make(job, key, load);  // else another was faster",
             "    shm::SharedData::make(job, key, load);"),
        ],
    },
    "gradient_of_the_newest_step": {
        "breaks": "A gradient is attributed to the step in which it is pushed, whatever step it was computed for.",
        "rule": "barrier.B6",
        "tests": ['modes "quorum*"'],
        "file": "src/worker/sync_steps.cpp",
        "changes": [
            ("    pushed_for_ = pulled_in_.value_or(barrier_.round());  // the step whose values the gradient was computed from",
             "    pushed_for_ = barrier_.round();  // the step whose values the gradient was computed from"),
        ],
    },
    "late_gradient_kept": {
        "breaks": "A gradient for a completed step is used in the next one.",
        "rule": "barrier.B6",
        "tests": ['modes "quorum: a gradient that comes too late*"'],
        "file": "src/worker/sync_steps.cpp",
        "changes": [
            ("  if (!arrived_in_ && ((has_pushed_ && pushed_for_ != round) || core_.job.is_finished())) {",
             "  if (!arrived_in_ && core_.job.is_finished()) {"),
        ],
    },
    "pushes_into_published": {
        "breaks": "A push changes the gradient that was published.",
        "rule": "barrier.B6",
        "tests": ['published_gradient "published gradient: a push after*"'],
        "file": "src/worker/sync_steps.cpp",
        "changes": [
            ("  check_push();\n",
             ""),
        ],
    },
    "successor_replaces_gradient": {
        "breaks": "A successor replaces the gradient with which its predecessor had arrived.",
        "rule": "barrier.B4",
        "tests": ['published_gradient "published gradient: a successor*"'],
        "file": "src/worker/sync_steps.cpp",
        "changes": [
            ("  if (barrier_.has_arrived(round)) finish(round);  // barrier.B4: its gradient counts; nothing of it is overwritten\n",
             ""),
        ],
    },
    "sum_void_counts": {
        "breaks": "Changes that a predecessor had not published count.",
        "rule": "barrier.B13",
        "tests": ["sync_changes",
                  "modes",
                  "published_gradient"],
        "file": "src/worker/sync_steps.cpp",
        "changes": [
            ("    core_.entry.barriers[0].changed.store_relaxed(0);  // (barrier.B13) discards what a predecessor has not published",
             "    ;"),
        ],
    },
    "combined_in_any_order": {
        "breaks": "Each helper combines gradients in another order.",
        "rule": "barrier.B5",
        "tests": ["modes",
                  "sync_changes",
                  "worker"],
        "file": "src/worker/sync_work.cpp",
        "changes": [
            ('''  for (std::uint32_t rank = 0; rank < core_.job.ranks(); ++rank)
    if (decision.contributors.contains(rank)) contributors_.push_back({rank, 1.0F});''',
             '''  for (std::uint32_t i = 0; i < core_.job.ranks(); ++i)
    if (const std::uint32_t rank = (i + core_.rank) % core_.job.ranks(); decision.contributors.contains(rank))
      contributors_.push_back({rank, 1.0F});'''),
        ],
    },
    "sum_missing_is_zero": {
        "breaks": "A sum of a completed step is treated as empty.",
        "rule": "barrier.B9",
        "tests": ['modes "reduce atomic*"',
                  "stress_accumulator"],
        "survives": "a sum is missing only after its step, when another worker has swapped the chunk: this swap fails",
        "file": "src/worker/sync_work.cpp",
        "changes": [
            ('''      return whole &&
             found;  // barrier.B9: checked again before the swap; not found: the step is over, the chunk includes it''',
             "      return whole;  // barrier.B9: checked again before the swap; not found: the step is over, the chunk includes it"),
        ],
    },
    "sum_not_looked_at_again": {
        "breaks": "A sum that has changed during its use is applied.",
        "rule": "barrier.B9",
        "tests": ['interleavings "moments: a sum*"'],
        "file": "src/worker/sync_work.cpp",
        "changes": [
            ("      return whole &&",
             "      return (whole || found) &&"),
        ],
    },
    "sum_of_the_late": {
        "breaks": "A sum is applied to which only a late worker has contributed.",
        "rule": "barrier.B9",
        "tests": ['modes "reduce atomic*"'],
        "file": "src/worker/sync_work.cpp",
        "changes": [
            ("    const bool has_sum = target.accumulator->has_sum(chunk, step, decision.contributors);",
             '''    shm::RankSet anybody;
    for (std::uint32_t rank = 0; rank < core_.job.ranks(); ++rank) anybody.insert(rank);
    const bool has_sum = target.accumulator->has_sum(chunk, step, anybody);'''),
        ],
    },
    "sync_left_to_others": {
        "breaks": "A helper without a chunk to start with leaves the step to the others, complete or not.",
        "rule": "barrier.B5",
        "tests": ['modes "sync:*"'],
        "file": "src/worker/sync_work.cpp",
        "changes": [
            ("  return is_over();",
             "  return !has_own || is_over();"),
        ],
    },
    "values_assigned_last": {
        "breaks": "Values are assigned after the step.",
        "rule": "barrier.B13",
        "tests": ["sync_changes"],
        "file": "src/worker/sync_work.cpp",
        "changes": [
            ("    step(out, now);",
             "    step(out, in);"),
        ],
    },
    "push_keeps_momentum": {
        "breaks": "A push uses the momentum with which the job began.",
        "rule": "settings.S4",
        "tests": ['optimizers "live: a changed momentum*"'],
        "file": "src/worker/free_steps.cpp",
        "changes": [
            ("      state.follow(core_.live.settings);\n",
             ""),
        ],
    },
    "sync_keeps_momentum": {
        "breaks": "A sync step uses the momentum with which the job began.",
        "rule": "barrier.B8",
        "tests": ['optimizers "live: a changed momentum*"'],
        "file": "src/worker/sync_work.cpp",
        "changes": [
            ("    target.settings.momentum = decision.momentum;\n",
             ""),
        ],
    },
    "copied_back_without_versions": {
        "breaks": "A push that copies back does not say which versions it has copied.",
        "rule": "slot.R1",
        "tests": ['pull_all "a push that copies back leaves*"'],
        "file": "src/worker/versioned_state.cpp",
        "changes": [
            ("        gradient.versions()[index] = pulled[index];\n",
             ""),
        ],
    },
}
