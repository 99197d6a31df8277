"""Fixtures for the tests of the Python package: job names, processes with bounded waits, checks for leftovers."""
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "process"))
from isolation import delay  # noqa: E402: mounts a private /dev/shm before any module has started a thread
import streams  # noqa: E402
from streams import PATIENCE, read_line  # noqa: E402, F401: for the tests
from timing import TIMING  # noqa: E402

import pytest  # noqa: E402

import ps_shm  # noqa: E402

_numbers = itertools.count()


def segments(job):
    return sorted(p.name for p in pathlib.Path("/dev/shm").glob(f"ps*.{job}*"))


def pytest_configure(config):
    config.addinivalue_line("markers", "timing: measures time, so it runs with PS_SHM_TEST_TIMING=1 only")


def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if (item.get_closest_marker("timing") is not None) != TIMING]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Removes the environment variables that tell a process its place in a launch."""
    from ps_shm import _environment

    places = _environment.LOCAL_RANKS + _environment.GLOBAL_RANKS + _environment.LOCAL_SIZES + _environment.GLOBAL_SIZES
    for name in (*places, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "PS_SHM_JOB"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def job():
    """A job name; at the end nothing of the job may be left."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    yield name
    left = segments(name)
    for segment in left:
        os.unlink(f"/dev/shm/{segment}")
    assert not left


@pytest.fixture
def server(job):
    """A job of one worker whose pushes are added to the values."""
    with ps_shm.Server(job, optimizer="add") as made:
        yield made


@pytest.fixture
def worker(server):
    with ps_shm.Worker(server.job) as made:
        yield made


class Program:
    """Runs a Python program in a process of its own and reads the lines that it prints."""

    def __init__(self, text, *arguments, env=None):
        delay()
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", text, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **(env or {})})

    def line(self):
        """The next line. Programs print within a short time, or end."""
        return streams.read_line(self.process.stdout).strip()

    def send(self, number=signal.SIGINT):
        self.process.send_signal(number)

    def finish(self):
        out, err = streams.rest(self.process, PATIENCE)
        return self.process.returncode, out, err

    def finish_quietly(self):
        """Without what it said while it waited."""
        code, out, err = self.finish()
        return code, out, streams.without_waits(err)


@pytest.fixture
def start():
    programs = []

    def begin(text, *arguments, env=None):
        programs.append(Program(text, *arguments, env=env))
        return programs[-1]

    yield begin
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate()


def wait_until(fact, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        delay()
        if found := fact():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within the time: {what}")
