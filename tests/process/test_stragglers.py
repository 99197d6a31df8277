"""Stragglers, loss against time and the breakdown of time, as a user requests them."""
import json

import support
from support import ProcessTest, run


class Stragglers(ProcessTest):
    def launch_delayed(self, *options):
        return self.launch("--steps", "3000", *options)["per_worker"]

    def launch_in_step(self, *options):
        """Runs a launch in which each worker makes about a third of the steps, however fast the others are."""
        return self.launch_delayed("--mode", "ssp", "--staleness", "2", *options)

    def test_a_factor_delays_that_worker_and_no_other(self):
        slow, *others = self.launch_in_step("--delay", "0:10x")
        self.assertGreater(slow["seconds_in"]["delay"], 0)
        self.assertTrue(all(worker["seconds_in"]["delay"] == 0 for worker in others))

    def test_all_in_a_share_of_the_steps_delays_each_worker(self):
        for worker in self.launch_in_step("--delay", "all:2ms@0.1"):
            # Of about 1000 steps at least 50 draw the delay. Each delay is at least 2 ms, less the excess of the one
            # before.
            self.assertGreater(worker["seconds_in"]["delay"], 0.05)

    def test_a_delay_of_one_rank_is_added_where_all_have_another(self):
        workers = self.launch_in_step("--delay", "all:1ms", "--delay", "1:3ms", "--steps", "600")
        for rank, least in enumerate((0.001, 0.003, 0.001)):
            self.assertGreater(workers[rank]["seconds_in"]["delay"], 0.9 * least * workers[rank]["steps"])

    def test_the_phases_take_no_longer_than_the_worker_runs(self):
        for worker in self.launch_in_step("--delay", "1:1ms"):
            self.assertLess(sum(worker["seconds_in"].values()), 1.001 * worker["seconds"])
            self.assertTrue(all(seconds >= 0 for seconds in worker["seconds_in"].values()))

    @support.measures_time
    def test_a_factor_slows_the_worker_down_by_about_that_much(self):
        slow, *others = self.launch_delayed("--delay", "0:10x")
        phases = slow["seconds_in"]
        # nine times, if the worker had a processor of its own
        self.assertGreater(phases["delay"], 2 * phases["gradient"])
        self.assertTrue(all(worker["seconds_in"]["delay"] == 0 for worker in others))
        self.assertLess(slow["steps"], min(worker["steps"] for worker in others))

    @support.measures_time
    def test_all_and_a_share_of_the_steps(self):
        workers = self.launch_delayed("--delay", "all:2ms@0.1")
        for worker in workers:
            mean = worker["seconds_in"]["delay"] / worker["steps"]
            self.assertGreater(mean, 0.0001)  # the mean is 0.2 ms; the delayed steps are drawn at random
            self.assertLess(mean, 0.0015)

    @support.measures_time
    def test_one_rank_can_differ_from_all(self):
        workers = self.launch_delayed("--delay", "all:1ms", "--delay", "1:20ms")
        self.assertTrue(all(worker["seconds_in"]["delay"] > 0 for worker in workers))
        self.assertLess(workers[1]["steps"], workers[0]["steps"] / 4)

    @support.measures_time
    def test_where_the_time_goes_sums_up_to_the_time_there_was(self):
        for worker in self.launch_delayed("--mode", "ssp", "--delay", "1:1ms"):
            self.assertAlmostEqual(
                sum(worker["seconds_in"].values()), worker["seconds"], delta=0.25 * worker["seconds"]
            )
            if worker["rank"] != 1:
                self.assertGreater(worker["seconds_in"]["step"], worker["seconds_in"]["push"])  # it waits for worker 1


class Curve(ProcessTest):
    def check(self, result, points):
        curve = result["curve"]
        self.assertLessEqual(len(curve), points + 1)
        for before, after in zip(curve, curve[1:]):
            self.assertLess(before["step"], after["step"])
            self.assertLessEqual(before["seconds"], after["seconds"])
        self.assertGreaterEqual(curve[0]["loss"], curve[-1]["loss"])
        self.assertEqual(curve[-1]["step"], result["steps"])
        self.assertEqual(curve[-1]["accuracy"], result["test_accuracy"])
        self.assertEqual(curve[-1]["loss"], result["test_loss"])
        self.assertEqual(curve[-1]["seconds"], result["seconds"])

    def test_loss_against_time_in_every_mode(self):
        for mode in (
            ["--mode", "async"],
            ["--mode", "ssp", "--staleness", "2"],
            ["--mode", "sync"],
            ["--mode", "sync", "--quorum", "2"],
            ["--layout", "inplace"],
            ["--ps-tasks", "2"],
        ):
            with self.subTest(mode=mode):
                self.check(self.launch("--curve", "20", "--steps", "1500", "--delay", "all:0.2ms", *mode), 20)

    @support.measures_time
    def test_a_curve_has_points_on_the_way(self):
        curve = self.launch("--curve", "20", "--steps", "1500", "--delay", "all:0.2ms")["curve"]
        self.assertGreater(len(curve), 3)
        self.assertGreater(curve[0]["loss"], 1.0)

    def test_a_synchronous_curve_is_of_whole_training_and_changes_no_bit_of_it(self):
        options = ["--mode", "sync", "--steps", "800", "--seed", "3", "--delay", "all:0.2ms"]
        with_curve = self.launch("--curve", "10", *options)
        self.check(with_curve, 10)
        self.assertEqual(with_curve["digest"], self.launch(*options)["digest"])

    def test_none_without_the_option(self):
        self.assertNotIn("curve", self.launch("--steps", "200"))

    def test_copies_of_a_large_model_are_limited(self):
        # Each copy takes at least 1.6 MB: 10000 of them would be 16 GB.
        code, out, err = run(
            "launch_shm",
            "--job",
            self.job,
            "--model",
            "softmax",
            "--data",
            "synthetic:40000x10x20",
            "--batch",
            "1",
            "--steps",
            "50",
            "--curve",
            "10000",
            "--json",
        )
        self.assertEqual(code, 0, err)
        self.assertIn("reduced to 167", err)
        self.assertEqual(json.loads(out)["curve"][-1]["step"], json.loads(out)["steps"])

    def test_the_histogram_of_staleness_sums_up(self):
        staleness = self.launch("--steps", "1000")["staleness"]
        total = sum(count for _, count in staleness["histogram"])
        least_sum = sum(least * count for least, count in staleness["histogram"])
        most_sum = sum((least if least < 64 else 2 * least) * count for least, count in staleness["histogram"])
        self.assertGreaterEqual(staleness["mean"] * total, least_sum * 0.999)
        self.assertLessEqual(staleness["mean"] * total, most_sum * 1.001)
        self.assertGreaterEqual(staleness["max"], staleness["histogram"][-1][0])
        self.assertEqual(
            sorted(least for least, _ in staleness["histogram"]), [least for least, _ in staleness["histogram"]]
        )


if __name__ == "__main__":
    support.main()
