"""Hundreds of random kills in one job: nothing acknowledged is lost and nothing leaks.

PS_SHM_TEST_FULL=1: more than a thousand in each job. PS_SHM_TEST_SEED repeats the kills of a failed run, which prints
its seed.
"""
import collections
import json
import mmap
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import tempfile
import time

import support
from support import FULL, ProcessTest, run

KILLS = 1100 if FULL else 60
RANKS = 4  # the last one is never killed
CROWD = ["count"] * 3 + ["pair"] * 2 + ["pull", "snapshot", "snapshot", "view", "subscribe", "subscribe"]
SIZE = 100_000  # a float counts to 2**24: a smaller variable would reach that within a minute or two


def descriptors(process):
    """The targets of its descriptors: (segments of other workers' gradients, all others)."""
    folder = pathlib.Path(f"/proc/{process.pid}/fd")
    found = [os.readlink(folder / number) for number in os.listdir(folder)]
    gradients = [name for name in found if re.search(r"/ps_shm\.\S+\.w\d+\.\d+\b", name)]
    return gradients, [name for name in found if name not in gradients]


class Seeded(ProcessTest):
    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("PS_SHM_TEST_SEED") or random.SystemRandom().randrange(2**32))
        print(f"seed {self.seed}", flush=True)
        self.random = random.Random(self.seed)

    def start_quietly(self, *arguments):
        return self.start(*arguments, stdout=support.subprocess.DEVNULL, stderr=support.subprocess.DEVNULL)

    def inspect(self, *arguments):
        code, out, err = run("inspect_shm", *arguments, "--job", self.job, "--json")
        self.assertIn(code, (0, 3) if arguments[0] == "doctor" else (0,), err)
        return json.loads(out)


class Storm(Seeded):
    def start_worker(self, rank):
        return self.start_quietly("worker_shm", "--job", self.job, "--model", "count", "--count-size", SIZE, "--steps",
                                  10**9, "--rank", rank, "--quiet")

    def start_server(self, *arguments):
        return self.start_quietly("ps_shm", "--job", self.job, "--workers", RANKS, *arguments)

    def figures(self):
        workers = self.inspect("workers")["workers"]
        return sum(w["steps"] for w in workers), sum(w["pushes"] for w in workers)

    def wait_for_steps(self, more):
        before = self.figures()[0]
        support.wait_until(lambda: self.figures()[0] >= before + more, "the job goes on")

    def storm(self, *settings):
        server = self.start_server(*settings)
        workers = [self.start_worker(rank) for rank in range(RANKS)]
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == RANKS, "all have joined")
        self.wait_for_steps(10)
        witness = workers[-1]
        files_before, descriptors_before = support.segments(self.job), descriptors(witness)[1]
        shard_before = (support.SHM / f"ps_shm.{self.job}.0").stat().st_size
        killed_workers = killed_servers = 0
        for _ in range(KILLS):
            time.sleep(self.random.uniform(0, 0.03))
            victim = self.random.randrange(RANKS)  # RANKS - 1: the ps
            stops_first = self.random.random() < 0.1
            process = server if victim == RANKS - 1 else workers[victim]
            if stops_first:
                support.stop(process)
            process.kill()
            process.wait(timeout=support.PATIENCE)
            self.started.remove(process)
            if victim == RANKS - 1:
                killed_servers += 1
                server = self.start_server(*settings)  # a plain restart takes the job over
            else:
                killed_workers += 1
                workers[victim] = self.start_worker(victim)
        print(f"{killed_workers} workers and {killed_servers} ps killed", flush=True)
        support.wait_until(lambda: self.inspect("show")["state"] == "live", "the last ps serves")
        alive = lambda: [w for w in support.workers_of(self.job) if w["state"] == "alive"]
        support.wait_until(lambda: len(alive()) == RANKS, "everybody is back")
        self.wait_for_steps(20)

        # they leave, so that the figures of the last worker can be read while it is stopped
        for worker in workers[:-1]:
            worker.send_signal(signal.SIGTERM)
            self.assertEqual(support.finish(worker)[0], 130)
        self.wait_for_steps(10)
        support.stop(witness)
        acknowledged, begun = self.figures()
        table = self.inspect("workers")["workers"]
        doctor = self.inspect("doctor")["jobs"][0]
        [variable] = self.inspect("dump", "--limit", "1")["variables"]
        # One process was stopped at an arbitrary instruction: its current push may be in some of the chunks.
        self.assertGreaterEqual(variable["min"], acknowledged)
        self.assertLessEqual(variable["max"], begun)
        self.assertEqual(len(table), RANKS, "entries of the worker table")
        self.assertLessEqual(sum(w["owners"] for w in table), RANKS + killed_workers)  # some died before they joined
        self.assertGreater(sum(w["owners"] for w in table), RANKS)
        self.assertLessEqual(doctor["last"]["buffers_in_doubt"], 1)
        self.assertIsNone(doctor["problem"])
        self.assertLessEqual(doctor["last"]["servers"], 1 + killed_servers)
        of_gradients = lambda names: [n for n in names if ".w" in n[len("ps_shm." + self.job):]]
        self.assertEqual(len(support.segments(self.job)) - len(of_gradients(support.segments(self.job))),
                         len(files_before) - len(of_gradients(files_before)))
        self.assertLessEqual(len(of_gradients(support.segments(self.job))), RANKS)
        self.assertEqual((support.SHM / f"ps_shm.{self.job}.0").stat().st_size, shard_before, "the shard has grown")
        # A gradient segment is opened when a step first needs it, which may be late under a quorum.
        gradients, others = descriptors(witness)
        self.assertLessEqual(len(gradients), RANKS - 1, gradients)
        self.assertLessEqual(len(others), len(descriptors_before), others)
        witness.send_signal(signal.SIGCONT)
        witness.send_signal(signal.SIGTERM)
        self.assertEqual(support.finish(witness)[0], 130)
        self.assertEqual(support.finish(server)[0], 0)
        self.assertEqual(support.segments(self.job), [])

    def test_async(self):
        self.storm("--layout", "versioned", "--linger", "0.2")

    def test_inplace(self):
        self.storm("--layout", "inplace", "--linger", "0.2")

    def test_ssp(self):
        self.storm("--mode", "ssp", "--staleness", "4", "--linger", "0.2")

    def test_sync(self):
        self.storm("--mode", "sync", "--linger", "0.2")

    def test_sync_with_a_backup_worker(self):
        self.storm("--mode", "sync", "--quorum", RANKS - 1, "--linger", "0.2")


class Crowd(Seeded):
    """Ten times a second one of a crowd of processes, or a ps, is killed, or stopped for up to a second."""

    def serve(self, job, *more):
        return self.start_quietly("ps_shm", "--job", job, "--linger", "60s", "--keep-segments", *self.jobs[job], *more)

    def start_member(self, place):
        command = [os.environ["PS_SHM_CROWD"], self.crowd[place], self.job, self.publication, str(self.record), str(place)]
        member = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self.errors)
        self.addCleanup(lambda: (member.kill(), member.wait(), member.stdin.close()))
        return member

    def play(self, crowd, jobs, only_stopped=()):
        """Starts the ps of the jobs, which are options by name, and the crowd, and kills and stops them."""
        self.crowd, self.jobs, self.publication = crowd, jobs, self.job + "-p"
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.record = folder / "record"
        self.record.write_bytes(bytes(64 * 64))
        with self.record.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        self.counters = lambda place: struct.unpack_from("QQQ", memory, place * 64)
        self.errors = self.enterContext((folder / "errors").open("w+"))
        self.servers = {job: self.serve(job) for job in jobs}
        self.members = [self.start_member(place) for place in range(len(crowd))]
        for job in jobs:
            support.wait_until(lambda: support.workers_of(job), "a worker has joined")
        self.kills = collections.Counter()
        stopped = {}  # place: when it goes on
        for _ in range(KILLS):
            time.sleep(self.random.uniform(0, 0.2))
            for place in [place for place, until in stopped.items() if time.monotonic() > until]:
                self.members[place].send_signal(signal.SIGCONT)
                del stopped[place]
            place = self.random.randrange(len(crowd) + 1)
            if place == len(crowd):
                job = self.random.choice([*jobs])
                self.servers[job].kill()
                self.servers[job].wait(timeout=support.PATIENCE)
                self.started.remove(self.servers[job])
                self.servers[job] = self.serve(job, "--adopt")  # its workers may be dead, too
            elif place in stopped:
                continue
            elif crowd[place] in only_stopped or self.random.random() < 0.3:
                self.members[place].send_signal(signal.SIGSTOP)
                stopped[place] = time.monotonic() + self.random.choice([0.02, 0.3, 1])
            else:
                self.members[place].kill()
                self.members[place].wait(timeout=support.PATIENCE)
                self.kills[place] += 1
                self.members[place] = self.start_member(place)
        for place in stopped:
            self.members[place].send_signal(signal.SIGCONT)
        states = lambda role: sum(self.counters(place)[1] for place in self.places(role))
        for role in set(crowd):
            if any(self.counters(place)[1] for place in self.places(role)):
                before = states(role)
                support.wait_until(lambda: states(role) > before or self.said(), f"{role} goes on")

    def places(self, *roles):
        return [place for place, role in enumerate(self.crowd) if role in roles]

    def said(self):
        self.errors.seek(0)
        return self.errors.read()[-4000:]

    def end(self, *roles):
        for place in self.places(*roles):
            self.members[place].stdin.close()
        codes = [(self.crowd[place], self.members[place].wait(timeout=support.PATIENCE)) for place in self.places(*roles)]
        self.assertEqual({code for _, code in codes}, {0}, f"{codes}\n{self.said()}")
        self.assertEqual([self.counters(place)[2] for place in range(len(self.crowd))], [0] * len(self.crowd), self.said())

    def check_counts(self, place, least, most):
        """All that was acknowledged at the place is there, and at most one more for each kill."""
        acknowledged = self.counters(place)[0]
        self.assertGreater(acknowledged, 0)
        self.assertGreaterEqual(least, acknowledged)
        self.assertLessEqual(most, acknowledged + self.kills[place])  # one may have been added unacknowledged

    def finish(self):
        print(f"{sum(self.kills.values())} of the crowd killed; acknowledged and read:",
              [self.counters(place)[:2] for place in range(len(self.crowd))], flush=True)
        for job, server in self.servers.items():
            server.send_signal(signal.SIGTERM)
            self.assertIn(support.finish(server)[0], (0, 130))  # 0: all have left, so that the job is over
            self.assertEqual(run("inspect_shm", "rm", "--yes", "--job", job).code, 0)
        self.assertEqual(support.segments(self.job), [])

    def test_readers_see_whole_groups_of_pushes_and_no_acknowledged_addition_is_lost(self):
        """Counters, pushers of groups, and readers of each kind. A killed pusher may leave a part of a group."""
        self.play(CROWD, {self.job: ["--max-workers", 4 * len(CROWD), "--workers", RANKS, "--ps-tasks", 2, "--publish",
                                     self.job + "-p", "--publish-every", "30ms"]}, only_stopped=("pair",))
        self.end(*CROWD)
        counts = self.inspect("dump", "counts", "--limit", 0)["variables"][0]["values"]
        for place in self.places("count"):
            self.check_counts(place, counts[place], counts[place])
        self.finish()

    def test_tables_guests_writers_and_a_single_writer_lose_nothing(self):
        """Two jobs: one with tables that keep, evict and dump rows, a guest, and pushers of all kinds of things; one of
        one worker, which pushes where values lie; and a publication of two writers."""
        crowd = ["write", "write", "keep", "keep", "keep", "churn", "churn", "churn", "dump", "dump", "guest", "collect",
                 "alone", "count"]
        alone = self.job + "-s"
        self.play(crowd, {self.job: ["--max-workers", 4 * len(crowd), "--workers", RANKS],
                          alone: ["--max-workers", 1, "--workers", 1, "--layout", "single-writer"]})
        self.end(*{*crowd} - {"dump"})
        self.end("dump")
        rows = self.inspect("dump", "kept", "--limit", 0)["tables"][0]["rows"]
        for place in self.places("keep"):
            values = [value for row in rows if row["key"] >> 32 == place for value in row["values"]]
            self.assertEqual(len(values), 200 * 8)
            self.check_counts(place, min(values), max(values))
        counts, given = (self.inspect("dump", name, "--limit", 0)["variables"][0]["values"] for name in ("counts", "given"))
        for place in self.places("count"):
            self.check_counts(place, counts[place], counts[place])
        [guest], [single] = self.places("guest"), self.places("alone")
        self.assertEqual({*given}, {self.counters(guest)[0]})
        code, out, err = run("inspect_shm", "dump", "own", "--limit", 1, "--job", alone, "--json")
        self.assertEqual(code, 0, err)
        own = json.loads(out)["variables"][0]
        self.check_counts(single, own["min"], own["max"])
        self.assertNotIn("damaged-table", [finding["kind"] for finding in self.inspect("doctor")["findings"]])
        self.finish()


if __name__ == "__main__":
    support.main()
