"""Jobs as boxes, each with a bridge: what the tests of ps_shm.bridge start, and what they look at."""
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading

import numpy
from bridge_process import run_bridge
from conftest import PATIENCE, wait_until

import ps_shm
from ps_shm.bridge import _options, _rounds

TOOLS = pathlib.Path(os.environ["PS_SHM_TOOLS"])

# Bridges are forked from a process that has imported PyTorch, which takes longer than all else.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "ps_shm.bridge._rounds"])


def free_port():
    """A port below those that the kernel gives to sockets: a bridge that is started again finds it free."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


class Program(subprocess.Popen):
    """A program in place of a process of multiprocessing."""

    exitcode = property(subprocess.Popen.poll)

    def join(self, timeout=PATIENCE):
        self.wait(timeout)


def ones(box, number, name, size):
    """The default of `pushes`: what a box pushes to a variable for the so-manyeth time."""
    return numpy.ones(size, "float32")


def some_keys(box, worker, number, name):
    """The default of `keys`: the keys that a worker of a box pushes to a table for the so-manyeth time. Each has its own,
    and there are some of all."""
    return numpy.unique(numpy.random.default_rng([box.number, worker, number]).integers(0, 100, 5, numpy.uint64)
                        * numpy.uint64(0x9E3779B97F4A7C15) + numpy.uint64(number % 3 * (box.number + 1)))  # fmt: skip


class Box:
    """A job whose workers push until they are told to stop, and its bridge."""

    def __init__(self, boxes, number):
        self.boxes, self.number, self.job = boxes, number, f"{boxes.name}-{number}"
        self.report = boxes.folder / f"report.{number}"
        self.saved = boxes.folder / f"anchor.{number}.npz"
        self.errors = boxes.folder / f"stderr.{number}"
        self.pushes = [0] * boxes.workers  # of each worker, to each variable
        self.pushed = [[] for _ in range(boxes.workers)]  # by each worker: the table and the keys of each push to one
        self._changed = threading.Condition()
        self._begins, self._is_held, self._stops, self._limit = False, False, False, None
        self._held_workers = 0
        self._failures = []
        self.bridge = None
        self.start_job()

    def start_job(self):
        self._stops = False
        self.server = ps_shm.Server(
            self.job, optimizer=self.boxes.optimizer, lr=1.0, mode=self.boxes.mode, workers=self.boxes.workers
        )
        self._threads = [threading.Thread(target=self._work, args=(k,), daemon=True) for k in range(self.boxes.workers)]
        for thread in self._threads:
            thread.start()

    def _work(self, k):
        try:
            with ps_shm.Worker(self.job) as worker:
                arrays = {name: worker.variable(name, numpy.zeros(size, "float32"), layout=layout)
                          for name, (size, layout) in self.boxes.variables.items()}
                tables = {name: worker.table(name, *sizes, **settings)
                          for name, (sizes, settings) in self.boxes.tables.items()}
                while not self._stops:
                    pushes = self._begins
                    for name, array in arrays.items():
                        if pushes:
                            array.push(self.boxes.gradient(self, self.pushes[k], name, array.shape[0]))
                        elif self.boxes.mode == "sync":
                            array.push(numpy.zeros(array.shape[0], "float32"))
                    for name, table in tables.items():
                        if pushes:
                            keys = self.boxes.keys(self, k, self.pushes[k], name)
                            pushed = table.push(keys, numpy.ones((keys.size, table.row_size), "float32"))
                            assert pushed.updated == keys.size
                            self.pushed[k].append((name, keys))
                    self.pushes[k] += pushes
                    worker.step()
                    with self._changed:
                        while not self._stops and (self._is_held or self.pushes[k] == self._limit):
                            self._held_workers += 1
                            self._changed.notify_all()
                            self._changed.wait()
                            self._held_workers -= 1
                        self._changed.wait(0.001)  # leaves the processor to others
        except BaseException as error:
            self._failures.append(error)
            raise

    def begin(self, limit=None):
        """From now on the workers push, up to `limit` times each in all: then they are held."""
        self._begins, self._limit = True, limit

    def hold(self):
        """Holds the workers between two steps."""
        with self._changed:
            self._is_held = True
            assert self._changed.wait_for(lambda: self._held_workers == self.boxes.workers or self._failures, PATIENCE)

    def release(self):
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    def end_job(self):
        """The workers stop behind a push, and the job is removed."""
        with self._changed:
            self._stops = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        self.server.close()
        assert not self._failures

    def start_bridge(self, dies_at=None, is_unreachable=False, **settings):
        self.kill_bridge()
        options = {"job": self.job, "box": self.number, "boxes": self.boxes.count, "report": self.report,
                   "save": self.saved, "meet": ",".join(f"127.0.0.1:{port}" for port in self.boxes.ports),
                   **self.boxes.settings, **settings}
        arguments = []
        for name, value in options.items():
            arguments += [f"--{name}"] + ([] if value is True else [str(value)])
        self.bridge = PROCESSES.Process(target=run_bridge, args=(arguments, str(self.errors), dies_at, is_unreachable))
        self.bridge.start()

    def _start_program(self, command):
        with open(self.errors, "a") as errors:
            self.bridge = Program(command, stdout=errors, stderr=errors,
                                  env={**os.environ, "GLOO_SOCKET_IFNAME": self.boxes.interface})  # fmt: skip

    def start_in(self, network):
        """Starts the bridge with the network of its box; the job is here."""
        self.kill_bridge()
        options = {"job": self.job, "box": self.number, "boxes": self.boxes.count, "report": self.report, "save": self.saved,
                   "meet": f"{network.address(0)}:29400", **self.boxes.settings}
        settings = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._start_program([*network.inside(self.number), sys.executable, "-m", "ps_shm.bridge", *settings])

    def start_by_torchrun(self, port, folder):
        options = ["--nnodes", str(self.boxes.count), "--node_rank", str(self.number), "--nproc_per_node=1", "--max_restarts=0",
                   "--master_addr=127.0.0.1", f"--master_port={port}",
                   # PyTorch 1.13 with Python 3.11 fails without these, which log the output and show it, too.
                   "--redirects=1", "--tee=1", f"--log_dir={folder}"]  # fmt: skip
        settings = [word for name, value in self.boxes.settings.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "ps_shm.bridge", "--job", self.job,
                   "--report", str(self.report), "--save", str(self.saved), *settings]
        self._start_program(command)

    def kill_bridge(self):
        if self.bridge is not None:
            self.bridge.kill()
            self.bridge.join()

    def records(self):
        if not self.report.exists():
            return []
        # What a bridge is writing may be there in part: a file's pages are written one after the other.
        *lines, _ = self.report.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def rounds(self):
        return [one for one in self.records() if "norm" in one]

    def has_joined(self):
        assert not self._failures and self.bridge.exitcode is None, self.text()
        return any("members" in one for one in self.records())

    def text(self):
        return self.errors.read_text()

    def last_round(self):
        return max((one["round"] for one in self.rounds()), default=-1)


class Boxes:
    """Several boxes. At the end of a `with` statement all processes have ended and no file is left."""

    def __init__(self, name, folder, count=3, mode="async", workers=1, variables=None, stores=1, gradient=ones,
                 optimizer="add", restarts=False, interface="lo", tables=None, keys=some_keys, **settings):
        self.restarts = restarts  # bridges that PyTorch has ended, as launch_shm does
        self.name, self.folder, self.count, self.mode, self.workers = name, folder, count, mode, workers
        self.variables = {"c": (3, "versioned"), "d": (5000, "versioned")} if variables is None else variables
        self.tables, self.keys = tables or {}, keys  # by name: row size and most rows, and settings
        self.gradient, self.optimizer, self.interface = gradient, optimizer, interface
        self.settings = {"every": 20, "seconds": 1, "timeout": 15, "combine": "sum", **settings}
        self.ports = [free_port() for _ in range(stores)]
        self.all = [Box(self, number) for number in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for box in self.all:
            if error[0] is not None:
                print(f"--- box {box.number}\n{box.text() if box.errors.exists() else ''}")
            box.kill_bridge()
            box._failures.clear()
            box.end_job()

    def __iter__(self):
        return iter(self.all)

    def __getitem__(self, number):
        return self.all[number]

    def start(self, limit=None, **settings):
        """Starts the bridges. The workers begin when all boxes have the first anchor: it is box 0's, and others' work is lost."""
        for box in self:
            box.start_bridge(**settings)
        self.begin(limit)

    def begin(self, limit=None):
        """The workers begin when all boxes have the first anchor."""
        wait_until(lambda: all(box.has_joined() for box in self), "the first group")
        for box in self:
            box.begin(limit)

    def after_rounds(self, count, boxes=None):
        """Waits until these boxes have all made so many rounds more."""
        boxes = boxes or self.all
        least = max(box.last_round() for box in boxes) + count

        def are_there():
            self.start_ended()
            for box in boxes:
                assert box.bridge.exitcode in (None, -signal.SIGKILL), box.text()
            return all(box.last_round() >= least for box in boxes)

        wait_until(are_there, f"round {least}")

    def start_ended(self, but=None):
        """Starts bridges again that PyTorch has ended, as it does where a store is gone, if that is wanted."""
        for box in self:
            if self.restarts and box is not but and box.bridge.exitcode == -signal.SIGABRT:
                box.start_bridge()

    def kill_at_each_point(self, box):
        """Starts the box's bridge again and again, each time to be killed one point later, until it makes two rounds. How
        often it was killed.
        """
        point = 0

        def is_over(last):
            self.start_ended(but=box)
            return box.bridge.exitcode is not None or box.last_round() > last + 1

        while True:
            box.start_bridge(dies_at=point)
            last = box.last_round()
            wait_until(lambda: is_over(last), f"point {point}")
            if box.bridge.exitcode is None:
                return point
            assert box.bridge.exitcode == -signal.SIGKILL, box.text()
            point += 1

    def end(self):
        """Ends the jobs and waits for the bridges. The anchors at the end, by box."""
        self.start_ended()
        for box in self:
            box.end_job()
        for box in self:
            box.bridge.join(PATIENCE)
            assert box.bridge.exitcode == 0, box.text()
        return [dict(numpy.load(box.saved)) for box in self]

    def check(self, anchors):
        """Each push of all boxes is in the last anchor once, and all anchors of a round had the same bits."""
        pushes = sum(sum(box.pushes) for box in self)
        for anchor in anchors:
            for name, values in anchor.items():
                if "." in name:
                    continue
                assert (values == pushes).all(), (name, values.min(), values.max(), pushes)
        self.check_bits()

    def pushes_by_key(self, name):
        """How often each key of the table was pushed, in all."""
        pushed = [keys for box in self for of_worker in box.pushed for table, keys in of_worker if table == name]
        keys, counts = numpy.unique(numpy.concatenate(pushed), return_counts=True)
        return dict(zip(keys.tolist(), counts.tolist()))

    def check_rows(self, anchors, name):
        """Each push of all boxes to the table is in the last anchor once."""
        pushes = self.pushes_by_key(name)
        for anchor in anchors:
            found = dict(zip(anchor[f"{name}.keys"].tolist(), anchor[f"{name}.rows"]))
            assert found.keys() == pushes.keys()
            wrong = {key: (row.tolist(), pushes[key]) for key, row in found.items() if (row != pushes[key]).any()}
            assert not wrong, (len(wrong), len(found), dict(list(wrong.items())[:5]))

    def check_bits(self):
        """All anchors of a round had the same bits, and nothing was dropped."""
        dropped = [one for box in self for one in box.records() if one.get("end")]
        assert not any(one["dropped"] or one["dropped_steps"] for one in dropped)
        checksums = {}
        for box in self:
            for one in box.rounds():
                checksums.setdefault(one["round"], set()).add(one["checksum"])
        assert all(len(found) == 1 for found in checksums.values())


class ThreadGroup:
    """A group whose members are threads of this process, in place of torch.distributed."""

    def __init__(self, rank, shared):
        self.rank, self.shared, self.members, self.number = rank, shared, list(range(shared.parties)), 0

    @staticmethod
    def make(count):
        shared = threading.Barrier(count)
        shared.said = [None] * count
        return [ThreadGroup(rank, shared) for rank in range(count)]

    def _all(self, mine):
        self.shared.wait(PATIENCE)
        self.shared.said[self.rank] = mine
        self.shared.wait(PATIENCE)
        said = list(self.shared.said)
        self.shared.wait(PATIENCE)
        return said

    def form(self, promised, is_new, stays):
        self.number = max(self._all(promised)) + 1
        return self.number

    def gather(self, what):
        return [json.loads(one) for one in self._all(json.dumps(what))]

    def unite(self, flags):
        flags[:] = numpy.maximum.reduce(self._all(flags.copy()))

    def broadcast(self, array, source):
        array[:] = self._all(array.copy())[source]

    def exchange(self, sent, received):
        everything = self._all([one.copy() for one in sent])
        for position, into in enumerate(received):
            if position != self.rank:
                into[:] = everything[position][self.rank]

    def wants_another(self):
        return False

    def has_made_a_round(self):
        return None

    def close(self):
        pass


def together(calls):
    """Calls each in a thread of its own, and returns what they return."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [one.result(PATIENCE) for one in [pool.submit(call) for call in calls]]


class BoxesHere:
    """Jobs of one worker each, whose bridges are objects of this process, and joined."""

    def __init__(self, job, count, **server):
        self.jobs, self.stack, self.bridges = [f"{job}-{box}" for box in range(count)], contextlib.ExitStack(), []
        for name in self.jobs:
            self.stack.enter_context(ps_shm.Server(name, **server))
        self.workers = [self.stack.enter_context(ps_shm.Worker(name)) for name in self.jobs]

    def make(self, *settings):
        """Makes bridges with these options, or those of a list for each."""
        given = settings if settings and isinstance(settings[0], list) else [settings] * len(self.jobs)
        options = [_options.parse(["--job", name, "--box", str(box), "--boxes", str(len(self.jobs)), "--meet", "none", *own])
                   for box, (name, own) in enumerate(zip(self.jobs, given))]
        groups = ThreadGroup.make(len(self.jobs))
        self.bridges = [_rounds.Bridge(one, lambda _, group=group: group) for one, group in zip(options, groups)]

    def join(self):
        together([bridge.join for bridge in self.bridges])
        for bridge in self.bridges:
            bridge.resolve()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for bridge in self.bridges:
            bridge.state.remove()
        self.stack.close()
