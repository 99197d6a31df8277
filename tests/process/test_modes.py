"""Modes, optimizers, runtime settings, several ps tasks and elastic jobs, as a user runs them."""
import functools
import json
import os
import random
import signal
import statistics
import tempfile
import unittest

import support
from support import ProcessTest, finish, run, wait_until, workers_of

OPTIMIZERS = ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "ftrl"]
MODES = [["--mode", "async"], ["--mode", "ssp", "--staleness", "2"], ["--mode", "sync"],
         ["--mode", "sync", "--quorum", "2"], ["--mode", "sync", "--reduce", "atomic"]]


def inspect(job, command, *arguments):
    code, out, err = run("inspect_shm", command, *arguments, "--job", job, "--json")
    assert code == 0, err
    return json.loads(out)


@unittest.skipIf(support.SLOWNESS > 1, "the sanitizers' builds would take minutes for the same arithmetic")
class Accuracy(ProcessTest):
    """Three workers reach the accuracy of one process, by medians over seeds: one of the 360 digits is 0.28 points."""

    STEPS = "3000"

    def train(self, optimizer, seed, mode):
        common = ["--optimizer", optimizer, "--steps", self.STEPS, "--lr-schedule", "cosine:" + self.STEPS,
                  "--seed", str(seed)]
        if mode is None:
            code, out, err = run("worker_shm", "--standalone", "--json", *common)
            self.assertEqual(code, 0, err)
            return json.loads(out)["test_accuracy"]
        return self.launch(*mode, *common)["test_accuracy"]

    def medians(self, optimizer, mode, seeds):
        """The medians of one process and of three workers."""
        return [statistics.median(self.trained(optimizer, seed, how) for seed in seeds) for how in (None, tuple(mode))]

    def test_every_optimizer_in_every_mode_reaches_the_standalone_accuracy(self):
        self.trained = functools.cache(self.train)
        seeds = [random.randrange(1 << 30) for _ in range(41)]
        print(f"seeds {seeds}", flush=True)
        for number, optimizer in enumerate(OPTIMIZERS):
            # All pairs with PS_SHM_TEST_FULL; otherwise each optimizer in two of the modes, which covers every
            # optimizer and mode.
            modes = MODES if support.FULL else [MODES[number % len(MODES)], MODES[(number + 2) % len(MODES)]]
            for mode in modes:
                with self.subTest(optimizer=optimizer, mode=mode):
                    # If few seeds fall short, more seeds decide.
                    for count in (7, 11, 21, 41) if support.FULL else (3, 5, 11, 21, 41):
                        alone, reached = self.medians(optimizer, mode, seeds[:count])
                        if alone - reached < 2.5 / 360:  # two digits
                            break
                    else:
                        self.fail(f"{reached:.4f}, {alone:.4f} alone")


class Modes(ProcessTest):
    def assert_usually_reaches(self, least, key, *options):
        """The result of a launch depends on how its processes are scheduled: if one falls short, the median of more
        decides."""
        reached = []
        for count in (1, 5, 15):
            reached += [self.launch("--seed", len(reached) + i, *options)[key] for i in range(count - len(reached))]
            if statistics.median(reached) >= least:
                return
        self.fail(f"{reached} have a median below {least}")

    def test_ssp_with_random_delays_never_leads_by_more_than_the_bound(self):
        for bound in (0, 1, 4):
            with self.subTest(bound=bound):
                result = self.launch("--mode", "ssp", "--staleness", bound, "--steps", "3400", "--delay",
                                     f"{random.randrange(3)}:100us")
                self.assertLessEqual(result["max_clock_skew"], bound)
                self.assertEqual(result["max_clock_skew"], bound)  # the bound is reached, too
                self.assertGreaterEqual(result["test_accuracy"], 0.95)

    def test_a_killed_slow_worker_stops_counting_at_once(self):
        self.start_ps("--workers", "2", "--mode", "ssp", "--staleness", "1", "--steps", "2000", "--linger", "1s")
        slow = self.start("worker_shm", "--job", self.job, "--delay", "20s", "--together")
        fast = self.start("worker_shm", "--job", self.job, "--together")
        wait_until(lambda: any("steps behind" in (w["waiting_for"] or "") for w in workers_of(self.job) or []),
                   "the fast one waits, and it is said for whom")
        slow.kill()
        code, out, err = finish(fast)
        self.assertEqual(code, 0, err)

    def test_a_quorum_drops_late_gradients_and_the_events_say_whose_counted(self):
        result = self.launch("--mode", "sync", "--quorum", "2", "--delay", "0:3ms", "--steps", "300", "--keep-segments")
        events = inspect(self.job, "events", "--kind", "decided")["events"]
        run("inspect_shm", "rm", "--job", self.job)
        self.assertEqual(sorted(event["step"] for event in events), list(range(300)))  # noted after the decision
        self.assertTrue(all(len(event["ranks"]) >= 2 for event in events))
        self.assertEqual(sum(worker["steps"] for worker in result["per_worker"]),
                         sum(len(event["ranks"]) for event in events))  # a dropped gradient is no step
        self.assertEqual(sum(worker["dropped"] for worker in result["per_worker"]), result["dropped"])

    @support.measures_time
    def test_most_gradients_of_a_slow_worker_come_too_late_for_a_quorum(self):
        result = self.launch("--mode", "sync", "--quorum", "2", "--delay", "0:3ms", "--steps", "300")
        # Most gradients of the slow worker are for a step that has closed meanwhile; they never count for a later step.
        late = result["per_worker"][0]
        self.assertGreater(late["dropped"], late["steps"])

    def test_push_every_trains_in_all_modes_also_under_an_outer_momentum(self):
        for options in ([], ["--mode", "ssp", "--staleness", "2"], ["--mode", "sync"],
                        ["--mode", "sync", "--optimizer", "momentum", "--lr", "1", "--momentum", "0.5"]):
            with self.subTest(options=options):
                self.assert_usually_reaches(0.955, "test_accuracy", "--push-every", "8", *options)

    def test_an_outer_momentum_that_overshoots_is_warned_of_by_the_chief(self):
        outer = ("--optimizer", "momentum", "--momentum", "0.5", "--steps", "3", "--workers", "3", "--linger", "1s")
        for lr, said in (("1", 1), ("0.2", 0)):
            self.start_ps(*outer, "--lr", lr)
            code, _, err = run("worker_shm", "--job", self.job, "--push-every", "8")
            self.assertEqual(code, 0, err)
            self.assertEqual(err.count("worker 0: with --lr 1 and --momentum 0.5, the pushes of 3 workers in mode async "
                                       "overshoot, and training may not converge; use --mode sync, or --lr 0.33 at most"),
                             said, err)
            finish(self.started[0])
            self.started.clear()

    def test_moving_averages_are_evaluated(self):
        self.assert_usually_reaches(0.96, "ema_test_accuracy", "--optimizer", "adam", "--ema", "0.99", "--steps", "3000")

    def test_sync_digests_do_not_depend_on_shards_placement_or_threads(self):
        digests = {self.launch("--mode", "sync", "--steps", "1000", "--seed", "5", *options)["digest"] for options in (
            [], ["--ps-tasks", "2", "--delay", "1:200us"], ["--ps-tasks", "4", "--placement", "greedy", "--threads", "2"],
            ["--ps-tasks", "4", "--placement", "partition", "--delay", "0:100us"], ["--chunk-bytes", "1KiB"],
            ["--ps-tasks", "2", "--placement", "partition", "--max-part-bytes", "16KiB", "--place", "hid_w=1"])}
        self.assertEqual(len(digests), 1)


class CountTest(ProcessTest):
    """Tests with the count model, whose variable is "var"."""

    def values(self):
        (variable,) = inspect(self.job, "dump", "var", "--limit", "0")["variables"]
        return variable["values"]


class Chunks(CountTest):
    """--chunk-bytes reaches the job from the command line or the environment, whichever program starts its ps."""

    COUNT = ["--model", "count", "--count-size", "5000", "--steps", "20"]

    def chunks(self):
        return inspect(self.job, "vars")["variables"][0]["parts"][0]

    def test_launch_passes_the_size_on(self):
        for options, env in ((["--chunk-bytes", "4KiB"], None), ([], {"PS_SHM_CHUNK_BYTES": "4096"})):
            with self.subTest(options=options):
                result = self.launch("--workers", "2", *self.COUNT, *options, "--keep-segments", env=env)
                self.assertEqual(inspect(self.job, "show")["settings"]["chunk_bytes"], 4096)
                self.assertEqual((self.chunks()["chunks"], self.chunks()["chunk_elements"]), (5, 1008))
                self.assertEqual(set(self.values()), {40.0})
                self.assertEqual(run("inspect_shm", "rm", "--job", self.job)[0], 0)
                self.assertEqual(result["steps"], 40)

    def test_chunks_for_gpus_are_passed_on_and_shown(self):
        for options, env in ((["--chunk-bytes", "gpu"], None), ([], {"PS_SHM_CHUNK_BYTES": "gpu"})):
            with self.subTest(options=options):
                self.launch("--workers", "2", *self.COUNT, *options, "--keep-segments", env=env)
                self.assertEqual(inspect(self.job, "show")["settings"]["chunk_bytes"], "gpu")
                self.assertRegex(run("inspect_shm", "show", "--job", self.job).out, r"chunk_bytes +gpu\b")
                self.assertEqual((self.chunks()["chunks"], self.chunks()["chunk_elements"]), (3, 2032))  # a small variable
                self.assertEqual(set(self.values()), {40.0})
                self.assertEqual(run("inspect_shm", "rm", "--job", self.job)[0], 0)

    def test_a_ps_has_the_size_and_its_successor_must_not_have_another_one(self):
        # Interrupted long before its steps are done. Free buffers of 1 MiB for 16 workers would not fit into a
        # container.
        same = ("--workers", "1", "--max-workers", "2", "--linger", "1s", "--steps", "1000000")
        ps = self.start_ps(*same, "--chunk-bytes", "1MiB")
        worker = self.start("worker_shm", "--job", self.job, "--delay", "2ms")
        wait_until(lambda: inspect(self.job, "show")["global_step"] > 0, "the job is under way")
        self.assertEqual(inspect(self.job, "show")["settings"]["chunk_bytes"], 1 << 20)
        self.assertEqual(self.chunks()["chunks"], 1)
        ps.kill()
        ps.communicate()
        worker.send_signal(signal.SIGSTOP)  # the job must not end during the checks
        for size, said in (["--chunk-bytes", "4KiB"], "4096"), ([], "0"), (["--chunk-bytes", "gpu"], "gpu"):
            self.assert_fails(1, run("ps_shm", "--job", self.job, *same, *size),
                              f"chunk-bytes 1048576, not {said}")
        # takes over while the worker is alive
        heir = self.start_ps(*same, "--chunk-bytes", "1MiB")
        worker.send_signal(signal.SIGCONT)
        worker.send_signal(signal.SIGINT)
        for process, end in ((worker, 130), (heir, 0)):
            code, _, err = finish(process)
            self.assertEqual(code, end, err)


class OneElement(CountTest):
    """The count model of one element, whose counter and value share a word."""

    def test_exact_adds_of_processes_are_all_there(self):
        for layout in ("inplace", "versioned"):
            with self.subTest(layout):
                self.launch("--workers", "3", "--model", "count", "--count-size", "1", "--steps", "20000", "--layout", layout,
                            "--keep-segments")
                self.assertEqual(self.values(), [60000.0])
                self.assertEqual(inspect(self.job, "vars")["variables"][0]["updates"], 60000)
                run("inspect_shm", "rm", "--job", self.job)

    def test_racy_adds_are_all_counted(self):
        self.launch("--workers", "3", "--model", "count", "--count-size", "1", "--steps", "20000", "--layout", "inplace",
                    "--adds", "racy", "--keep-segments")
        self.assertLessEqual(self.values()[0], 60000)
        self.assertEqual(inspect(self.job, "vars")["variables"][0]["updates"], 60000)
        run("inspect_shm", "rm", "--job", self.job)


class LiveChanges(ProcessTest):
    def start_slow_job(self, *options):
        self.start_ps("--workers", "2", "--linger", "1s", *options)
        for rank in range(2):
            self.start("worker_shm", "--job", self.job, "--rank", rank, "--delay", f"{1 + 4 * rank}ms")
        wait_until(lambda: inspect(self.job, "show")["global_step"] > 10, "the job is under way")

    def test_a_change_takes_effect_and_is_an_event(self):
        self.start_slow_job()
        changed = inspect(self.job, "set", "mode=ssp", "staleness=2", "lr=0.005")["changed"]
        self.assertEqual(changed["mode"], {"before": "async", "after": "ssp"})
        self.assertEqual(set(changed), {"mode", "staleness", "lr"})
        wait_until(lambda: any("steps behind" in (w["waiting_for"] or "") for w in workers_of(self.job)), "ssp holds")
        texts = [event["text"] for event in inspect(self.job, "events", "--kind", "set")["events"]]
        self.assertEqual(len(texts), 3)
        self.assertIn("mode: async -> ssp", texts)
        before = max(worker["max_clock_skew"] for worker in workers_of(self.job))
        self.assertLessEqual(before, 2)
        inspect(self.job, "set", "mode=async")
        wait_until(lambda: max(w["steps"] for w in workers_of(self.job)) >
                   min(w["steps"] for w in workers_of(self.job)) + 30, "nobody waits any more")

    def test_of_changes_at_the_same_time_none_is_undone_by_another(self):
        self.start_ps()
        loop = 'for i in $(seq 100); do "$0" set --job "$1" "$2=$i" > /dev/null 2>&1 && echo "$i"; done'
        setters = {key: self.start("sh", "-c", loop, support.TOOLS / "inspect_shm", self.job, key)
                   for key in ("lr", "clip-norm")}
        done = {key: finish(setter)[1].split() for key, setter in setters.items()}
        texts = [event["text"] for event in inspect(self.job, "events", "--kind", "set")["events"]]
        for key in setters:
            self.assertEqual([text.split()[-1] for text in texts if text.startswith(key + ":")], done[key])
            self.assertGreater(len(done[key]), 10)
        self.assertEqual(inspect(self.job, "show")["live_version"], len(texts))

    def test_impossible_changes_are_refused_in_one_line(self):
        self.start_slow_job()
        self.assert_fails(1, run("inspect_shm", "set", "mode=sync", "--job", self.job), "sync")
        self.assert_fails(1, run("inspect_shm", "set", "quorum=2", "--job", self.job), "quorum")
        self.assert_fails(1, run("inspect_shm", "set", "workers=3", "--job", self.job), "LO..HI")
        self.assert_fails(1, run("inspect_shm", "set", "lr=-1", "--job", self.job), "lr")
        self.assert_fails(2, run("inspect_shm", "set", "lr=fast", "--job", self.job), "fast")
        self.assert_fails(2, run("inspect_shm", "set", "colour=red", "--job", self.job), "colour")
        self.assertEqual(inspect(self.job, "show")["live_version"], 0)


class Tasks(ProcessTest):
    def test_ps_tasks_start_in_any_order_and_the_last_one_out_removes_the_job(self):
        options = ["--job", self.job, "--workers", "2", "--steps", "500", "--ps-tasks", "3", "--placement", "partition"]
        tasks = [self.start("ps_shm", *options, "--task", task) for task in (2, 1)]
        workers = [self.start("worker_shm", "--job", self.job) for _ in range(2)]
        tasks.append(self.start("ps_shm", *options, "--task", 0))
        for process in (*workers, *tasks):
            code, out, err = finish(process)
            self.assertEqual(code, 0, out + err)
        self.assertEqual(support.segments(self.job), [])

    def test_a_killed_task_is_an_event_and_can_be_followed(self):
        options = ["--job", self.job, "--workers", "1", "--ps-tasks", "2", "--linger", "1s"]
        first = self.start("ps_shm", *options, "--task", 0)
        second = self.start("ps_shm", *options, "--task", 1)
        worker = self.start("worker_shm", "--job", self.job, "--delay", "1ms")
        wait_until(lambda: workers_of(self.job), "a worker has joined")
        second.kill()
        wait_until(lambda: any("ps task 1" in event["text"] for event in inspect(self.job, "events")["events"]), "event")
        heir = self.start("ps_shm", *options, "--task", 1)
        wait_until(lambda: all(shard["served"] for shard in inspect(self.job, "show")["shards"]), "both are served")
        steps = inspect(self.job, "show")["global_step"]
        wait_until(lambda: inspect(self.job, "show")["global_step"] > steps, "training goes on")
        for process in (first, heir):
            process.send_signal(signal.SIGINT)
        for process in (first, heir, worker):
            finish(process)

    def test_the_placement_trace_names_every_part(self):
        self.start_ps("--workers", "1", "--ps-tasks", "2", "--placement", "partition", "--optimizer", "adam")
        self.start("worker_shm", "--job", self.job, "--delay", "1ms")
        wait_until(lambda: len(inspect(self.job, "vars")["variables"]) == 4, "declared")
        variables = {v["name"]: v for v in inspect(self.job, "vars")["variables"]}
        weights = variables["hid_w"]
        self.assertEqual([(part["first_row"], part["rows"]) for part in weights["parts"]], [(0, 32), (32, 32)])
        self.assertEqual({part["shard"] for part in weights["parts"]}, {0, 1})
        self.assertEqual(weights["slots"], ["m", "v"])
        self.assertEqual(sum(part["slot_bytes"] for part in weights["parts"]), 2 * weights["bytes"])
        shown = inspect(self.job, "show")["bytes"]
        self.assertEqual(sum(v for k, v in shown.items() if k != "total"), shown["total"])


class Elastic(ProcessTest):
    def alive(self):
        return [w for w in workers_of(self.job) or [] if w["state"] == "alive"]

    def test_dead_workers_are_replaced_and_their_number_follows_what_is_set(self):
        launch = self.start("launch_shm", "--job", self.job, "--workers", "2..4", "--delay", "2ms", "--steps", "100000")
        wait_until(lambda: len(self.alive()) == 2, "two workers")
        pids = {worker["pid"] for worker in self.alive()}
        os.kill(next(iter(pids)), signal.SIGKILL)
        wait_until(lambda: len(self.alive()) == 2 and {w["pid"] for w in self.alive()} != pids, "replaced")
        inspect(self.job, "set", "workers=4")
        wait_until(lambda: len(self.alive()) == 4, "four workers")
        inspect(self.job, "set", "workers=2")
        wait_until(lambda: len(self.alive()) == 2, "two workers again")
        self.assert_fails(1, run("inspect_shm", "set", "workers=5", "--job", self.job), "2 to 4")
        launch.send_signal(signal.SIGINT)
        code, out, err = finish(launch)
        self.assertEqual(code, 130, err)

    def test_an_elastic_job_that_loses_a_worker_still_succeeds(self):
        for mode in ("async", "ssp", "sync"):
            with self.subTest(mode=mode):
                job = support.new_job()
                launch, gate = self.start_gated("--workers", "2..3", "--json", mode=mode, job=job)
                victim = wait_until(lambda: [w for w in workers_of(job) or [] if w["steps"] > 20], "under way")[0]["pid"]
                os.kill(victim, signal.SIGKILL)
                alive = lambda: [w for w in workers_of(job) if w["state"] == "alive" and w["pid"] != victim]
                wait_until(lambda: len(alive()) == 2, "another one has its place")
                gate.open()
                code, out, err = finish(launch)
                self.assertEqual(code, 0, err)
                self.assertGreaterEqual(json.loads(out)["steps"], support.GATED_STEPS[mode])

    def test_the_result_is_of_all_that_took_part(self):
        file = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "report.html")
        launch, gate = self.start_gated("--workers", "1..3", "--json", "--report", file)
        wait_until(lambda: len(self.alive()) == 1, "one worker")
        inspect(self.job, "set", "workers=3")
        wait_until(lambda: len(self.alive()) == 3, "three workers")
        gate.open()
        code, out, err = finish(launch)
        self.assertEqual(code, 0, err)
        result = json.loads(out)
        self.assertEqual((result["workers"], len(result["per_worker"])), (3, 3))
        with open(file) as report:
            self.assertIn("mlp on digits, 3 workers", report.read())

    def test_a_worker_that_is_not_ready_before_the_job_is_over_holds_nobody_up(self):
        slow = f"""#!/bin/sh
            case "$*" in *"--rank 1"*) while [ -e /dev/shm/ps_shm.{self.job} ]; do sleep 0.02; done ;; esac
            exec "{support.TOOLS}/worker_shm" "$@"\n"""
        gate = self.close_gate()
        launch = self.start(self.enterContext(support.programs_beside(slow)), "--job", self.job, "--workers", "1..2",
                            "--model", "count", "--steps", "200", "--count-interval", "4ms", "--linger", "100ms",
                            "--wait-job", "10000s", env=gate.env)
        wait_until(lambda: self.alive(), "worker 0 has joined")
        inspect(self.job, "set", "workers=2")
        support.wait_for_line(launch.stderr, "started worker 1")
        gate.open()
        code, out, err = finish(launch)
        self.assertEqual(code, 0, err)
        self.assertIn("the job ended before worker 1 joined", err)
        self.assertNotIn("it is being replaced", err)


if __name__ == "__main__":
    support.main()
