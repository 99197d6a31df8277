"""What inspect_shm shows of publications and their live and dead readers, and how it removes publications."""
import concurrent.futures
import json
import os
import signal
import subprocess
import tempfile
import unittest

import isolation
import support
from support import Peer, ProcessTest, run


class Publications(ProcessTest):
    def setUp(self):
        super().setUp()
        self.name = self.job
        self.file = support.SHM / f"ps_shm_publication.{self.name}"
        self.addCleanup(lambda: self.file.unlink(missing_ok=True))

    def publisher(self, generations=3):
        return Peer(self, "publish", self.name, generations)

    def reader(self):
        return Peer(self, "read", self.name)

    def shown(self):
        code, out, err = run("inspect_shm", "publications", "--publication", self.name, "--json")
        self.assertEqual(code, 0, err)
        (row,) = json.loads(out)["publications"]
        return row

    def as_text(self, *command):
        code, out, err = run("inspect_shm", *command)
        self.assertIn(code, (0, 3) if command[0] == "doctor" else (0,), err)
        return out

    def test_a_live_one_with_its_readers_and_what_they_hold(self):
        publisher, reader = self.publisher(), self.reader()
        row = self.shown()
        self.assertEqual((row["state"], row["pid"], row["publishers"]), ("live", publisher.process.pid, 1))
        self.assertEqual((row["generation"], row["step"], row["changed"]), (3, 30, 2))
        self.assertEqual((row["tensors"], row["tensor_bytes"], row["records"], row["places"]), (2, 4008, 10, 4))
        self.assertEqual(row["written_bytes"], 3 * 4008)
        self.assertLess(row["generation_age_seconds"], support.PATIENCE)
        (subscriber,) = row["subscribers"]
        self.assertEqual((subscriber["rank"], subscriber["state"], subscriber["pid"], subscriber["generations"]),
                         (0, "alive", reader.process.pid, [3]))
        self.assertEqual(row["bytes"], self.file.stat().st_blocks * 512)
        self.assertLess(row["bytes"], self.file.stat().st_size)  # only records that have been written take memory
        self.assertEqual(subscriber["acknowledged"], 0)
        text = self.as_text("publications")
        self.assertIn(f"publication {self.name}: live", text)
        self.assertIn(f"subscriber 0 (process {reader.process.pid}), alive: has generation 3", text)
        text = self.as_text("ls")
        self.assertRegex(text, rf"{self.name} +live +{publisher.process.pid} +3 +1 ")

    def test_one_of_several_writers_of_which_one_dies(self):
        with concurrent.futures.ThreadPoolExecutor() as pool:  # each is ready when both have published
            first, second = pool.map(lambda writer: Peer(self, "write", self.name, writer, 2, 3), range(2))
        row = self.shown()
        self.assertEqual((row["generation"], row["step"], row["round"]), (3, 30, {"attempt": 3, "open": False, "step": 30}))
        self.assertEqual([(one["writer"], one["pid"], one["state"], one["done"]) for one in row["writers"]],
                         [(0, first.process.pid, "alive", True), (1, second.process.pid, "alive", True)])
        self.assertEqual([one["pid"] for one in row["writers"] if one["leads"]], [row["pid"]])
        second.kill()
        text = self.as_text("publications")
        self.assertIn("attempt 3, step 30, closed", text)
        self.assertIn(f"writer 1 (process {second.process.pid}), dead", text)
        self.assertIn(f"writer 0 (process {first.process.pid}), alive", text)
        err = run("inspect_shm", "rm", "--publication", self.name, "--yes")[2]
        self.assertIn(f"is in use; first end writer 0 (pid {first.process.pid})", err)
        first.kill()

    def test_a_state_with_a_part_of_a_push_is_not_published(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "1", "--publish", self.name, "--publish-every", "0.2s")
        worker = Peer(self, "stop-within", self.job)
        support.wait_until(lambda: self.file.exists() and self.shown()["generation"] == 1, "the first generation")
        follower = subprocess.Popen([os.environ["PS_SHM_PEER"], "follow", self.name], stdout=subprocess.PIPE, text=True)
        self.addCleanup(follower.kill)
        support.wait_until(lambda: self.shown()["subscribers"], "the follower")
        worker.process.stdin.write("\n")
        worker.process.stdin.flush()
        support.wait_for_line(ps.stderr, "not published: a push of worker 0 is unfinished")
        self.assertEqual(self.shown()["generation"], 1)
        worker.process.send_signal(signal.SIGCONT)
        support.wait_until(lambda: self.shown()["generation"] == 2, "the second generation")
        self.assertEqual(worker.end(), 0)
        _, _, err = support.finish(ps)
        self.assertRegex(err, r"published again; left out: [1-9]\d* states? with an unfinished push")
        # It may have read the first generation before the second one, or not.
        self.assertIn(follower.communicate(timeout=support.PATIENCE)[0], ("2 2 1\n", "1 2 1\n"))

    def test_a_state_with_a_part_of_a_push_is_published_and_marked_where_that_is_asked_for(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "1", "--publish", self.name, "--publish-every", "0.2s",
                        "--publish-partial")
        worker = Peer(self, "stop-within", self.job)
        support.wait_until(lambda: self.file.exists() and self.shown()["generation"] == 1, "the first generation")
        self.assertIs(self.shown()["partial"], False)
        worker.process.stdin.write("\n")
        worker.process.stdin.flush()
        support.wait_until(lambda: self.shown()["generation"] == 2, "the second generation")
        self.assertIs(self.shown()["partial"], True)
        self.assertIn("old, with a part of an unfinished push", self.as_text("publications"))
        worker.process.send_signal(signal.SIGCONT)
        self.assertEqual(worker.end(), 0)
        code, _, err = support.finish(ps)
        self.assertEqual((code, err), (0, ""))

    def test_one_whose_publisher_died_and_the_next_one(self):
        publisher, _ = self.publisher(), self.reader()
        publisher.kill()
        self.assertEqual(self.shown()["state"], "orphaned")
        self.publisher(2)
        row = self.shown()
        self.assertEqual((row["state"], row["publishers"], row["generation"]), ("live", 2, 5))
        self.assertEqual(row["subscribers"][0]["generations"], [3])

    def test_a_ps_that_ends_before_it_publishes_removes_a_dead_one_of_its_name_and_no_live_one(self):
        for is_dead in (True, False):
            publisher = self.publisher()
            if is_dead:
                publisher.kill()
            ps = self.start("ps_shm", "--job", self.job, "--publish", self.name)
            support.read_line(ps.stdout)
            ps.terminate()
            code, _, err = support.finish(ps)
            self.assertEqual(code, 130, err)
            self.assertEqual(self.file.exists(), not is_dead)
            self.assertEqual("removed what a dead publisher had left" in err, is_dead)
        self.assertEqual(publisher.end(), 0)

    def test_one_that_was_ended_stays_while_it_is_read(self):
        publisher, reader = self.publisher(), self.reader()
        self.assertEqual(publisher.end(), 0)
        self.assertEqual(self.shown()["state"], "ended")
        self.assertEqual(reader.end(), 0)
        self.assertFalse(self.file.exists())
        self.assertIn("no publication", run("inspect_shm", "publications", "--publication", self.name)[2])

    def test_a_dead_reader_and_what_it_still_names(self):
        self.publisher()
        reader = self.reader()
        reader.kill()
        (subscriber,) = self.shown()["subscribers"]
        self.assertEqual((subscriber["state"], subscriber["generations"]), ("dead", [3]))

    def test_rm_refuses_one_that_is_used_and_removes_a_dead_one(self):
        publisher, reader = self.publisher(), self.reader()
        command = ("rm", "--publication", self.name)
        self.assert_fails(1, run("inspect_shm", *command), "in use; first end its publisher (pid ", "subscriber 0 (pid ")
        publisher.kill()
        self.assert_fails(1, run("inspect_shm", *command), "subscriber 0 (pid ")
        reader.kill()
        self.assertIn(f"removed publication {self.name}", self.as_text(*command))
        self.assertFalse(self.file.exists())
        self.assert_fails(1, run("inspect_shm", *command), "there is no publication")

    @unittest.skipUnless(isolation.HAS_OWN_DEV_SHM, "skipped: in a /dev/shm of others this would remove their dead jobs")
    def test_doctor_reclaims_dead_ones_and_never_live_ones(self):
        publisher = self.publisher()
        self.assertIn(f"publication {self.name}: live", self.as_text("doctor"))
        self.as_text("doctor", "--repair")
        self.assertEqual(self.shown()["state"], "live")
        publisher.kill()
        self.assertIn(f"publication {self.name}: dead", self.as_text("doctor"))
        self.assertIn(f"publication {self.name}: reclaimed", self.as_text("doctor", "--repair"))
        self.assertFalse(self.file.exists())

    def test_a_damaged_one_is_shown_and_removed_by_force(self):
        publisher = self.publisher()
        publisher.kill()
        with open(self.file, "r+b") as file:
            file.truncate(5000)
        self.assertEqual(self.shown()["state"], "damaged")
        self.assertIn("damaged", self.as_text("ls"))
        self.assert_fails(1, run("inspect_shm", "rm", "--publication", self.name), "--force")
        self.as_text("rm", "--force", "--publication", self.name)
        self.assertFalse(self.file.exists())

    def test_a_stopped_publisher_is_alive(self):
        publisher = self.publisher()
        publisher.process.send_signal(signal.SIGSTOP)
        self.assertEqual(self.shown()["state"], "live")
        self.assertEqual(run("inspect_shm", "rm", "--publication", self.name)[0], 1)


class PublishedJobs(ProcessTest):
    def follow(self, name):
        process = subprocess.Popen([os.environ["PS_SHM_PEER"], "follow", name], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def test_a_ps_publishes_whole_states_while_workers_push_and_the_last_one_at_the_end(self):
        for mode in ("async", "sync"):
            with self.subTest(mode):
                job = f"{self.job}-{mode}"
                follower = self.follow(job)
                code, _, err = run("launch_shm", "--job", job, "--mode", mode, "--model", "count", "--count-size", "5000",
                                   "--workers", "2", "--steps", "2000", "--count-interval", "0.2ms", "--publish", job,
                                   "--publish-every", "10steps")
                self.assertEqual(code, 0, err)
                out, err = follower.communicate(timeout=support.PATIENCE)
                self.assertEqual(follower.returncode, 0, err)
                generations, step, value = map(int, out.split())
                self.assertGreater(generations, 0)
                self.assertEqual(value, 4000)
                self.assertEqual(step, 2000 if mode == "sync" else 4000)
                self.assertEqual(list(support.SHM.glob(f"ps_shm_publication.{job}*")), [])

    @support.measures_time
    def test_a_follower_reads_several_generations_of_a_job(self):
        follower = self.follow(self.job)
        self.launch("--model", "count", "--count-size", "5000", "--workers", "2", "--steps", "2000", "--count-interval", "0.2ms",
                    "--publish", self.job, "--publish-every", "10steps")
        out, err = follower.communicate(timeout=support.PATIENCE)
        self.assertEqual(follower.returncode, 0, err)
        self.assertGreater(int(out.split()[0]), 5)

    def test_the_last_generation_has_what_came_behind_the_last_step(self):
        ps = self.start_ps("--workers", "1", "--publish", self.job, "--publish-every", "10steps")
        worker = Peer(self, "push-late", self.job)
        follower = self.follow(self.job)

        def is_read():
            code, out, _ = run("inspect_shm", "publications", "--publication", self.job, "--json")
            (row,) = json.loads(out)["publications"] if code == 0 else [{"step": 0}]
            return row["step"] == 10 and row["subscribers"]

        support.wait_until(is_read, "the last step is published, and the follower has joined")
        self.assertEqual(worker.end(), 0)
        code, _, err = support.finish(ps)
        self.assertEqual(code, 0, err)
        out, err = follower.communicate(timeout=support.PATIENCE)
        self.assertEqual(follower.returncode, 0, err)
        self.assertEqual(out.split()[1:], ["10", "11"])

    def test_a_job_that_resumes_is_published_from_its_next_step_on(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.launch("--workers", "1", "--steps", "20", "--checkpoint-dir", folder)
        ps = self.start("ps_shm", "--job", self.job, "--workers", "1", "--steps", support.GATED_STEPS["async"],
                        "--checkpoint-dir", folder, "--publish", self.job, "--publish-every", "1steps")
        support.wait_for_line(ps.stdout, "workers can join")
        code, out, err = run("inspect_shm", "show", "--job", self.job, "--json")  # a ps looks several times meanwhile
        self.assertEqual((code, json.loads(out)["global_step"]), (0, 20), err)
        gate = self.close_gate()
        worker = self.start("worker_shm", "--job", self.job, *support.GATED_DELAY, env=gate.env)

        def published():
            code, out, _ = run("inspect_shm", "publications", "--publication", self.job, "--json")
            (row,) = json.loads(out)["publications"] if code == 0 else [{"generation": 0}]
            return row if row["generation"] else None

        row = support.wait_until(published, "the first generation")
        self.assertGreater(row["step"], 20)
        self.assertEqual(row["tensors"], 4)
        gate.open()
        self.assertEqual(support.finish(worker).code, 0)
        code, _, err = support.finish(ps)
        self.assertEqual(code, 0, err)
        self.assertNotIn("publication", err)

    def test_averages_are_published_where_the_job_keeps_them(self):
        code, _, err = run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "200", "--ema", "0.9",
                           "--publish", self.job, "--publish-every", "50ms", "--publish-averages")
        self.assertEqual(code, 0, err)

    def test_what_cannot_be_published_is_refused_before_anything_starts(self):
        for options, says in ((["--publish", "a/b"], "a/b"),
                              (["--publish", "p", "--publish-averages"], "give --ema"),
                              (["--publish-every", "5s"], "give --publish NAME"),
                              (["--publish", "p", "--publish-every", "5"], "60s, 5m or 1000steps")):
            with self.subTest(options):
                code, _, err = run("ps_shm", "--job", self.job, *options)
                self.assertNotEqual(code, 0)
                self.assertIn(says, err)
                self.assertEqual(support.segments(self.job), [])


if __name__ == "__main__":
    support.main()
