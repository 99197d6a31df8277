"""--workers-per-process: workers that are threads of one process train, fail, leave and die as the pages say."""
import json
import os
import pathlib
import signal
import tempfile
import unittest

import streams
import support
from support import ProcessTest, run, workers_of

IS_SIMULATED = os.environ.get("PS_SHM_CUDA") == "simulated"
HAS_GPU = os.path.exists("/dev/nvidiactl")


class Several(ProcessTest):
    def start_workers(self, first, count, *options, **how):
        return self.start("worker_shm", "--job", self.job, "--rank", first, "--workers-per-process", count, *options, **how)

    def pids(self, state="alive"):
        """Rank -> process, of the workers in this state."""
        return {worker["rank"]: worker["pid"] for worker in workers_of(self.job) or [] if worker["state"] == state}


class Results(Several):
    def assert_equals_one_each(self, *options, per_process=(2, 4)):
        of_one = self.launch("--workers", 4, *options)
        for most in per_process:
            with self.subTest(most, options=options):
                found = self.launch("--workers", 4, "--workers-per-process", most, *options)
                self.assertEqual(found["digest"], of_one["digest"])
                self.assertEqual([w["steps"] for w in found["per_worker"]], [w["steps"] for w in of_one["per_worker"]])
                self.assertTrue(all("seconds_in" in w for w in found["per_worker"]), "each has its own times")

    def test_sync_mode_gives_the_same_bits_as_a_process_for_each_worker(self):
        self.assert_equals_one_each("--mode", "sync", "--steps", 100, per_process=(2, 3, 4))
        self.assert_equals_one_each("--mode", "sync", "--steps", 60, "--optimizer", "adam", "--shard-data", "by-label",
                                    "--threads", 2)

    def test_no_update_is_lost(self):
        for mode in "async", "sync":
            found = self.launch("--model", "count", "--mode", mode, "--count-size", 1000, "--steps", 200, "--workers", 5,
                                "--workers-per-process", 3)
            steps = 200 * (5 if mode == "async" else 1)
            self.assertEqual((found["value_min"], found["value_max"]), (200 * 5, 200 * 5))
            self.assertEqual(found["steps"], steps)

    def test_sparse_models_train_with_their_data_shared_or_not_and_by_key(self):
        for options in (), ("--share-data",), ("--keyed",):
            with self.subTest(options):
                found = self.launch("--model", "logistic", "--data", "zipf:1000x4000", "--epochs", 3, "--workers", 4,
                                    "--workers-per-process", 2, *options)
                self.assertEqual([w["rank"] for w in found["per_worker"]], [0, 1, 2, 3])
                self.assertGreater(found["test_accuracy"], 0.6)

    def test_each_worker_has_its_own_object_summaries_and_trace(self):
        ps = self.start_ps("--workers", 2, "--steps", 200)
        with tempfile.TemporaryDirectory() as folder:
            trace, summaries = pathlib.Path(folder, "trace"), pathlib.Path(folder, "summaries")
            code, out, err = run("worker_shm", "--job", self.job, "--workers-per-process", 2, "--together", "--json",
                                 "--trace", trace, "--summary-dir", summaries)
            self.assertEqual(code, 0, err)
            self.assertEqual(sorted(json.loads(line)["rank"] for line in out.splitlines()), [0, 1])
            self.assertEqual(sorted(os.listdir(summaries)), ["test", "worker-0", "worker-1"])
            tracks = [{event["tid"] for event in json.loads(pathlib.Path(f"{trace}.{number}").read_text())}
                      for number in range(2)]
            self.assertEqual(sorted(map(sorted, tracks)), [[0], [1]])
        self.assertEqual(support.finish(ps)[0], 0)

    def test_a_launch_has_one_trace_of_all(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "trace")
            self.launch("--workers", 3, "--workers-per-process", 2, "--mode", "sync", "--steps", 100, "--trace", trace)
            self.assertEqual(os.listdir(folder), ["trace"])
            events = json.loads(trace.read_text())["traceEvents"]
            self.assertEqual({event["tid"] for event in events if event["ph"] == "X"}, {0, 1, 2})

    def test_a_recording_is_replayed_with_one_process_for_each_worker(self):
        with tempfile.TemporaryDirectory() as folder:
            recording = pathlib.Path(folder, "recording")
            recorded = self.launch("--workers", 3, "--workers-per-process", 3, "--steps", 150, "--record", recording)
            replayed = self.launch("--replay", recording)
            self.assertEqual(replayed["digest"], recorded["digest"])


class Processes(Several):
    def shown(self, *options, workers, **environment):
        """The groups of ranks that are one process, and the GPU that each of them sees."""
        launch = self.start("launch_shm", "--job", self.job, "--model", "count", "--steps", 10**7, "--count-interval", "10ms",
                            *options, env=environment)
        support.wait_until(lambda: len(self.pids()) == workers, f"{workers} workers")
        groups = {}
        for rank, pid in sorted(self.pids().items()):
            groups.setdefault(pid, []).append(rank)
        gpus = []
        for pid in groups:
            variables = pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
            gpus += [text.split("=", 1)[1] for text in variables if text.startswith("CUDA_VISIBLE_DEVICES=")] or [None]
        launch.terminate()
        self.assertEqual(support.finish(launch)[0], 130)
        return list(groups.values()), gpus

    def test_processes_have_consecutive_ranks_and_about_as_many(self):
        self.assertEqual(self.shown("--workers", 5, "--workers-per-process", 2, workers=5)[0], [[0, 1], [2, 3], [4]])
        self.assertEqual(self.shown("--workers", 7, "--workers-per-process", 3, workers=7)[0], [[0, 1, 2], [3, 4], [5, 6]])
        self.assertEqual(self.shown("--workers", 2, "--workers-per-process", 9, workers=2)[0], [[0, 1]])

    @unittest.skipIf(HAS_GPU or IS_SIMULATED, "skipped: there is a GPU")
    def test_workers_that_share_a_gpu_share_a_process(self):
        box = {"CUDA_VISIBLE_DEVICES": "5,7"}
        auto = ("--device", "auto", "--workers-per-process", "auto")
        self.assertEqual(self.shown("--workers", 5, *auto, workers=5, **box), ([[0, 1, 2], [3, 4]], ["5", "7"]))
        self.assertEqual(self.shown(*auto, workers=2, **box), ([[0], [1]], ["5", "7"]))
        self.assertEqual(self.shown("--workers", 1, *auto, workers=1, **box), ([[0]], ["5"]))
        self.assertEqual(self.shown("--device", "auto", "--workers-per-process", 2, workers=4, **box),
                         ([[0, 1], [2, 3]], ["5", "7"]))
        self.assertEqual(self.shown("--workers", 6, "--device", "auto", "--workers-per-process", 2, workers=6, **box),
                         ([[0, 1], [2, 3], [4, 5]], ["5", "7", "5"]))

    @unittest.skipIf(HAS_GPU or IS_SIMULATED, "skipped: there is a GPU")
    def test_workers_on_the_cpu_have_a_process_each_with_auto(self):
        self.assertEqual(self.shown("--workers", 3, "--workers-per-process", "auto", workers=3)[0], [[0], [1], [2]])

    def test_a_launchers_variable_numbers_the_processes(self):
        ps = self.start_ps("--workers", 4)
        worker = self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", 10**7, "--count-interval", "10ms",
                            "--workers-per-process", 2, env={"LOCAL_RANK": "1"})
        support.wait_until(lambda: len(self.pids()) == 2, "both have joined")
        self.assertEqual(self.pids(), {2: worker.pid, 3: worker.pid})
        worker.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(worker)[0], 130)
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--workers-per-process", 2, env={"LOCAL_RANK": "100"}),
                          "LOCAL_RANK=100 asks for rank 20", "out of range")
        ps.terminate()
        support.finish(ps)


class Ends(Several):
    def test_a_killed_process_is_so_many_dead_workers(self):
        for mode in "async", "ssp", "sync":
            with self.subTest(mode):
                self.job = support.new_job()
                ps = self.start_ps("--workers", 3, "--mode", mode, "--steps", support.GATED_STEPS[mode])
                gate = self.close_gate()
                several = self.start_workers(0, 2, *support.GATED_DELAY, "--together", env=gate.env)
                other = self.start("worker_shm", "--job", self.job, "--rank", 2, *support.GATED_DELAY, "--together",
                                   env=gate.env)
                support.wait_until(lambda: self.pids() == {0: several.pid, 1: several.pid, 2: other.pid}, "all have joined")
                support.wait_until(lambda: min(w["steps"] for w in workers_of(self.job)) > 0, "each trains")
                several.kill()
                several.communicate()
                support.wait_until(lambda: self.pids("dead") == {0: several.pid, 1: several.pid}, "both are dead")
                successors = self.start_workers(0, 2, *support.GATED_DELAY, env=gate.env)
                support.wait_until(lambda: self.pids() == {0: successors.pid, 1: successors.pid, 2: other.pid},
                                   "both have a successor")
                gate.open()
                self.assertEqual(support.finish(other)[0], 0)
                self.assertEqual(support.finish(successors)[0], 0)
                self.assertEqual(support.finish(ps)[0], 0)
                self.assertEqual(support.segments(self.job), [])

    def test_on_ctrl_c_each_worker_leaves(self):
        for number in signal.SIGINT, signal.SIGTERM:
            for mode in "async", "sync":
                with self.subTest(mode, signal=number):
                    self.job = support.new_job()
                    ps = self.start_ps("--workers", 3, "--mode", mode, "--steps", 10**8, "--linger", "1s")
                    worker = self.start_workers(0, 3, "--delay", "1ms", "--together")
                    support.wait_training(self.job, 3)
                    worker.send_signal(number)
                    code, out, err = support.finish(worker)
                    self.assertEqual((code, streams.without_waits(err)), (130, ""))
                    self.assertEqual([f"worker {rank}: interrupted" in out for rank in range(3)], [True] * 3, out)
                    self.assertEqual(support.finish(ps)[0], 0, "all have left")

    def test_a_worker_that_fails_ends_its_process_with_its_message(self):
        for options in (), ("--json",):
            with self.subTest(options):
                self.job = support.new_job()
                ps = self.start_ps("--workers", 3, "--mode", "sync")
                other = self.start("worker_shm", "--job", self.job, "--rank", 2, "--model", "count", "--steps", 10**8)
                support.wait_until(lambda: 2 in self.pids(), "the other has joined")
                got = self.start_workers(0, 3, "--model", "count", "--steps", 10**8, *options)
                code, out, err = support.finish(got)
                self.assertEqual(code, 1)
                [line] = [line for line in err.splitlines() if line.startswith("worker_shm: ")]
                self.assertIn(f"worker 2: rank 2 of job '{self.job}' is taken by process {other.pid}", line)
                if options:
                    errors = [object for object in map(json.loads, out.splitlines()) if "error" in object]
                    self.assertEqual(errors[0]["exit_code"], 1)
                    self.assertIn("is taken", errors[0]["error"])
                support.wait_until(lambda: self.pids() == {2: other.pid}, "the others have left")
                other.send_signal(signal.SIGINT)
                support.finish(other)
                ps.terminate()
                support.finish(ps)

    def test_a_launch_restarts_the_whole_process(self):
        gate = self.close_gate()
        launch = self.start("launch_shm", "--job", self.job, "--workers", 4, "--workers-per-process", 2, "--mode", "sync",
                            "--steps", support.GATED_STEPS["sync"], *support.GATED_DELAY, "--restart-workers", "--json",
                            env=gate.env)
        before = {w["rank"]: w["pid"] for w in support.wait_training(self.job, 4)}
        self.assertEqual((before[0], before[2]), (before[1], before[3]))
        os.kill(before[2], signal.SIGKILL)

        def have_successors():
            now = self.pids()
            return len(now) == 4 and now[2] == now[3] != before[2] and now[0] == now[1] == before[0]
        support.wait_until(have_successors, "both have a successor")
        gate.open()
        code, out, err = support.finish(launch)
        self.assertEqual(code, 0, err)
        self.assertIn("the process of workers 2-3 was killed by signal 9 (Killed); it is being replaced", err)
        self.assertIn("started workers 2-3", err)
        self.assertEqual(len(json.loads(out)["per_worker"]), 4)

    def test_without_that_the_others_continue_and_the_launch_fails(self):
        gate = self.close_gate()
        launch = self.start("launch_shm", "--job", self.job, "--workers", 3, "--workers-per-process", 2, "--mode", "sync",
                            "--steps", support.GATED_STEPS["sync"], *support.GATED_DELAY, env=gate.env)
        os.kill(support.wait_training(self.job, 3)[0]["pid"], signal.SIGKILL)
        support.wait_for_line(launch.stderr, "the process of workers 0-1 was killed by signal 9 (Killed); the others continue")
        gate.open()
        self.assertEqual(support.finish(launch)[0], 1)

    def test_what_a_worker_says_has_its_rank(self):
        code, out, err = run("launch_shm", "--job", self.job, "--workers", 2, "--workers-per-process", 2, "--steps", 50,
                             "--verbose")
        self.assertEqual(code, 0, err)
        self.assertIn("[workers 0-1] worker 0: test accuracy", err)


class Refusals(ProcessTest):
    def test_a_process_that_does_not_take_it_ignores_the_environment(self):
        variable = {"PS_SHM_WORKERS_PER_PROCESS": "2"}
        code, out, err = run("worker_shm", "--standalone", "--steps", 20, "--json", env=variable)
        self.assertEqual((code, len(out.splitlines())), (0, 1), err)


@unittest.skipUnless(IS_SIMULATED, "skipped: this build has no simulated GPU")
class OnSimulatedGpu(Results):
    def launch(self, *arguments, **options):
        return super().launch(*arguments, "--device", "simulated", **options)

    def test_sync_mode_gives_the_same_bits_as_a_process_for_each_worker(self):
        self.assert_equals_one_each("--mode", "sync", "--steps", 20, per_process=(2, "auto"))

    def test_a_gpus_workers_are_one_process_which_dies_as_one(self):
        gate = self.close_gate()
        launch = self.start("launch_shm", "--job", self.job, "--device", "simulated", "--workers", 3,
                            "--workers-per-process", "auto", "--mode", "sync", "--steps", support.GATED_STEPS["sync"],
                            *support.GATED_DELAY, "--restart-workers", "--json", env=gate.env)
        [before] = {w["pid"] for w in support.wait_training(self.job, 3)}
        os.kill(before, signal.SIGKILL)
        support.wait_until(lambda: len(self.pids()) == 3 and len(set(self.pids().values()) - {before}) == 1, "they are back")
        gate.open()
        code, out, err = support.finish(launch)
        self.assertEqual(code, 0, err)
        self.assertEqual(["gpu" in worker for worker in json.loads(out)["per_worker"]], [True] * 3)

    def test_no_update_is_lost(self):
        found = self.launch("--model", "count", "--count-size", 1000, "--steps", 50, "--workers", 3, "--workers-per-process", "auto")
        self.assertEqual((found["value_min"], found["value_max"]), (150, 150))

    def test_sparse_models_train_with_their_data_shared_or_not_and_by_key(self):
        for options in (), ("--keyed",):
            found = self.launch("--model", "logistic", "--data", "zipf:200x600x8", "--epochs", 5, "--combine", 30,
                                "--workers", 2, "--workers-per-process", "auto", *options)
            self.assertEqual(["gpu" in worker for worker in found["per_worker"]], [True, True])

    test_each_worker_has_its_own_object_summaries_and_trace = None
    test_a_launch_has_one_trace_of_all = None
    test_a_recording_is_replayed_with_one_process_for_each_worker = None


if __name__ == "__main__":
    support.main()
