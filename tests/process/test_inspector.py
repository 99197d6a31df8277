"""What inspect_shm shows of live and dead jobs, for people and as JSON."""
import json
import signal

import support
from support import ProcessTest, run


class Inspector(ProcessTest):
    def setUp(self):
        super().setUp()
        self.ps = self.start("ps_shm", "--job", self.job, "--workers", "2")
        worker = ("worker_shm", "--job", self.job, "--model", "count", "--size", "5")
        self.assertEqual(run(*worker, "--steps", "3")[0], 0)

    def tearDown(self):
        if self.ps.poll() is None:
            self.ps.send_signal(signal.SIGTERM)
            support.finish(self.ps)
        super().tearDown()

    def json_of(self, command, *more):
        code, out, err = run("inspect_shm", command, "--job", self.job, *more, "--json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_ls_lists_the_job(self):
        code, out, _ = run("inspect_shm", "ls", "--json")
        self.assertEqual(code, 0)
        self.assertIn(self.job, out)
        self.assertIn(self.job, run("inspect_shm", "ls")[1])

    def test_show_tells_settings_and_step(self):
        self.assertIn(self.job, json.dumps(self.json_of("show")))
        self.assertIn("async", run("inspect_shm", "show", "--job", self.job)[1])

    def test_show_tells_the_size_of_chunks(self):
        self.assertEqual(self.json_of("show")["settings"]["chunk_bytes"], 0)  # by size

    def test_vars_lists_the_variable(self):
        (variable,) = self.json_of("vars")["variables"]
        self.assertEqual((variable["name"], variable["shape"]), ("var", [5]))
        self.assertIn("var", run("inspect_shm", "vars", "--job", self.job)[1])

    def test_workers_shows_who_has_left(self):
        (worker,) = self.json_of("workers")["workers"]
        self.assertEqual((worker["rank"], worker["state"], worker["steps"]), (0, "left", 3))

    def test_a_worker_that_has_no_loss_is_not_said_to_have_one_of_0(self):
        (worker,) = self.json_of("workers")["workers"]
        self.assertIsNone(worker["training_loss"])  # it counts, and learns nothing
        titles, row = run("inspect_shm", "workers", "--job", self.job)[1].splitlines()
        self.assertEqual(row[titles.index("LOSS")], "-")

    def test_dump_prints_values(self):
        self.assertIn("3", run("inspect_shm", "dump", "--job", self.job, "var")[1])
        self.assertIn("[3.0, 3.0, 3.0, 3.0, 3.0]", json.dumps(self.json_of("dump", "var")))

    def test_the_job_may_be_left_out_where_there_is_one(self):
        jobs = [p.name for p in support.SHM.glob("ps.*") if p.name.count(".") == 1]
        code, out, err = run("inspect_shm", "vars")
        if len(jobs) == 1:
            self.assertEqual(code, 0, err)
            self.assertIn("var", out)
        else:
            self.assertIn(self.job, err)

    def test_doctor_says_why_there_is_no_gpu(self):
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        code, out, err = run("inspect_shm", "doctor", "--job", self.job, "--json", env=hidden)
        self.assertEqual(code, 0, err)
        cuda = json.loads(out)["cuda"]
        self.assertEqual(cuda["gpus"], [])
        self.assertRegex(cuda["no_gpu"], "driver|no CUDA|CUDA_VISIBLE_DEVICES|/dev/nvidia")
        code, out, err = run("inspect_shm", "doctor", "--job", self.job, env=hidden)
        self.assertEqual(code, 0, err)
        self.assertIn(f"no GPU: {cuda['no_gpu']}\n", out)
        self.assertIn(f"CUDA: build {'for ' + cuda['built_for'] if cuda['built_for'] else 'without'};", out)

    def test_doctor_shows_each_gpu_with_its_strategies(self):
        code, out, err = run("inspect_shm", "doctor", "--job", self.job, "--json")
        self.assertEqual(code, 0, err)
        gpus = json.loads(out)["cuda"]["gpus"]
        if not gpus:
            self.skipTest("no GPU to use here")
        text = run("inspect_shm", "doctor", "--job", self.job)[1]
        for gpu in gpus:
            self.assertIn(f"GPU {gpu['device']}: {gpu['name']}", text)
            for strategy in gpu["strategy"].values():
                self.assertIn(strategy["reasons"]["native_adds"], text)

    def test_rm_refuses_a_live_job(self):
        self.assert_fails(1, run("inspect_shm", "rm", "--job", self.job), self.job)
        self.assertNotEqual(support.segments(self.job), [])

    def test_rm_removes_a_dead_job(self):
        self.ps.kill()
        self.ps.communicate()
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job)[0], 0)
        self.assertEqual(support.segments(self.job), [])

    def test_a_dead_job_can_be_looked_at(self):
        self.ps.kill()
        self.ps.communicate()
        self.assertEqual(self.json_of("vars")["variables"][0]["name"], "var")
        run("inspect_shm", "rm", "--job", self.job)


if __name__ == "__main__":
    support.main()
