"""Evaluation during training: worker_shm --evaluate, launch_shm --evaluate-every."""
import json
import os
import pathlib
import signal
import tempfile
import time

import support
from support import ProcessTest, run
from test_summaries import read


class Evaluation(ProcessTest):
    SLOW = support.GATED_DELAY

    def ps(self, *options):
        return self.start("ps_shm", "--job", self.job, "--workers", "1", "--publish", self.job, "--publish-every", "20ms",
                          *options)

    def evaluator(self, *options):
        return self.start("worker_shm", "--evaluate", "--job", self.job, "--evaluate-every", "20ms", *options)

    def evaluations(self, process, *read):
        code, out, err = support.finish(process)
        self.assertEqual(code, 0, err)
        publication, *lines = map(json.loads, ("".join(read) + out).splitlines())
        self.assertEqual(publication, {"publication": self.job})
        return lines

    def test_it_tests_generation_after_generation_and_the_last_one_in_whatever_order_all_are_started(self):
        roles = {"ps": lambda: self.ps("--steps", "300"),
                 "worker": lambda: self.start("worker_shm", "--job", self.job, "--json", *self.SLOW, env=gate.env),
                 "evaluator": lambda: self.evaluator("--json")}
        for order in (("evaluator", "worker", "ps"), ("ps", "evaluator", "worker"), ("ps", "worker", "evaluator")):
            with self.subTest(order):
                gate = self.close_gate(20)
                started = {role: roles[role]() for role in order}
                read = [support.read_line(started["evaluator"].stdout)]  # announces the publication
                for steps in (40, 80):
                    read.append(support.read_line(started["evaluator"].stdout))
                    gate.allow(steps)
                read.append(support.read_line(started["evaluator"].stdout))
                gate.open()
                lines = self.evaluations(started["evaluator"], *read)
                support.finish(started["worker"])
                support.finish(started["ps"])
                self.assertGreater(len(lines), 2)
                self.assertEqual(lines[-1]["step"], 300)
                self.assertEqual([line["generation"] for line in lines], sorted({line["generation"] for line in lines}))
                self.assertEqual([line["unix_seconds"] for line in lines], sorted(line["unix_seconds"] for line in lines))
                self.assertLess(lines[-1]["loss"], lines[0]["loss"])
                self.assertGreater(lines[-1]["accuracy"], lines[0]["accuracy"])

    def test_an_evaluator_gets_no_options_of_training(self):
        with tempfile.TemporaryDirectory() as folder:
            first = pathlib.Path(folder, "first.safetensors")
            options = ["launch_shm", "--job", self.job, "--workers", "2", "--steps", "40", "--evaluate-every", "1s",
                       *self.SLOW]
            for more in (["--on-nan", "restore", "--checkpoint-dir", f"{folder}/d", "--save", first],
                         ["--init-from", first, "--init-match", "w", "--shard-data", "by-label", "--enqueue", "step"],
                         ["--push-every", "4", "--local-lr", "0.1", "--on-nan", "skip"]):
                gate = self.close_gate(5)  # a job may end before its evaluator has started
                launch = self.start(*options, *more, env=gate.env)
                support.wait_for_line(launch.stderr, "test loss")
                gate.open()
                code, out, err = support.finish(launch)
                self.assertEqual(code, 0, err)
                self.assertIn("  evaluated ", out)

    def test_a_launch_evaluates_and_its_last_evaluation_is_its_test(self):
        for options in (["--mode", "sync"], ["--model", "logistic", "--data", "zipf:200x2000"],
                        ["--ema", "0.9", "--publish-averages", "--publish", f"{self.job}-other"]):
            with self.subTest(options), tempfile.TemporaryDirectory() as folder:
                gate, began = self.close_gate(30), time.monotonic()
                launch = self.start("launch_shm", "--job", self.job, "--workers", "2", "--steps", "300", *options, *self.SLOW,
                                    "--evaluate-every", "20steps", "--publish-every", "10steps", "--json", "--summary-dir",
                                    folder, env=gate.env)
                shown = lambda: read(folder).get("test", {}).get("scalars", {}).get("loss", [])
                support.wait_until(lambda: len(shown()) >= 1, "an evaluation")
                gate.allow(60)
                support.wait_until(lambda: len(shown()) >= 2, "another evaluation")
                gate.open()
                code, out, err = support.finish(launch)
                took = time.monotonic() - began
                self.assertEqual(code, 0, err)
                said = json.loads(out)
                evaluations = said["evaluations"]
                self.assertGreater(len(evaluations), 2, err)
                kind = "ema_test_" if "--ema" in options else "test_"
                self.assertEqual(evaluations[-1]["step"], said["steps"])
                self.assertAlmostEqual(evaluations[-1]["loss"], said[kind + "loss"], places=5)
                self.assertAlmostEqual(evaluations[-1]["accuracy"], said[kind + "accuracy"], places=5)
                self.assertLessEqual(evaluations[0]["seconds"], evaluations[-1]["seconds"])
                self.assertLessEqual(evaluations[-1]["seconds"], took)
                self.assertEqual([step for step, _ in shown()], [one["step"] for one in evaluations])
                self.assertAlmostEqual(shown()[-1][1], evaluations[-1]["loss"], places=5)

    def test_the_summary_and_the_progress_tell_it(self):
        launch, gate = self.start_gated("--workers", "1", "--evaluate-every", "100ms")
        self.assertRegex(support.wait_for_line(launch.stderr, "test loss"), r"test loss \d\.\d{4}")
        gate.open()
        code, out, err = support.finish(launch)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"\n  evaluated \d+ times: the lowest loss was 0\.\d{4} at step \d+\n")

    def test_it_goes_on_with_the_ps_that_takes_the_job_over(self):
        first = self.ps()
        evaluator = self.evaluator("--json")
        worker = self.start("worker_shm", "--job", self.job, "--json", *self.SLOW)
        support.wait_until(lambda: support.read_line(evaluator.stdout), "it has found the publication")
        support.wait_until(lambda: support.read_line(evaluator.stdout), "an evaluation")
        first.kill()
        first.communicate()
        before = support.workers_of(self.job)[0]["steps"]
        second = self.ps("--adopt")
        def later():
            line = json.loads(support.read_line(evaluator.stdout))
            return line["step"] > before + 50
        support.wait_until(later, "an evaluation of a later step")
        self.assertIsNone(evaluator.poll())
        worker.terminate()
        support.finish(worker)
        second.terminate()
        support.finish(second)
        self.assertEqual(support.finish(evaluator).code, 0)

    def test_where_nobody_of_the_job_is_left_it_says_so(self):
        ps = self.ps()
        evaluator = self.evaluator()
        worker = self.start("worker_shm", "--job", self.job, *self.SLOW)
        support.wait_until(lambda: support.read_line(evaluator.stdout), "an evaluation")
        for process in (ps, worker):
            process.kill()
            process.communicate()
        result = support.finish(evaluator)
        self.assertEqual(result.code, 1)
        self.assertIn(f"job {self.job} is dead", result.err)
        run("inspect_shm", "rm", "--job", self.job)
        run("inspect_shm", "rm", "--publication", self.job)

    def test_it_can_be_interrupted_while_it_waits_and_while_it_evaluates(self):
        waiting = self.evaluator()
        self.assertIn(f"waiting for publication {self.job}", support.read_line(waiting.stderr))
        waiting.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(waiting).code, 130)
        ps = self.ps()
        worker = self.start("worker_shm", "--job", self.job, *self.SLOW)
        evaluating = self.evaluator()
        support.wait_until(lambda: support.read_line(evaluating.stdout), "an evaluation")
        evaluating.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(evaluating).code, 130)
        worker.terminate()
        support.finish(worker)
        ps.terminate()
        support.finish(ps)
        never = self.evaluator("--wait-job", "50ms")
        result = support.finish(never)
        self.assertEqual(result.code, 1)
        self.assertIn(f"waited 0.05 s for publication '{self.job}'", result.err)

    def test_another_model_than_the_job_s_is_refused(self):
        ps = self.ps()
        worker = self.start("worker_shm", "--job", self.job, *self.SLOW)
        for options, says in ((["--data", "synthetic:32x4"], "as float32 [64, 128], but the model as float32 [32, 64]"),
                              (["--model", "logistic"], "'w'")):
            with self.subTest(says):
                self.assert_fails(1, support.finish(self.evaluator(*options)), says)
        worker.terminate()
        support.finish(worker)
        ps.terminate()
        support.finish(ps)

    def test_where_the_evaluator_dies_the_workers_go_on_and_the_launch_tells_it(self):
        launch, gate = self.start_gated("--workers", "1", "--evaluate-every", "20ms")
        def evaluator():
            for pid in support.children(launch.pid):
                if b"--evaluate\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        pid = support.wait_until(evaluator, "an evaluator")
        support.wait_training(self.job, 1)
        os.kill(pid, signal.SIGKILL)
        support.wait_for_line(launch.stderr, "evaluator was killed by signal 9")
        gate.open()
        code, out, err = support.finish(launch)
        self.assertEqual(code, 1)
        self.assertIn("900 steps", out)


if __name__ == "__main__":
    support.main()
