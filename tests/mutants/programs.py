"""The server and the launcher. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "server_adopts_any_settings": {
        "breaks": "A job is taken over with other settings.",
        "rule": "names.N5",
        "tests": ['adopting "adopting: fixed settings*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  check_same(job->config(), config);\n",
             ""),
        ],
    },
    "server_adopts_from_the_living": {
        "breaks": "A job with a live ps is taken over.",
        "rule": "names.N5",
        "tests": ['adopting "adopting: a job with a live*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  if (is_alive && job->locks().is_held_by_other(shm::kTaskByte) && !job->locks().is_being_removed()) {",
             "  if (is_alive && job->locks().is_being_removed()) {"),
        ],
    },
    "server_adopts_the_ended": {
        "breaks": "A job that was ended is taken over while workers of it are alive.",
        "rule": "names.N7",
        "tests": ['adopting "adopting: a job that was ended*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("    if (is_alive || !try_revive(*job)) return std::nullopt;",
             "    if (!is_alive && !try_revive(*job)) return std::nullopt;"),
        ],
    },
    "server_adopts_unasked": {
        "breaks": "A dead job is resumed although nobody asked for it.",
        "rule": "names.N5",
        "tests": ['adopting "adopting: a dead job is begun*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  if (!is_alive && !options.adopt) return std::nullopt;  // the remains of a dead job, for the next creator to remove\n",
             ""),
        ],
    },
    "server_adopts_uncounted": {
        "breaks": "A ps that takes over a job is not counted.",
        "rule": "names.N5",
        "tests": ['adopting "adopting: a plain*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  const std::uint32_t servers = job->state().servers.fetch_add_acq_rel(1) + 1;  // (names.N5)",
             "  const std::uint32_t servers = job->state().servers.load_acquire() + 1;  // (names.N5)"),
        ],
    },
    "server_begins_at_zero": {
        "breaks": "A job that starts from a checkpoint has no decision.",
        "rule": "barrier.B3",
        "tests": ["hooks",
                  "checkpoint"],
        "file": "src/server/server.cpp",
        "changes": [
            ("  job.barrier(0).decision.store_relaxed(shm::make_decision(step, 0, 0));\n",
             ""),
        ],
    },
    "server_bytes_last": {
        "breaks": "An ending task keeps its byte while it checks whether it is the last one.",
        "rule": "names.N2",
        "tests": ['interleavings "moments: an ending ps task*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  for (const std::uint32_t task : impl_->own_tasks) impl_->job.locks().release(shm::kTaskByte + task);\n",
             ""),
        ],
    },
    "server_child_removes": {
        "breaks": "A forked child ends its parent's job.",
        "rule": "locks.L2",
        "tests": ["worker",
                  "liveness",
                  "tasks",
                  "adopting"],
        "file": "src/server/server.cpp",
        "changes": [
            ("  if (!impl_ || impl_->owner != getpid()) return;  // children of clone() are covered, too (locks.L2)",
             "  if (!impl_) return;  // a forked child has no lock (locks.L2)"),
        ],
    },
    "server_end_overwritten": {
        "breaks": "The last reason given replaces the first.",
        "rule": "names.N7",
        "tests": ['ending "ending: a task that ends a job*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  const bool is_first = job.state().ended.try_exchange_acq_rel(said, static_cast<std::uint32_t>(why));  // (names.N7)",
             '''  const bool is_first = said == static_cast<std::uint32_t>(shm::JobEnd::kNotYet);
  job.state().ended.store_release(static_cast<std::uint32_t>(why));'''),
        ],
    },
    "server_ends_with_the_first": {
        "breaks": "A job ends with the first of its workers.",
        "rule": "names.N7",
        "tests": ['ending "ending: a job continues until*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ('''    const bool everybody_came = census.ever_joined >= config.workers && !census.any_worker_alive;
    // A job without a last step is done when all of its workers have left.
    if (everybody_came && (impl.job.is_finished() || (config.steps == 0 && census.left == census.ever_joined)))''',
             '''    const bool everybody_came = census.ever_joined >= config.workers;
    // A job without a last step is done when all of its workers have left.
    if (everybody_came && (impl.job.is_finished() || (config.steps == 0 && census.left != 0)))'''),
        ],
    },
    "server_leaves_at_once": {
        "breaks": "A ps ends as soon as nobody is alive.",
        "rule": "names.N7",
        "tests": ['ending "ending: a ps without a worker*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("      if (double(now - alone_since) * 1e-9 >= config.linger_seconds) return impl.end(shm::JobEnd::kLingerOver, hooks);",
             "      if (double(now - alone_since) * 1e-9 >= 0) return impl.end(shm::JobEnd::kLingerOver, hooks);"),
        ],
    },
    "server_no_farewell": {
        "breaks": "A ps that ends its job does not wait for the workers to leave.",
        "rule": "names.N7",
        "tests": ['ending "ending: a ps that is asked to end*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  wait_for_farewells(hooks);\n",
             ""),
        ],
    },
    "server_removes_kept": {
        "breaks": "Segments that should be kept are removed.",
        "rule": "names.N8",
        "tests": ['ending "ending: a job that is kept*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("  if (impl_->job.is_kept()) return;\n",
             ""),
        ],
    },
    "server_says_each_death_twice": {
        "breaks": "Every task records every death.",
        "rule": "events.E1",
        "tests": ['tasks "tasks: a worker\'s death is one event*"'],
        "file": "src/server/server.cpp",
        "changes": [
            ("    if (is_alive && task < own_tasks.front()) is_first_task = false;",
             "    ;"),
        ],
    },
    "launch_lost_output": {
        "breaks": "The last output of a child that has ended is lost.",
        "rule": "launch",
        "tests": ["process_life_cycle StartAndEnd"],
        "survives": "a child would have to print and to end between two calls of the launcher",
        "file": "tools/common/children.cpp",
        "changes": [
            ('''    child->look();  // before reading: the output of an ended child is already in the pipes
    child->read(child->out_, on_line);
    child->read(child->error_, on_line);''',
             '''    child->read(child->out_, on_line);
    child->read(child->error_, on_line);
    child->look();'''),
        ],
    },
    "launch_orphans": {
        "breaks": "A killed launcher leaves its children.",
        "rule": "launch",
        "tests": ["process_life_cycle Interrupted.test_the_death_of_the_launcher_ends_its_children"],
        "file": "tools/common/children.cpp",
        "changes": [
            ("  prctl(PR_SET_PDEATHSIG, SIGTERM);\n",
             ""),
        ],
    },
    "launch_asks_twice": {
        "breaks": "A second interrupt only repeats the request to end.",
        "rule": "launch",
        "tests": ["process_survival Ends.test_a_second_ctrl_c_ends_a_launch_at_once_and_clean"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("    send_all(requests == 1 ? stop_signal() : SIGKILL);",
             "    send_all(stop_signal());"),
        ],
    },
    "launch_hides_failure": {
        "breaks": "A launch that has lost a worker ends as if it had not.",
        "rule": "launch",
        "tests": ["process_survival DeadServers.test_a_job_that_lost_a_worker_without_that_says_so_and_fails"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  return has_failed_ || evaluator_failed_ ? kFailed : 0;",
             "  return evaluator_failed_ ? kFailed : 0;"),
        ],
    },
    "launch_leaves_leftovers": {
        "breaks": "A launch that is interrupted twice leaves its job.",
        "rule": "launch",
        "tests": ["process_survival Ends.test_a_second_ctrl_c_ends_a_launch_at_once_and_clean"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  if (servers_.empty() || settings_.ps.keep_segments || (!view_ && !was_free_)) return;",
             "  if (servers_.empty() || settings_.ps.keep_segments || (!view_ && !was_free_) || stop_requests() > 1) return;"),
        ],
    },
    "launch_never_gives_up": {
        "breaks": "A launch waits for a worker that is stopped.",
        "rule": "launch",
        "tests": ["process_life_cycle Interrupted.test_a_launch_that_gives_up_does_not_wait_for_a_stopped_worker"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  if (give_up_at_ != 0.0 && now_seconds() > give_up_at_) give_up();\n",
             ""),
        ],
    },
    "launch_ps_begins_anew": {
        "breaks": "A ps that replaces a dead one creates a new job.",
        "rule": "launch",
        "tests": ["process_survival DeadServers.test_launch_restarts_a_dead_ps"],
        "survives": "a ps takes over an orphaned job anyway; the option matters only if all workers have died, too",
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  settings.adopt = true;",
             "  settings.adopt = false;"),
        ],
    },
    "launch_ps_stays_dead": {
        "breaks": "A ps that dies is not replaced.",
        "rule": "launch",
        "tests": ["process_survival DeadServers.test_launch_restarts_a_dead_ps"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  wants_ps_ = has_work && may_follow(ps(), serves(ps()));",
             "  wants_ps_ = false && has_work && may_follow(ps(), serves(ps()));"),
        ],
    },
    "launch_ps_dead_with_a_worker": {
        "breaks": "A ps that dies after a worker, or with one, is not replaced.",
        "rule": "launch",
        "tests": ["process_survival DeadServers.test_launch_restarts_a_dead_ps_though_a_worker_is_dead"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  const bool has_work = (is_any_worker_running() || is_to_be_replaced) && !is_ending();",
             "  const bool has_work = (is_any_worker_running() || is_to_be_replaced) && !has_failed_ && !is_ending();"),
        ],
    },
    "launch_of_nobody": {
        "breaks": "A launch in which nobody took part ends well.",
        "rule": "launch",
        "tests": ["process_mistakes Ignored.test_variables_of_other_programs_are_passed_over"],
        "file": "tools/launch_shm/launch_workers.cpp",
        "changes": [
            ("  if (!has_program() || has_failed_ || has_anybody_joined()) return;\n",
             "  if (workers_.size() < 1000) return;\n"),
        ],
    },
    "launch_replaces_for_ever": {
        "breaks": "Workers that fail repeatedly are replaced forever.",
        "rule": "launch",
        "tests": ["process_survival DeadServers.test_workers_that_fail_again_and_again_end_the_launch"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  return early_ends_.own < kMaxEarlyFailures && early_ends_.killed < kMaxEarlyKills;",
             "  return true;"),
        ],
    },
    "launch_replaces_nobody": {
        "breaks": "A worker that dies is not replaced.",
        "rule": "launch",
        "tests": ["process_survival DeadServers.test_launch_restarts_dead_workers_when_asked_to"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("    if (may_follow(member.child, past.steps > member.before.steps)) {",
             "    if (may_follow(member.child, past.steps > member.before.steps) && member.ranks.count == 0) {"),
        ],
    },
    "launch_without_pauses": {
        "breaks": "A worker that ends before its first step is replaced without a pause.",
        "rule": "launch",
        "tests": ["process_survival DeadServers.test_workers_that_are_killed_before_their_work_are_replaced_after_longer_and_longer_pauses"],
        "file": "tools/launch_shm/launch.cpp",
        "changes": [
            ("  restart_at_ = now_seconds() + std::min(std::ldexp(kFirstPauseSeconds, early_ends_.all++), kLongestPauseSeconds);\n",
             ""),
        ],
    },
}
