"""--trace: spans that nest, in order, of every step that a worker has made, including those of killed workers."""
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import support
from support import FREE_STEPS, ProcessTest, finish, main, measures_time, run, wait_until, workers_of

PHASES = ("pull", "gradient", "delay", "push", "step()")


class TraceTest(ProcessTest):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="trace"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.file = self.folder / "trace.json"

    def spans(self):
        """Rank -> its spans, each outer span before those inside it."""
        trace = json.loads(self.file.read_text())
        self.assertEqual([p.name for p in self.folder.iterdir()], ["trace.json"], "the workers' own files are gone")
        of_rank = collections.defaultdict(list)
        for event in trace["traceEvents"]:
            self.assertIn(event["ph"], "XM")
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0)
                of_rank[event["tid"]].append(event)
        for spans in of_rank.values():
            spans.sort(key=lambda e: (e["ts"], -e["dur"]))
        return of_rank

    def assert_nested(self, spans):
        """Requires that no two spans overlap in part. Returns each step span with the spans directly inside it."""
        steps, open_spans = [], []
        for span in spans:
            end = span["ts"] + span["dur"]
            while open_spans and open_spans[-1]["ts"] + open_spans[-1]["dur"] <= span["ts"] + 0.0005:
                open_spans.pop()
            if open_spans:
                self.assertLessEqual(end, open_spans[-1]["ts"] + open_spans[-1]["dur"] + 0.0005, (open_spans[-1], span))
            if span["name"] == "step":
                self.assertFalse(open_spans, "steps do not lie in each other")
                steps.append((span, []))
            elif len(open_spans) == 1 and open_spans[0]["name"] == "step":
                steps[-1][1].append(span)
            open_spans.append(span)
        return steps

    def assert_whole(self, spans, steps_made):
        steps = self.assert_nested(spans)
        self.assertEqual(len(steps), steps_made)
        for step, parts in steps:
            names = list(dict.fromkeys(part["name"] for part in parts))  # a delay lies within the gradient
            self.assertEqual(names, [name for name in PHASES if name in names], "the phases have their order")
            self.assertTrue({"pull", "gradient", "push", "step()"} <= set(names), names)
            self.assertTrue(all(part["args"]["step"] == step["args"]["step"] for part in parts))
        numbers = [step["args"]["step"] for step, _ in steps]
        self.assertEqual(numbers, sorted(numbers))
        return steps

    def test_async_steps_cover_the_run(self):
        result = self.launch("--steps", 300, "--trace", self.file)
        spans = self.spans()
        # Of a worker that starts late, the others may have made all steps.
        self.assertEqual(sorted(spans), [worker["rank"] for worker in result["per_worker"] if worker["steps"] > 0])
        for worker in result["per_worker"]:
            self.assert_whole(spans[worker["rank"]], worker["steps"])

    @measures_time
    def test_steps_cover_the_run_and_phases_cover_the_steps(self):
        result = self.launch("--steps", 300, "--trace", self.file)
        spans = self.spans()
        for worker in result["per_worker"]:
            steps = self.assert_whole(spans[worker["rank"]], worker["steps"])
            # Over all steps: in a single one the worker may have lost its core between two phases.
            in_phases = sum(part["dur"] for _, parts in steps for part in parts)
            self.assertGreater(in_phases, 0.9 * sum(step["dur"] for step, _ in steps), "they are nearly all of it")
            covered = (steps[-1][0]["ts"] + steps[-1][0]["dur"] - steps[0][0]["ts"]) / 1e6
            self.assertLess(abs(covered - worker["seconds"]), 0.4 * worker["seconds"])

    def test_sync_steps_have_waits_and_applying_in_them(self):
        result = self.launch("--steps", 200, "--mode", "sync", "--delay", "1:1ms", "--trace", self.file)
        applied = 0  # which worker applies a step is a matter of timing: a late one finds all of them applied
        for rank, spans in self.spans().items():
            self.assert_whole(spans, result["per_worker"][rank]["steps"])
            names = collections.Counter(span["name"] for span in spans)
            self.assertGreaterEqual(names["wait"], 200)
            applied += names["apply"]
            self.assertEqual(names["delay"], 200 if rank == 1 else 0)
        self.assertGreaterEqual(applied, 200)

    @measures_time
    def test_a_straggler_waits_less_than_those_who_wait_for_it(self):
        self.launch("--steps", 200, "--mode", "sync", "--delay", "1:1ms", "--trace", self.file)
        waits = {rank: sum(s["dur"] for s in spans if s["name"] == "wait") for rank, spans in self.spans().items()}
        self.assertLess(waits[1], min(waits[0], waits[2]), "the straggler waits for nobody")

    def test_a_killed_workers_trace_is_there(self):
        launch, gate = self.start_gated("--restart-workers", "--trace", self.file)
        # These steps with their delays take longer than 100 ms, the interval at which a worker writes its spans to its
        # file.
        victim = wait_until(lambda: [w for w in workers_of(self.job) or [] if w["steps"] >= FREE_STEPS], "they train")[0]
        os.kill(victim["pid"], signal.SIGKILL)
        wait_until(lambda: [w for w in workers_of(self.job) if w["rank"] == victim["rank"] and w["pid"] != victim["pid"]
                            and w["steps"] > victim["steps"]], "its successor trains")
        gate.open()
        self.assertEqual(finish(launch).code, 0)
        spans = self.spans()
        self.assertEqual(sorted(spans), [0, 1, 2])
        pids = {span["args"]["pid"] for span in spans[victim["rank"]]}
        self.assertEqual(len(pids), 2, "its own and its successor's")
        self.assertIn(victim["pid"], pids)

    def test_sparse_models_have_batches(self):
        self.launch("--model", "logistic", "--data", "zipf:200x400", "--steps", 30, "--trace", self.file)
        for spans in self.spans().values():
            self.assertTrue(all([p["name"] for p in parts] == ["batch", "step()"] for _, parts in self.assert_nested(spans)))

    def run_on_small_disk(self, *command):
        """Runs it with a disk of 64 KiB as the folder. The result, and which files are there at the end."""
        script = 'mount -t tmpfs -o size=64k none "$0" || exit 77; "$@"; code=$?; ls "$0" >&3; exit $code'
        with tempfile.TemporaryFile("w+") as left:
            process = subprocess.Popen(["unshare", "-m", "sh", "-c", script.replace(">&3", f">&{left.fileno()}"), self.folder,
                                        support.TOOLS / command[0], *map(str, command[1:])], text=True, env=support.environment(),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       pass_fds=[left.fileno()])
            result = finish(process)
            left.seek(0)
            return result, left.read().split()

    def test_a_full_disk_is_an_error_and_leaves_no_file(self):
        if not support.may_mount():
            self.skipTest("skipped: no mounts of one's own are allowed here")
        result, left = self.run_on_small_disk("launch_shm", "--job", self.job, "--steps", 2000, "--trace", self.file)
        self.assertEqual(result.code, 1, result.err)
        self.assertIn(f"launch_shm: --trace {self.file}: a worker could not write its part\n", result.err)
        self.assertIn(".0 cannot be written: No space left on device\n", result.err)
        self.assertNotIn(f"the trace is {self.file}", result.err)
        self.assertIn("test accuracy", result.out, "the job has not failed")
        self.assertEqual(left, [])
        ps = self.start_ps("--workers", 1, "--steps", 2000)
        result, left = self.run_on_small_disk("worker_shm", "--job", self.job, "--trace", self.file)
        self.assertEqual(result.code, 1, result.err)
        self.assertEqual(result.err.count("the trace is lost: "), 1, result.err)
        self.assertIn(f"{self.file} cannot be written: No space left on device", result.err)
        self.assertIn("test accuracy", result.out)
        self.assertNotIn("the trace is ", result.out)
        self.assertEqual(left, [])
        self.assertEqual(finish(ps).code, 0)

    def test_what_is_merged_is_announced_once_it_is_written(self):
        self.file.symlink_to("/dev/full")  # the workers' own files are beside it
        code, out, err = run("launch_shm", "--job", self.job, "--steps", 50, "--trace", self.file)
        self.assertEqual(code, 1, err)
        self.assertIn(f"launch_shm: --trace {self.file}: it cannot be written: No space left on device\n", err)
        self.assertNotIn("the trace is", err)
        self.assertIn("test accuracy", out, "the job has not failed")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["trace.json"])
        self.assertTrue(self.file.is_symlink())
        ps = self.start_ps("--workers", 1, "--steps", 3)  # all of a short trace is written at its end
        code, out, err = run("worker_shm", "--job", self.job, "--trace", self.file)
        self.assertEqual(code, 1, err)
        self.assertEqual(err.count("the trace is lost: "), 1, err)
        self.assertNotIn("the trace is ", out)
        self.assertTrue(self.file.is_symlink())
        self.assertEqual(finish(ps).code, 0)

    def test_mistakes_are_told(self):
        self.assert_fails(1, run("launch_shm", "--trace", self.folder / "none" / "x.json"), "--trace",
                          "cannot be written: No such file or directory")


if __name__ == "__main__":
    main()
