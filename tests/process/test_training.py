"""Whole jobs: what a user sees of training digits, and what must hold in each mode and layout."""
import os
import pathlib
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

    @unittest.skipUnless(os.environ.get("PS_TEST_MNIST"), "PS_TEST_MNIST names no folder with the MNIST files")
    def test_mnist_reaches_its_accuracy(self):
        result = self.launch("--model", "mlp", "--data", os.environ["PS_TEST_MNIST"], "--steps", "30000", timeout=900)
        self.assertGreaterEqual(result["test_accuracy"], 0.975)


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
        result = self.launch("--model", "count", "--workers", "4", "--size", "100000", "--steps", steps, *more)
        self.assertEqual((result["value_min"], result["value_max"]), (4 * steps, 4 * steps))

    def test_every_element_of_a_versioned_vector_is_exact(self):
        self.every_element()

    def test_every_element_of_an_in_place_vector_is_exact(self):
        self.every_element("--layout", "inplace")

    def test_every_element_is_exact_in_sync_mode(self):
        self.every_element("--mode", "sync")


if __name__ == "__main__":
    support.main()
