"""--record and --replay: the parameters are the same bit for bit, whatever the timing and the kills."""
import json
import os
import pathlib
import random
import shutil
import signal
import tempfile

from support import ProcessTest, finish, main, new_job, programs_of, run, segments, stop, wait_until, workers_of


class ReplayTest(ProcessTest):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="record"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.record = self.folder / "record"

    def replay(self, *arguments):
        return run("launch_shm", "--job", new_job(), "--replay", self.record, "--json", *arguments)

    def assert_replays(self, digest, times=3):
        for _ in range(times):
            code, out, err = self.replay()
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out)["digest"], digest)

    def test_a_run_replays_to_the_same_digest_three_times(self):
        recorded = self.launch("--steps", 2000, "--record", self.record)
        self.assertGreater(recorded["staleness"]["mean"], 0)
        self.assert_replays(recorded["digest"])

    def test_the_rules_with_state_clipping_schedules_and_ssp_replay(self):
        for number, options in enumerate((
                ("--optimizer", "adam", "--lr-schedule", "cosine:600", "--clip-norm", "1"),
                ("--optimizer", "momentum", "--lr", "0.01", "--stale-limit", "2", "--push-every", "2"),
                ("--mode", "ssp", "--staleness", "2", "--optimizer", "momentum", "--ema", "0.9"),
                ("--push-every", "4", "--ps-tasks", "2", "--placement", "partition", "--chunk-bytes", "1KiB"))):
            with self.subTest(options):
                self.record = self.folder / str(number)
                digest = self.launch("--steps", 400, "--workers", 4, "--record", self.record, *options)["digest"]
                self.assert_replays(digest, 1)

    def test_changes_of_live_settings_are_in_the_record(self):
        launch, gate = self.start_gated("--record", self.record, "--json")
        wait_until(lambda: any(w["steps"] > 20 for w in workers_of(self.job) or []), "they train")
        self.assertEqual(run("inspect_shm", "set", "--job", self.job, "lr=0.03").code, 0)
        gate.open()
        code, out, err = finish(launch)
        self.assertEqual(code, 0, err)
        self.assert_replays(json.loads(out)["digest"], 1)

    def record_with_kills(self, kills, seed):
        """Makes a launch in which this many workers are killed while they train. Returns its digest."""
        rng = random.Random(seed)
        launch, gate = self.start_gated("--restart-workers", "--record", self.record, "--json")
        # rank -> steps made by its earlier processes; a process records before it makes its first step
        first_steps = {}

        def at_work():
            alive = [w for w in workers_of(self.job) or [] if w["state"] == "alive" and
                     w["steps"] > first_steps.get(w["rank"], 0)]
            return alive if len(alive) == 3 else None

        for _ in range(kills):
            victim = rng.choice(wait_until(at_work, "all are at work"))
            stop(victim["pid"])
            [first_steps[victim["rank"]]] = [w["steps"] for w in workers_of(self.job) if w["rank"] == victim["rank"]]
            os.kill(victim["pid"], signal.SIGKILL)
            wait_until(lambda: [w for w in workers_of(self.job) or [] if w["rank"] == victim["rank"] and
                                w["pid"] != victim["pid"]], "another one came")
        wait_until(at_work, "all are at work")
        gate.open()
        code, out, err = finish(launch)
        self.assertEqual(code, 0, err)
        return json.loads(out)["digest"]

    def test_a_run_with_kills_replays_to_the_same_digest_three_times(self):
        digest = self.record_with_kills(5, 1)
        self.assertEqual(len(list(self.record.glob("worker-*"))), 3 + 5)
        self.assert_replays(digest)

    def test_a_run_that_has_lost_a_worker_replays(self):
        launch, gate = self.start_gated("--staleness", 3, "--record", self.record, "--json", mode="ssp")

        def at_work():
            working = [w for w in workers_of(self.job) or [] if w["steps"] > 20]
            return working if len(working) > 1 else None

        victim = wait_until(at_work, "they train")[1]
        os.kill(victim["pid"], signal.SIGKILL)
        gate.open()
        code, out, err = finish(launch)
        self.assertEqual(code, 1, err)
        self.assert_replays(json.loads(out)["digest"], 1)

    def change_arguments(self, *more):
        path = self.record / "launch.json"
        launch = json.loads(path.read_text())
        launch["arguments"] += more
        path.write_text(json.dumps(launch))

    def assert_differs(self, *words):
        code, out, err = self.replay()
        self.assertEqual(code, 1, err)
        for word in words:
            self.assertIn(word, err)

    def test_a_replay_of_other_data_says_at_which_push_it_differs(self):
        self.launch("--steps", 300, "--record", self.record)
        self.change_arguments("--seed", "8")
        self.assert_differs("differs from its recording at push 1 ", "the pushed values differ")

    def test_a_replay_with_other_settings_says_where_it_differs(self):
        self.launch("--steps", 300, "--optimizer", "momentum", "--record", self.record)
        self.change_arguments("--l2", "0.5")
        self.assert_differs("differs from its recording at push ", "the pushed values differ")

    def test_a_replay_with_other_chunks_says_so(self):
        self.launch("--steps", 300, "--record", self.record)
        self.change_arguments("--chunk-bytes", "1KiB")
        self.assert_differs("differs from its recording at push 0", "chunks, but the recording has")

    def start_gated_replay(self, *more):
        """Starts a replay whose workers stay in a delay; returns the job, its launcher, the gate, and a worker that has
        replayed."""
        self.change_arguments("--delay", "4ms")
        job, gate = new_job(), self.close_gate()
        launch = self.start("launch_shm", "--job", job, "--replay", self.record, *more, env=gate.env)
        worker = wait_until(lambda: [w for w in workers_of(job) or [] if w["steps"] > 20], "they replay")[0]
        return job, launch, gate, worker

    def test_a_replay_ends_when_one_of_its_workers_is_killed(self):
        self.launch("--steps", 900, "--record", self.record)
        job, launch, gate, worker = self.start_gated_replay()
        os.kill(worker["pid"], signal.SIGKILL)
        gate.open()
        code, _, err = finish(launch)
        self.assertEqual(code, 1, err)
        self.assertIn("the replay ends", err)
        self.assertEqual((programs_of(job), segments(job)), ([], []))

    def test_a_stopped_worker_is_waited_for(self):
        digest = self.launch("--mode", "ssp", "--steps", 900, "--record", self.record)["digest"]
        job, launch, gate, worker = self.start_gated_replay("--json")
        stop(worker["pid"])
        gate.open()
        others = lambda: [w["steps"] for w in workers_of(job) or [] if w["pid"] != worker["pid"]]
        seen = []
        wait_until(lambda: (seen.append(others()) or len(seen) > 20 and seen[-20] == seen[-1]), "the others wait")
        self.assertIsNone(launch.poll())
        os.kill(worker["pid"], signal.SIGCONT)
        code, out, err = finish(launch)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["digest"], digest)

    def test_damaged_records_are_refused(self):
        for number in range(100):  # a worker that gets no processor while the others make all steps has nothing to lose
            self.record = self.folder / str(number)
            made = self.launch("--mode", "ssp", "--steps", 300, "--record", self.record)["per_worker"]
            if made[0]["steps"] > 10:
                break
        first = self.record / "worker-0.1"
        whole = first.read_bytes()
        for bytes_of, words in ((whole[:20], "too short"), (b"", "made twice, or never"),
                                (b"x" + whole[1:], "not a recording"),
                                (whole[:len(whole) // 2], "made twice, or never")):
            first.write_bytes(bytes_of)
            code, _, err = run("launch_shm", "--replay", self.record)
            self.assertEqual(code, 1, err)
            self.assertIn(words, err)
        first.write_bytes(whole)
        launch_file = self.record / "launch.json"
        arguments = launch_file.read_text()
        self.change_arguments("--workers", "2")
        self.assert_differs("it has a recording of worker 2, but its job has 2 workers")
        for text in ("{", "[]", '{"form":"1"}', '{"form":1,"arguments":[1]}', '{"form":1,"arguments":[],"digest":3}'):
            launch_file.write_text(text)
            self.assert_differs("launch.json is missing, or not of a recording")
        launch_file.write_text(arguments)
        first.unlink()
        self.assertEqual(run("launch_shm", "--replay", self.record).code, 1)
        self.assertIn("launch.json is missing", run("launch_shm", "--replay", self.folder).err)

    def test_options_of_the_job_are_the_records(self):
        self.launch("--steps", 300, "--record", self.record)
        self.assert_fails(2, run("launch_shm", "--replay", self.record, "--lr", "0.5"), "--lr", "from the recording")
        self.assert_fails(1, run("launch_shm", "--record", self.record), "it is not empty")


if __name__ == "__main__":
    main()
