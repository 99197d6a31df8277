"""What inspect_shm shows of live and dead jobs, as text and as JSON."""
import json
import os
import random
import re
import signal
import struct

import support
from support import Peer, ProcessTest, run


class Inspector(ProcessTest):
    def setUp(self):
        super().setUp()
        self.ps = self.start("ps_shm", "--job", self.job, "--workers", "2")
        worker = ("worker_shm", "--job", self.job, "--model", "count", "--count-size", "5")
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

    def test_vars_tells_what_nobody_has_initialised_also_by_its_exit_code(self):
        asked = ("inspect_shm", "vars", "--uninitialised", "--job", self.job)
        self.assertEqual(run(*asked), (0, "", ""))
        peer = Peer(self, "declare-half", self.job)
        self.assertEqual(run(*asked), (3, "awaited\n", ""))
        code, out, _ = run(*asked, "--json")
        self.assertEqual((code, json.loads(out)), (3, {"job": self.job, "uninitialised": ["awaited"]}))
        self.assertEqual(peer.end(), 0)
        self.assertEqual(run("inspect_shm", "vars", "--uninitialised", "--job", "none").code, 1)
        self.assert_fails(2, run(*asked, "--placement"), "--placement")

    def test_vars_tells_where_each_part_is(self):
        job = f"{self.job}-parts"
        tasks = [self.start("ps_shm", "--job", job, "--ps-tasks", "2", "--task", task, "--placement", "partition",
                            "--workers", "2") for task in "01"]
        self.assertEqual(run("worker_shm", "--job", job, "--model", "count", "--count-size", "5000", "--steps", "3")[0], 0)
        tasks[1].kill()
        tasks[1].communicate()
        first, second = json.loads(run("inspect_shm", "vars", "--placement", "--job", job, "--json").out)["placement"]
        self.assertEqual((first["name"], first["part"], first["parts"], first["first_row"]), ("var", 0, 2, 0))
        self.assertEqual((first["rows"] + second["rows"], second["first_row"]), (5000, first["rows"]))
        self.assertEqual((first["bytes"], first["slot_bytes"]), (first["rows"] * 4, 0))
        self.assertEqual((first["shard"], second["shard"]), (0, 1))
        self.assertEqual((first["served"], first["ps_pid"]), (True, tasks[0].pid))
        self.assertEqual((second["served"], second["ps_pid"]), (False, None))
        for part in (first, second):
            # The worker's pushes have arrived: each element is 3.0.
            with open(support.SHM / part["segment"], "rb") as segment:
                segment.seek(part["offset"])
                self.assertIn(struct.pack("<100f", *[3.0] * 100), segment.read())
        table = run("inspect_shm", "vars", "--placement", "--job", job).out.splitlines()
        self.assertEqual(len(table), 3)
        self.assertRegex(table[1], rf"^var\[0\.\.{first['rows']}\) +0 +ps_shm\.{job}\.0 +{tasks[0].pid} ")
        tasks[0].terminate()
        support.finish(tasks[0])
        run("inspect_shm", "rm", "--job", job, "--force")

    def test_workers_shows_who_has_left(self):
        (worker,) = self.json_of("workers")["workers"]
        self.assertEqual((worker["rank"], worker["state"], worker["steps"]), (0, "left", 3))

    def test_a_worker_that_has_no_loss_is_not_said_to_have_one_of_0(self):
        (worker,) = self.json_of("workers")["workers"]
        self.assertIsNone(worker["training_loss"])  # the count model has no loss
        titles, row = run("inspect_shm", "workers", "--job", self.job)[1].splitlines()
        self.assertEqual(row[titles.index("LOSS")], "-")

    def test_dump_prints_values(self):
        self.assertIn("3", run("inspect_shm", "dump", "--job", self.job, "var")[1])
        self.assertIn("[3.0, 3.0, 3.0, 3.0, 3.0]", json.dumps(self.json_of("dump", "var")))

    def test_the_job_may_be_left_out_where_there_is_one(self):
        jobs = [p.name for p in support.SHM.glob("ps_shm.*") if p.name.count(".") == 1]
        code, out, err = run("inspect_shm", "vars")
        if len(jobs) == 1:
            self.assertEqual(code, 0, err)
            self.assertIn("var", out)
        else:
            self.assertIn(self.job, err)

    def test_doctor_says_why_there_is_no_gpu(self):
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        code, out, err = run("inspect_shm", "doctor", "--job", self.job, "--json", env=hidden)
        self.assertIn(code, (0, 3), err)
        cuda = json.loads(out)["cuda"]
        self.assertEqual(cuda["gpus"], [])
        self.assertRegex(cuda["no_gpu"], "driver|no CUDA|CUDA_VISIBLE_DEVICES|/dev/nvidia")
        code, out, err = run("inspect_shm", "doctor", "--job", self.job, env=hidden)
        self.assertIn(code, (0, 3), err)
        # Without CUDA and without a GPU there is nothing to say.
        matters = cuda["built_for"] is not None or any(name.startswith("nvidia") for name in os.listdir("/dev"))
        for line in (f"no GPU: {cuda['no_gpu']}\n", f"CUDA: build {'for ' + cuda['built_for'] if cuda['built_for'] else 'without'};"):
            self.assertEqual(line in out, matters, out)

    def test_doctor_shows_each_gpu_with_its_strategies(self):
        code, out, err = run("inspect_shm", "doctor", "--job", self.job, "--json")
        self.assertIn(code, (0, 3), err)
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

    def test_of_a_job_of_another_layout_version_it_shows_the_header(self):
        self.ps.kill()
        self.ps.communicate()
        known = json.loads(run("inspect_shm", "ls", "--json").out)  # the job can be read before
        self.assertTrue(any(row["job"] == self.job and row["state"] == "dead" for row in known["jobs"]))
        with open(support.SHM / f"ps_shm.{self.job}", "r+b") as control:
            control.seek(8)
            (version,) = struct.unpack("<I", control.read(4))
            control.seek(8)
            control.write(struct.pack("<I", version + 1))
        shown = self.json_of("show")
        header = shown["header"]
        self.assertEqual((shown["state"], header["layout_version"], header["known_layout_version"]),
                         ("other version", version + 1, version))
        self.assertEqual(header["creator_pid"], self.ps.pid)
        text = run("inspect_shm", "show", "--job", self.job).out
        self.assertIn(f"other version; this program knows layout version {version}\n", text)
        self.assertRegex(text, rf"layout_version +{version + 1}\n")
        for command in (["vars"], ["workers"], ["events"], ["dump"], ["stats"], ["set", "lr=1"], ["metrics"]):
            self.assert_fails(1, run("inspect_shm", *command, "--job", self.job), "version")
        self.assert_fails(1, run("inspect_shm", "diff", self.job, self.job), "version")
        code, out, _ = run("inspect_shm", "doctor", "--job", self.job)
        self.assertEqual(code, 3)
        self.assertIn("its state: other version", out)
        run("inspect_shm", "rm", "--job", self.job, "--force")

    def test_of_a_damaged_job_each_command_says_so_in_a_line(self):
        self.ps.kill()
        self.ps.communicate()
        for size in (4096, 100, 0):
            with open(support.SHM / f"ps_shm.{self.job}", "r+b") as control:
                control.truncate(size)
            for command in (["show"], ["vars"], ["workers"], ["events"], ["events", "--follow"], ["dump"], ["stats"],
                            ["set", "lr=1"], ["metrics"], ["doctor", "--nan-watch", "1s"]):
                with self.subTest(command, size=size):
                    self.assert_fails(1, run("inspect_shm", *command, "--job", self.job), self.job)
            self.assertEqual(run("inspect_shm", "ls").code, 0)
        run("inspect_shm", "rm", "--job", self.job, "--force")

    def test_any_words_end_in_an_exit_code_and_a_line(self):
        helps = run("inspect_shm", "--help").out
        commands = re.findall(r"^  ([a-z]+) ", helps, re.MULTILINE)
        lasting = {"serve", "watch", "rm"}  # rm needs a job to remove
        self.assertLessEqual(lasting, set(commands))
        words = sorted(set(re.findall(r"--[a-z-]+", helps)) - {"--follow", "--nan-watch", "--repair", "--npy", "--textfile"})
        words += ["var", "var:momentum", "nobody", "", "-", "--", "-1", "0", "3", "1e999", "18446744073709551616", "0:2", "::-1",
                  "[", "9,9", "lr=0.5", "lr=", "=", "lr=nan", "steps=-1", "--limit=x", "--job=", "\u00e9", "%s%n", "a" * 300,
                  "@snapshot", f"{self.job}@snapshot", self.job, "/nowhere"]
        seed = int(os.environ.get("PS_SHM_TEST_SEED", random.randrange(10**6)))
        chance = random.Random(seed)
        codes = set()
        for number in range(int(300 / support.SLOWNESS)):
            asked = [chance.choice([c for c in commands if c not in lasting]), *chance.choices(words, k=chance.randrange(5))]
            if chance.random() < 0.5:
                asked += ["--job", self.job]
            with self.subTest(seed=seed, number=number, asked=asked):
                code, _, err = run("inspect_shm", *asked)
                self.assertIn(code, (0, 1, 2, 3), err)
                self.assertEqual(err != "", code in (1, 2), err)
                self.assertRegex(err, r"\A(inspect_shm: [^\n]+\n)?\Z")
                codes.add(code)
        self.assertLessEqual({0, 1, 2}, codes)

    def test_a_dead_job_can_be_looked_at(self):
        self.ps.kill()
        self.ps.communicate()
        self.assertEqual(self.json_of("vars")["variables"][0]["name"], "var")
        run("inspect_shm", "rm", "--job", self.job)


if __name__ == "__main__":
    support.main()
