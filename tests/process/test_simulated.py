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
        found = self.launch("--model", "count", "--size", 10000, "--workers", 3, "--steps", 50, "--device",
                            "simulated,2:cpu")
        self.assertEqual((found["value_min"], found["value_max"]), (150, 150))

    def test_it_is_not_taken_for_a_gpu(self):
        self.start_ps("--workers", 1, "--steps", 200)
        got = support.run("worker_shm", "--job", self.job, "--device", "cuda", "--data", "digits")
        self.assert_fails(1, got, "worker_shm", "device cuda: ", "simulated")


if __name__ == "__main__":
    support.main()
