"""Starting the programs, with a bound on every wait, and looking for what they leave behind."""
import collections
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

TOOLS = pathlib.Path(os.environ["PS_TOOLS"])
SOURCE = pathlib.Path(os.environ["PS_SOURCE"])
SHM = pathlib.Path("/dev/shm")
FULL = bool(os.environ.get("PS_TEST_FULL"))
# Sanitizer builds are slower by about this much.
SLOWNESS = float(os.environ.get("PS_TEST_PATIENCE", "1"))
PATIENCE = SLOWNESS * 60

_numbers = itertools.count()


def new_job():
    return f"test-{os.getpid()}-{next(_numbers)}"


def segments(job):
    return sorted(p.name for p in SHM.glob(f"ps.{job}*"))


Result = collections.namedtuple("Result", "code out err")


def environment(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PS_") or k.startswith("PS_TEST")}
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_RANK", "PMI_RANK",
                 "SLURM_LOCALID", "COLUMNS"):
        env.pop(name, None)
    return {**env, **(extra or {})}


def start(program, *arguments, env=None, **options):
    """One of the programs, or what stands at a path or on PATH where it is none of them."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    own = TOOLS / program
    return subprocess.Popen([str(own if own.exists() else program), *map(str, arguments)], stdin=subprocess.DEVNULL,
                            text=True, env=environment(env), **options)


def finish(process, timeout=None):
    try:
        out, err = process.communicate(timeout=timeout or PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{process.args} did not end in time\nstdout: {out}\nstderr: {err}")
    return Result(process.returncode, out, err)


def run(program, *arguments, env=None, timeout=None, **options):
    return finish(start(program, *arguments, env=env, **options), timeout)


@contextlib.contextmanager
def programs_beside(worker):
    """A launch_shm whose worker_shm is this script."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ("launch_shm", "ps_shm"):
            shutil.copy(TOOLS / name, folder)
        (folder / "worker_shm").write_text(worker)
        (folder / "worker_shm").chmod(0o755)
        yield folder / "launch_shm"


def wait_until(fact, what, timeout=None):
    """Returns what made it true: another look may find something else."""
    end = time.monotonic() + (timeout or PATIENCE)
    while time.monotonic() < end:
        if found := fact():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within the time: {what}")


def workers_of(job):
    code, out, _ = run("inspect_shm", "workers", "--job", job, "--json")
    return json.loads(out)["workers"] if code == 0 else None


# Global steps for which three workers that wait for 5 ms in each of theirs take five seconds: time for a test to look,
# and to kill, meanwhile, where the machine is busy as well.
LASTING_STEPS = {"async": 3000, "ssp": 3000, "sync": 1000}


def lasting(mode="async"):
    """Options of a launch that makes LASTING_STEPS."""
    return "--mode", mode, "--delay", "5ms", "--steps", LASTING_STEPS[mode]


def wait_training(job, count):
    """Waits until so many workers are at their work; returns them, by rank."""
    def all_train():
        workers = workers_of(job) or []
        return workers if sum(w["steps"] > 20 for w in workers) == count else None
    return wait_until(all_train, f"{count} workers train")


def children(pid):
    """A launcher's ps and workers, those that have ended and wait to be noticed included."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listed:
            return [int(child) for child in listed.read().split()]
    except FileNotFoundError:
        return []


def programs_of(job):
    """Processes that were started with this job's name and have not ended."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if job in (process / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                found.append(int(process.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


class Peer:
    """A process of peer.cpp, which has come so far as its role says when this object is made."""

    def __init__(self, test, *arguments):
        self.process = subprocess.Popen([os.environ["PS_PEER"], *map(str, arguments)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        test.addCleanup(self.kill)
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise AssertionError(f"{arguments}: {line}{self.process.communicate()[1]}")

    def end(self):
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class ProcessTest(unittest.TestCase):
    def setUp(self):
        self.job = new_job()
        self.started = []

    def start(self, program, *arguments, **options):
        process = start(program, *arguments, **options)
        self.started.append(process)
        return process

    def start_ps(self, *arguments):
        """A ps whose job is ready; its first line has been read."""
        ps = self.start("ps_shm", "--job", self.job, *arguments)
        self.assertIn(self.job, ps.stdout.readline())
        return ps

    def tearDown(self):
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        left = segments(self.job)
        for name in left:
            (SHM / name).unlink(missing_ok=True)
        if self._outcome_is_good():
            self.assertEqual(left, [], "the test leaves segments behind")

    def _outcome_is_good(self):
        result = self._outcome.result
        return not any(test is self for test, _ in [*result.failures, *result.errors])

    def launch(self, *arguments, **options):
        """launch_shm with --json: its exit code must be 0; returns the object on its stdout."""
        code, out, err = run("launch_shm", "--job", self.job, *arguments, "--json", **options)
        self.assertEqual(code, 0, f"stdout: {out}\nstderr: {err}")
        return json.loads(out)

    def assert_nothing_left(self):
        self.assertEqual((programs_of(self.job), segments(self.job)), ([], []))

    def assert_fails(self, code, result, *words):
        got, out, err = result
        self.assertEqual(got, code, f"stdout: {out}\nstderr: {err}")
        lines = err.strip().splitlines()
        self.assertEqual(len(lines), 1, f"one line says what to do; here: {err}")
        for word in words:
            self.assertIn(word, lines[0])
        return lines[0]


def main():
    unittest.main(verbosity=2)
