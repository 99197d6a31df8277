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


class Storm(ProcessTest):
    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("PS_SHM_TEST_SEED") or random.SystemRandom().randrange(2**32))
        print(f"seed {self.seed}", flush=True)
        self.random = random.Random(self.seed)

    def start_quietly(self, *arguments):
        return self.start(*arguments, stdout=support.subprocess.DEVNULL, stderr=support.subprocess.DEVNULL)

    def start_worker(self, rank):
        return self.start_quietly("worker_shm", "--job", self.job, "--model", "count", "--size", SIZE, "--steps",
                                  10**9, "--rank", rank, "--quiet")

    def start_server(self, *arguments):
        return self.start_quietly("ps_shm", "--job", self.job, "--workers", RANKS, *arguments)

    def inspect(self, *arguments):
        code, out, err = run("inspect_shm", *arguments, "--job", self.job, "--json")
        self.assertIn(code, (0, 3) if arguments[0] == "doctor" else (0,), err)
        return json.loads(out)

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
        self.assertLessEqual(sum(w["holders"] for w in table), RANKS + killed_workers)  # some died before they joined
        self.assertGreater(sum(w["holders"] for w in table), RANKS)
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


    def test_readers_see_whole_groups_of_pushes_and_no_acknowledged_addition_is_lost(self):
        """A crowd of counters, pushers of groups, and readers of each kind. Ten times a second one of them or the ps is
        killed, or stopped for up to a second."""
        publication = self.job + "-p"
        server_arguments = ["--max-workers", 4 * len(CROWD), "--linger", "60s", "--ps-tasks", 2, "--publish",
                            publication, "--publish-every", "30ms"]
        folder = self.enterContext(tempfile.TemporaryDirectory())
        record = pathlib.Path(folder, "record")
        record.write_bytes(bytes(64 * 64))
        with record.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        counters = lambda place: struct.unpack_from("QQQ", memory, place * 64)
        errors = self.enterContext(pathlib.Path(folder, "errors").open("w+"))

        def start_member(place):
            command = [os.environ["PS_SHM_CROWD"], CROWD[place], self.job, publication, str(record), str(place)]
            member = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors)
            self.addCleanup(lambda: (member.kill(), member.wait(), member.stdin.close()))
            return member

        server = self.start_server(*server_arguments)
        members = [start_member(place) for place in range(len(CROWD))]
        kills = collections.Counter()
        stopped = {}  # place: when it goes on
        for _ in range(KILLS):
            time.sleep(self.random.uniform(0, 0.2))
            for place in [place for place, until in stopped.items() if time.monotonic() > until]:
                members[place].send_signal(signal.SIGCONT)
                del stopped[place]
            place = self.random.randrange(len(CROWD) + 1)
            if place == len(CROWD):
                server.kill()
                server.wait(timeout=support.PATIENCE)
                self.started.remove(server)
                server = self.start_server(*server_arguments)
            elif place in stopped:
                continue
            elif CROWD[place] == "pair" or self.random.random() < 0.3:  # a killed one may leave a part of a group
                members[place].send_signal(signal.SIGSTOP)
                stopped[place] = time.monotonic() + self.random.choice([0.02, 0.3, 1])
            else:
                members[place].kill()
                members[place].wait(timeout=support.PATIENCE)
                kills[place] += 1
                members[place] = start_member(place)
        for place in stopped:
            members[place].send_signal(signal.SIGCONT)
        states = lambda role: sum(counters(place)[1] for place in range(len(CROWD)) if CROWD[place] == role)
        for role in ("pull", "snapshot", "view", "subscribe"):
            before = states(role)
            support.wait_until(lambda: states(role) > before, f"{role} reads on")
        for member in members:
            member.stdin.close()
        codes = [(CROWD[place], member.wait(timeout=support.PATIENCE)) for place, member in enumerate(members)]
        errors.seek(0)
        self.assertEqual({code for _, code in codes}, {0}, f"{codes}\n{errors.read()[-4000:]}")
        errors.seek(0)
        self.assertEqual([counters(place)[2] for place in range(len(CROWD))], [0] * len(CROWD), errors.read()[-4000:])
        counts = self.inspect("dump", "counts", "--limit", 0)["variables"][0]["values"]
        for place, role in enumerate(CROWD):
            if role == "count":
                acknowledged = counters(place)[0]
                self.assertGreater(acknowledged, 0)
                self.assertGreaterEqual(counts[place], acknowledged)
                self.assertLessEqual(counts[place], acknowledged + kills[place])  # one may have been added unacknowledged
        print(f"{sum(kills.values())} of the crowd killed; states read:", [counters(p)[1] for p in range(len(CROWD))], flush=True)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(support.finish(server)[0], 130)
        self.assertEqual(support.segments(self.job), [])


if __name__ == "__main__":
    support.main()
