"""--summary-dir: what the package tensorboard reads from the summaries that the programs write."""
import json
import math
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile


import support
from support import ProcessTest, run


def read(folder):
    reader = subprocess.run([support.venv_python(), str(support.SOURCE / "tests" / "process" / "read_summaries.py"), str(folder)],
                            capture_output=True, text=True, timeout=support.PATIENCE * 2)
    if reader.returncode != 0:
        raise AssertionError(reader.stderr)
    return json.loads(reader.stdout)


def last(points):
    return points[-1][1]


class Summaries(ProcessTest):
    def setUp(self):
        super().setUp()
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.folder = pathlib.Path(parent.name, "runs", "first")  # does not exist yet

    def launch(self, *options):
        code, out, err = run("launch_shm", "--job", self.job, "--json", "--summary-dir", self.folder, *options)
        self.assertEqual(code, 0, err)
        self.assertNotIn("cannot write", err)
        return json.loads(out), read(self.folder)

    def test_a_job_s_ps_workers_and_test_write_what_its_summary_says(self):
        options = ("--mode", "sync", "--workers", "2", "--steps", "120", "--lr-schedule", "step:0.5:60", "--ema", "0.9")
        said, runs = self.launch(*options, "--summary-every", "25steps")
        self.assertEqual(set(runs), {"ps", "worker-0", "worker-1", "test"})
        code, out, err = run("launch_shm", "--job", self.job, "--json", *options)
        self.assertEqual(json.loads(out)["digest"], said["digest"])  # summaries change nothing
        ps, test = runs["ps"]["scalars"], runs["test"]["scalars"]
        self.assertEqual(ps["loss"][-1][0], 120)
        self.assertAlmostEqual(last(ps["loss"]), said["training_loss"], places=5)
        self.assertAlmostEqual(last(ps["learning_rate"]), 0.1 * 0.5 ** 2, places=6)
        self.assertEqual(last(ps["workers/dropped_gradients"]), said["dropped"])
        self.assertGreater(last(ps["speed/steps_per_second"]), 0)
        self.assertGreater(last(ps["speed/examples_per_second"]), 0)
        for worker in said["per_worker"]:
            of_rank = f"worker-{worker['rank']}"
            self.assertAlmostEqual(last(ps[f"loss/{of_rank}"]), worker["training_loss"], places=5)
            own = runs[of_rank]
            self.assertAlmostEqual(last(own["scalars"]["loss"]), worker["training_loss"], places=5)
            steps = [step for step, _ in own["scalars"]["gradient_norm"]]
            self.assertEqual(steps, [0, 25, 50, 75, 100])  # in sync mode the worker computes a gradient in every step
            for name in ("hid_w", "sm_b"):
                histogram = last(own["histograms"][f"gradients/{name}"])
                norm = own["scalars"][f"gradient_norm/{name}"][-1][1]
                self.assertAlmostEqual(norm ** 2, histogram["sum_squares"], places=5)
            self.assertIn("| model | mlp |", own["texts"]["settings"][0])
        self.assertEqual(last(test["accuracy"]), self.float32(said["test_accuracy"]))
        self.assertEqual(last(test["average/loss"]), self.float32(said["ema_test_loss"]))
        weights = last(runs["ps"]["histograms"]["parameters/hid_w"])
        self.assertEqual(weights["num"], 64 * 128)
        self.assertEqual(sum(weights["bucket"]), 64 * 128)
        self.assertEqual(len(weights["bucket"]), len(weights["bucket_limit"]))
        self.assertIn("| mode | sync |", runs["ps"]["texts"]["settings"][0])
        self.assertIn("| lr-schedule | step:0.5:60 |", runs["ps"]["texts"]["settings"][0])

    def float32(self, value):
        return struct.unpack("f", struct.pack("f", value))[0]

    def test_async_workers_staleness_is_that_of_the_pushes_since_the_last_summary(self):
        said, runs = self.launch("--workers", "3", "--steps", "900", "--summary-every", "300steps", "--delay", "all:1ms")
        ps = runs["ps"]
        means = [mean for _, mean in ps["scalars"]["staleness/mean"]]
        counts = [histogram["num"] for _, histogram in ps["histograms"]["staleness"]]
        self.assertEqual(sum(counts), sum(count for _, count in said["staleness"]["histogram"]))
        mean = sum(m * count for m, count in zip(means, counts, strict=True)) / sum(counts)
        self.assertAlmostEqual(mean, said["staleness"]["mean"], places=2)
        self.assertEqual(len(ps["scalars"]["staleness/p99"]), len(means))
        self.assertTrue(all(alive <= 3 for _, alive in ps["scalars"]["workers/alive"]))
        self.assertIn(3, [alive for _, alive in ps["scalars"]["workers/alive"]])

    def test_what_local_sgd_pushes_is_called_an_update(self):
        _, runs = self.launch("--workers", "1", "--push-every", "4", "--steps", "40")
        self.assertIn("update_norm", runs["worker-0"]["scalars"])
        self.assertNotIn("gradient_norm", runs["worker-0"]["scalars"])

    def test_sparse_models_write_the_same_runs(self):
        _, runs = self.launch("--model", "logistic", "--data", "zipf:200x2000", "--workers", "2", "--epochs", "2",
                              "--delay", "all:2ms", "--summary-every", "10steps")
        self.assertEqual(set(runs), {"ps", "worker-0", "worker-1", "test"})
        self.assertIn("auc", runs["test"]["scalars"])
        self.assertGreater(last(runs["worker-0"]["histograms"]["gradients/w"])["num"], 0)

    def test_a_process_that_trains_alone_writes_the_same_files_and_its_gradient_is_what_moves_the_parameters(self):
        for model, options in (("softmax", ["--data", "digits"]), ("logistic", ["--data", "zipf:100x1000"])):
            with self.subTest(model):
                folder = self.folder / model
                code, out, err = run("worker_shm", "--standalone", "--model", model, *options, "--steps", "30", "--json",
                                     "--summary-dir", folder, "--summary-every", "1step", "--lr", "0.5")
                self.assertEqual(code, 0, err)
                runs = read(folder)
                self.assertEqual(set(runs), {"ps", "worker-0", "test"})
                self.assertAlmostEqual(last(runs["test"]["scalars"]["loss"]), json.loads(out)["test_loss"], places=5)
                self.assertEqual([step for step, _ in runs["ps"]["scalars"]["loss"]], list(range(31)))
                if model != "softmax":
                    continue
                biases = dict(map(tuple, runs["ps"]["histograms"]["parameters/sm_b"]))
                norm = runs["worker-0"]["scalars"]["gradient_norm/sm_b"][0][1]
                self.assertEqual(biases[0]["sum_squares"], 0)
                self.assertAlmostEqual(math.sqrt(biases[1]["sum_squares"]) / 0.5, norm, places=5)

    def test_a_ps_that_is_killed_leaves_a_readable_file_and_the_next_one_goes_on(self):
        job = ("--job", self.job, "--workers", "1", "--summary-dir", self.folder, "--summary-every", "5ms")
        ps = self.start("ps_shm", *job)
        worker = self.start("worker_shm", "--job", self.job, "--delay", "1ms")
        support.wait_training(self.job, 1)
        support.wait_until(lambda: sum(file.stat().st_size for file in (self.folder / "ps").glob("*")) > 10_000, "summaries")
        ps.send_signal(signal.SIGKILL)
        ps.communicate()
        # TensorBoard reads a file for as long as it grows: reading while a process writes may never end.
        worker.send_signal(signal.SIGSTOP)
        before = read(self.folder)["ps"]["scalars"]["loss"]
        worker.send_signal(signal.SIGCONT)
        self.assertGreater(len(before), 1)
        adopting = self.start("ps_shm", *job, "--adopt")
        support.wait_until(lambda: len(list((self.folder / "ps").iterdir())) == 2, "another file")
        support.wait_training(self.job, 1)
        worker.terminate()
        support.finish(worker)
        adopting.terminate()
        support.finish(adopting)
        loss = read(self.folder)["ps"]["scalars"]["loss"]
        self.assertEqual(loss[:len(before)], before)
        self.assertGreater(len(loss), len(before))
        steps = [step for step, _ in loss]
        self.assertEqual(steps, sorted(steps))

    def test_where_the_folder_vanishes_training_goes_on_and_so_does_writing_when_it_can(self):
        launch = self.start("launch_shm", "--job", self.job, "--workers", "1", "--steps", "100000000", "--delay", "all:1ms",
                            "--summary-dir", self.folder, "--summary-every", "5ms")
        writers = [self.folder / name for name in ("ps", "worker-0")]
        support.wait_until(lambda: all(w.is_dir() and list(w.iterdir()) for w in writers), "summaries")
        shutil.move(self.folder, f"{self.folder}-before")
        for _ in range(100):  # retried if a writer creates the folder first
            try:
                self.folder.write_text("in the way")
                break
            except IsADirectoryError:
                shutil.rmtree(self.folder, ignore_errors=True)
        before = support.wait_training(self.job, 1)[0]["steps"]
        support.wait_until(lambda: support.workers_of(self.job)[0]["steps"] > before + 200, "training goes on")
        self.folder.unlink()
        support.wait_until(lambda: all(w.is_dir() and list(w.iterdir()) for w in writers), "summaries again")
        launch.send_signal(signal.SIGINT)
        result = support.finish(launch)
        self.assertEqual(result.code, 130, result.err)
        self.assertEqual(result.err.count("cannot write summaries: cannot make the folder"), 2, result.err)
        self.assertEqual(result.err.count("training continues"), 2)
        self.assertEqual(result.err.count("summaries are being written again"), 2)
        self.assertIn(str(self.folder), result.err)
        for folder in (self.folder, f"{self.folder}-before"):
            self.assertIn("loss", read(folder)["ps"]["scalars"])


if __name__ == "__main__":
    support.main()
