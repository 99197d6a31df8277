"""The GPU that is simulated on the CPU: a build with -Dcuda=simulated has it; other programs report how to get it."""
import json
import os
import unittest

import support

IS_SIMULATED = os.environ.get("PS_SHM_CUDA") == "simulated"


@unittest.skipIf(IS_SIMULATED, "skipped: this build has a simulated GPU")
class WithoutIt(support.ProcessTest):
    def test_a_worker_says_in_one_line_which_build_has_it(self):
        self.start_ps("--workers", 1, "--steps", 200)
        got = support.run("worker_shm", "--job", self.job, "--device", "simulated", "--data", "digits")
        self.assert_fails(1, got, "worker_shm", "device simulated: ", "-Dcuda=simulated")

    def test_a_worker_that_may_use_a_gpu_has_as_many_threads_as_its_job_allows(self):
        self.start_ps("--workers", 1, "--steps", 200, "--threads", 3)
        for more, threads in ((("--device", "auto"), 3), (("--device", "auto", "--threads", 2), 2), (("--threads", 2), 2)):
            with self.subTest(more):  # the reason for which it is not recorded tells its threads
                got = support.run("worker_shm", "--job", self.job, "--record", "/tmp/none", *more)
                self.assert_fails(1, got, "worker_shm", f"--threads {threads} have no order")


@unittest.skipUnless(IS_SIMULATED, "skipped: this build has no simulated GPU")
class WithIt(support.ProcessTest):
    def test_its_workers_train_beside_one_on_the_cpu(self):
        for mode in ("async", "sync"):
            found = self.launch("--data", "digits", "--mode", mode, "--steps", 300, "--workers", 3, "--device",
                                "simulated,2:cpu")
            self.assertGreater(found["test_accuracy"], 0.8)
            self.assertEqual(["gpu" in worker for worker in found["per_worker"]], [True, True, False])
            self.assertIn("simulated", json.dumps(found["per_worker"][0]))

    def test_no_update_is_lost(self):
        found = self.launch("--model", "count", "--count-size", 10000, "--workers", 3, "--steps", 50, "--device",
                            "simulated,2:cpu")
        self.assertEqual((found["value_min"], found["value_max"]), (150, 150))

    def test_a_sparse_model_comes_to_the_results_of_the_cpu(self):
        for model, source in (("logistic", "zipf:200x600x8"), ("svm", "zipf:200x600x8"), ("mf", "ratings:60x40x1500"),
                              ("fm", "ratings:60x40x1500"), ("fm", "zipf:200x600x8")):
            for keyed in ((), ("--keyed",)):
                options = ("--model", model, "--data", source, "--workers", 1, "--combine", 30, "--l2", 1e-3,
                           "--epochs", 5, *keyed)
                with self.subTest(options):
                    on_cpu, on_gpu = self.launch(*options), self.launch(*options, "--device", "simulated")
                    for metric in "test_loss", "training_loss", *({"test_accuracy", "test_rmse"} & set(on_cpu)):
                        self.assertAlmostEqual(on_gpu[metric], on_cpu[metric], places=4)
                    self.assertEqual(on_gpu["steps"], on_cpu["steps"])
                    gpu = on_gpu["per_worker"][0]["gpu"]
                    self.assertEqual(gpu["pulls"], gpu["pushes"])
                    self.assertLess(0, gpu["sent_rows"])
                    self.assertNotIn("gpu", on_cpu["per_worker"][0])

    def test_sparse_workers_train_beside_one_on_the_cpu(self):
        found = self.launch("--model", "logistic", "--combine", 50, "--device", "simulated,2:cpu", "--epochs", 3)
        self.assertGreater(found["test_accuracy"], 0.75)
        self.assertEqual(["gpu" in worker for worker in found["per_worker"]], [True, True, False])

    def test_it_is_not_taken_for_a_gpu(self):
        self.start_ps("--workers", 1, "--steps", 200)
        got = support.run("worker_shm", "--job", self.job, "--device", "cuda", "--data", "digits")
        self.assert_fails(1, got, "worker_shm", "device cuda: ", "simulated")


if __name__ == "__main__":
    support.main()
