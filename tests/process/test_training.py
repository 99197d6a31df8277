"""Training runs on digits: what a user sees, and what must hold in each mode and layout."""
import os
import pathlib
import tempfile
import unittest

import support
from support import ProcessTest


class Training(ProcessTest):
    def test_three_workers_train_the_digits_without_any_option(self):
        result = self.launch()
        self.assertGreaterEqual(result["test_accuracy"], 0.96)
        self.assertEqual(result["workers"], 3)
        self.assertEqual(len(result["per_worker"]), 3)
        self.assertEqual(result["mode"], "async")
        self.assertGreater(result["staleness"]["max"], 0)

    def test_in_place_variables_reach_the_same_accuracy(self):
        result = self.launch("--layout", "inplace")
        self.assertGreaterEqual(result["test_accuracy"], 0.96)
        self.assertGreater(result["staleness"]["max"], 0)

    def test_racy_adds_can_be_chosen_for_comparison(self):
        result = self.launch("--layout", "inplace", "--adds", "racy", "--steps", "3000")
        self.assertEqual(result["adds"], "racy")
        self.assertGreaterEqual(result["test_accuracy"], 0.9)

    def test_softmax_regression_trains(self):
        self.assertGreaterEqual(self.launch("--model", "softmax", "--steps", "4000")["test_accuracy"], 0.93)

    def test_one_process_trains_without_a_server(self):
        code, out, err = support.run("worker_shm", "--standalone", "--steps", "3000", "--json")
        self.assertEqual(code, 0, err)
        self.assertGreaterEqual(support.json.loads(out)["test_accuracy"], 0.95)

    def test_epochs_take_that_many_examples_and_at_most_a_step_more(self):
        for epochs, of_step, options in ((10, 3200, ["--push-every", "100"]), (30, 1000, ["--batch", "1000"]),
                                         (10, 32, ["--batch", "32"])):
            with self.subTest(options):
                options = ["--epochs", epochs, *options]
                steps = -(-epochs * 1437 // of_step)  # 1437 digits
                self.assertEqual(self.launch("--workers", "1", *options)["steps"], steps)
                if "--push-every" in options:
                    continue  # a process without a ps pushes nothing
                code, out, err = support.run("worker_shm", "--standalone", *options, "--json")
                self.assertEqual(code, 0, err)
                self.assertEqual(support.json.loads(out)["steps"], steps)

    @unittest.skipUnless(os.environ.get("PS_SHM_TEST_MNIST"), "PS_SHM_TEST_MNIST names no folder with the MNIST files")
    def test_mnist_reaches_its_accuracy(self):
        result = self.launch("--model", "mlp", "--data", os.environ["PS_SHM_TEST_MNIST"], "--steps", "30000", timeout=900)
        self.assertGreaterEqual(result["test_accuracy"], 0.975)


class NotFinite(ProcessTest):
    """--on-nan, in runs that diverge within their first steps because of a huge learning rate."""

    def diverge(self, *more):
        return support.run("launch_shm", "--job", self.job, "--workers", "2", "--lr", "1e30", *more)

    def test_a_warning_lets_the_run_go_on(self):
        code, out, err = self.diverge("--steps", "40", "--on-nan", "warn")
        self.assertEqual(code, 0, err)
        self.assertIn("the loss is not finite at training step", err)

    def test_by_default_it_fails_with_worker_step_and_loss(self):
        for options in ((), ("--mode", "sync"), ("--on-nan", "stop")):
            code, out, err = self.diverge("--steps", "1000000", *options)
            self.assertEqual(code, 1, err)
            for rank in ("0", "1"):
                self.assertRegex(err, rf"worker {rank} ended with exit code 1: worker {rank} stops: the loss is nan at training "
                                      rf"step \d+ \(global step \d+\)")
        standalone = support.run("worker_shm", "--standalone", "--lr", "1e30", "--steps", "40")
        self.assert_fails(1, standalone, "standalone stops: the loss is nan at training step 2;")

    def test_skip_ends_the_steps_without_their_gradients(self):
        for options in ((), ("--mode", "sync")):
            code, out, err = self.diverge("--steps", "40", "--on-nan", "skip", *options, "--json")
            self.assertEqual(code, 0, err)
            self.assertIn("its gradient is not pushed", err)
            self.assertGreaterEqual(support.json.loads(out)["steps"], 40)

    def test_a_worker_that_diverges_on_its_own_does_not_harm_the_job(self):
        local = ("--push-every", "4", "--local-lr")
        for on_nan, code in (("stop", 1), ("skip", 0)):
            ps = self.start_ps("--workers", "2", "--mode", "sync", "--optimizer", "add", "--steps", "300")
            bad = self.start("worker_shm", "--job", self.job, *local, "1e30", "--rank", "1", "--on-nan", on_nan)
            good = support.run("worker_shm", "--job", self.job, *local, "0.1", "--rank", "0")
            self.assertEqual(good.code, 0, good.err)
            self.assertRegex(good.out, r"test accuracy 0\.[7-9]")
            result = support.finish(bad)
            self.assertEqual(result.code, code, result.err)
            self.assertIn("worker 1", result.err)
            self.assertEqual(support.finish(ps).code, 0)

    def test_restore_goes_on_from_the_newest_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = ("--checkpoint-dir", folder, "--workers", "2")
            self.launch(*kept, "--steps", "300")
            reached = max(int(name.removeprefix("step-")) for name in os.listdir(folder))
            # The learning rate is 1e29 up to that step, and 0.1 from the next one on.
            code, out, err = support.run("launch_shm", "--job", self.job, *kept, "--steps", "600", "--lr", "1e29", "--lr-schedule",
                                         f"step:1e-30:{reached + 1}", "--on-nan", "restore", "--json")
            self.assertEqual(code, 0, err)
            self.assertRegex(err, rf"the loss is nan .* the job was reset to checkpoint {folder}/step-{reached}")
            self.assertGreater(support.json.loads(out)["test_accuracy"], 0.6)

    def test_restore_gives_a_checkpoint_up_that_diverges_again(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = ("--checkpoint-dir", folder, "--workers", "2")
            self.launch(*kept, "--steps", "50")
            code, out, err = self.diverge(*kept, "--steps", "1000000", "--on-nan", "restore")
            self.assertEqual(code, 1, err)
            self.assertEqual(err.count("was reset to checkpoint"), 3, err)
            self.assertRegex(err, r"stops: the loss is nan .*, again, and checkpoint .* was restored 3 times")


class BFloat16(ProcessTest):
    """--dtype bfloat16: values in half the memory. In sync mode each run has the same bits."""

    OPTIONS = "--dtype", "bfloat16", "--mode", "sync", "--workers", "2"

    def test_it_reaches_the_accuracy_of_float32(self):
        self.assertGreaterEqual(self.launch(*self.OPTIONS, "--steps", "3000")["test_accuracy"], 0.96)

    def test_it_reaches_it_in_place(self):
        more = "--dtype", "bfloat16", "--layout", "inplace", "--steps", "3000"
        self.assertGreaterEqual(self.launch(*more)["test_accuracy"], 0.95)

    def test_two_halves_from_a_checkpoint_are_the_whole(self):
        more = *self.OPTIONS, "--optimizer", "adam", "--ema", "0.9", "--checkpoint-dir"
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as halves:
            expected = self.launch(*more, whole, "--steps", "60")
            self.launch(*more, halves, "--steps", "30")
            self.assertEqual(self.launch(*more, halves, "--steps", "60")["digest"], expected["digest"])
            again = self.launch(*more, halves, "--steps", "60")  # nothing is left to do: of what the checkpoint has
            for key in "digest", "test_accuracy":
                self.assertEqual(again[key], expected[key])

    def test_a_recorded_run_is_replayed_bit_for_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch("--dtype", "bfloat16", "--steps", "100", "--record", folder + "/r")
            self.assertEqual(self.launch("--replay", folder + "/r")["digest"], run["digest"])

    def test_publications_files_and_the_inspector_have_it(self):
        with tempfile.TemporaryDirectory() as folder:
            launch, gate = self.start_gated(*self.OPTIONS, "--evaluate-every", "100steps", "--ema", "0.9", "--save",
                                            folder + "/w.safetensors", "--keep-segments", "--json", mode="sync")
            support.wait_for_line(launch.stderr, "test loss")
            gate.open()
            code, out, err = support.finish(launch)
            self.assertEqual(code, 0, err)
            result = support.json.loads(out)
            self.assertAlmostEqual(result["evaluations"][-1]["accuracy"], result["test_accuracy"])
            header = (pathlib.Path(folder) / "w.safetensors").read_bytes()[:2000]
            self.assertIn(b'"BF16"', header)
            code, out, err = support.run("inspect_shm", "vars", "--job", self.job)
            self.assertEqual(code, 0, err)
            self.assertIn("bfloat16", out)
            self.assertEqual(support.run("inspect_shm", "doctor", "--job", self.job).code, 0)
            support.run("inspect_shm", "rm", "--job", self.job, "--force")

    def test_what_is_not_possible_is_refused(self):
        for program, more, says in (("launch_shm", ("--device", "simulated"), "choose --device cpu"),
                                    ("worker_shm", ("--standalone",), "a process without a ps trains in float32")):
            code, _, err = support.run(program, "--dtype", "bfloat16", *more)
            self.assertEqual(code, 2, err)
            self.assertIn(says, err)


class Sync(ProcessTest):
    def digest(self, *more):
        return self.launch("--mode", "sync", "--seed", "7", "--steps", "600", *more)["digest"]

    def test_same_seed_gives_the_same_bits_whatever_the_timing(self):
        first = self.digest()
        self.assertEqual(self.digest(), first)
        self.assertEqual(self.digest("--delay", "1:5ms"), first)

    def test_another_seed_gives_other_bits(self):
        self.assertNotEqual(self.digest("--seed", "8"), self.digest())

    def test_every_step_takes_all_workers(self):
        result = self.launch("--mode", "sync", "--steps", "200")
        self.assertEqual(result["steps"], 200)
        self.assertEqual({worker["steps"] for worker in result["per_worker"]}, {200})
        self.assertEqual(result["dropped"], 0)


class Count(ProcessTest):
    def test_four_workers_add_exactly(self):
        self.assertEqual(self.launch("--model", "count", "--workers", "4", "--steps", "100000")["value"], 400000)

    def every_element(self, *more):
        steps = 2000 if support.SLOWNESS == 1 else 200
        result = self.launch("--model", "count", "--workers", "4", "--count-size", "100000", "--steps", steps, *more)
        self.assertEqual((result["value_min"], result["value_max"]), (4 * steps, 4 * steps))

    def test_every_element_of_a_versioned_vector_is_exact(self):
        self.every_element()

    def test_every_element_of_an_in_place_vector_is_exact(self):
        self.every_element("--layout", "inplace")

    def test_every_element_is_exact_in_sync_mode(self):
        self.every_element("--mode", "sync")


if __name__ == "__main__":
    support.main()
