"""What is measured: the paths of the library that several workers use at once, each beside what the machine has to give."""

import json
import typing

import measuring
from measuring import Failed

FLOATS = 1_000_000
MODEL = 397_510  # floats of the perceptron that is trained: 784-500-10
ROWS = "zipf:1000000x100000x50x0.8"


class Path(typing.NamedTuple):
    name: str
    unit: str
    limit: str  # what the figure beside it is
    measure: typing.Callable  # (measuring, workers, is_pinned) -> (rate, limit)


class Measuring:
    """`seconds` of one measurement; `gradients` of each worker of a training job."""

    def __init__(self, build, training, seconds, gradients):
        self.build, self.training, self.seconds, self.gradients = build, training, seconds, gradients

    def micro(self, name, workers, is_pinned):
        more = [f"--processes={workers}", f"--seconds={self.seconds}"] + (["--pin"] if is_pinned else [])
        figures, _ = measuring.run_benchmark(
            self.build / "benches/micro", f"{name}/processes:{workers}", 120 + 20 * self.seconds, more
        )
        return figures

    def rows(self, runs, is_pinned):
        """Examples a second of each of these runs of benches/hogwild."""
        command = [self.build / "benches/hogwild", "--model", "rows", "--width", 16, "--data", ROWS, "--epochs", 0]
        command += ["--seconds", self.seconds, *(["--pin"] if is_pinned else []), *runs]
        _, *found = [json.loads(line) for line in measuring.run(command, 120 + 20 * self.seconds).splitlines()]
        return [run["examples_per_second"] for run in found]


def bytes_moved(name):
    def measure(tools, workers, is_pinned):
        figures = tools.micro(f"{name}/floats:{FLOATS}", workers, is_pinned)
        return figures["GB/s"], figures["limit"]

    return measure


def sync_steps(tools, workers, is_pinned):
    figures = tools.micro(f"sync/step/floats:{MODEL}", workers, is_pinned)
    return workers / figures["seconds"], workers / (figures["limit"] * 1e-6)


def rows(scheme):
    def measure(tools, workers, is_pinned):
        plain, ours = tools.rows(["plain:1", f"{scheme}:{workers}"], is_pinned)
        return ours, workers * plain

    return measure


def training(mode):
    def measure(tools, workers, is_pinned):
        if is_pinned:
            raise Failed("jobs of launch_shm are not pinned")
        alone = tools.training.alone(workers, tools.gradients * workers)["gradients/s"]
        return tools.training.job(mode, workers, tools.gradients * workers)["gradients/s"], alone

    return measure


SLEEP_US, CHUNKS = 4000, 16  # of a simulated gradient; of 32 KiB


def simulated(tools, workers, is_pinned):
    """Workers that sleep in place of computing: a box with as many cores, but for the memory of this one."""
    if is_pinned:
        raise Failed("sleeping workers are not pinned")
    words = ["--workers", workers, "--chunks", CHUNKS, "--sleep-us", SLEEP_US, "--seconds", tools.seconds]
    out = measuring.run([tools.build / "benches/ages", *map(str, words)], 120 + 20 * tools.seconds)
    return json.loads(out)["pushes_per_second"], workers * 1e6 / SLEEP_US


ADDS, COPIES = "as many processes that add on private memory", "as many processes that copy private memory"
LOOPS, ALONE = "as many times one loop with no server", "as many workers without a server"
PATHS = [
    Path("push, versioned", "GB/s", ADDS, bytes_moved("push/versioned")),
    Path("push, in-place", "GB/s", ADDS, bytes_moved("push/inplace")),
    Path("pull, versioned", "GB/s", COPIES, bytes_moved("pull/versioned")),
    Path("pull, in-place", "GB/s", COPIES, bytes_moved("pull/inplace")),
    Path("rows, exact", "examples/s", LOOPS, rows("exact")),
    Path("rows, racy", "examples/s", LOOPS, rows("racy")),
    Path("sync step", "gradients/s", "as many processes that add and meet, no server", sync_steps),
    Path("training, async", "gradients/s", ALONE, training("async")),
    Path("training, ssp", "gradients/s", ALONE, training("ssp")),
    Path("training, sync", "gradients/s", ALONE, training("sync")),
    Path("training, simulated", "gradients/s", "as many workers that only sleep", simulated),
]
