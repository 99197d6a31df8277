"""Starts the programs, bounds every wait, and checks what the programs leave behind."""
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

import streams
import timing
from isolation import delay
from streams import PATIENCE, SLOWNESS, read_line
from timing import measures_time

TOOLS = pathlib.Path(os.environ["PS_SHM_TOOLS"])
SOURCE = pathlib.Path(os.environ["PS_SHM_SOURCE"])
SHM = pathlib.Path("/dev/shm")
FULL = bool(os.environ.get("PS_SHM_TEST_FULL"))

_numbers = itertools.count()


def new_job():
    return f"test-{os.getpid()}-{next(_numbers)}"


def install(folder):
    """Installs the build below the folder, away from its configured prefix. Returns the prefix there."""
    subprocess.run(["meson", "install", "-C", TOOLS.parent, "--no-rebuild", "--destdir", folder], check=True, stdout=subprocess.DEVNULL)
    return next(folder.rglob("include")).parent


def segments(job):
    return sorted(p.name for p in SHM.glob(f"ps_shm.{job}*"))


Result = collections.namedtuple("Result", "code out err")


def environment(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PS_SHM_") or k.startswith("PS_SHM_TEST")}
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_RANK", "PMI_RANK",
                 "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "COLUMNS"):
        env.pop(name, None)
    return {**env, **(extra or {})}


def start(program, *arguments, env=None, **options):
    """Starts one of the project's programs, or any other program by its path or from PATH."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    delay()
    own = TOOLS / program
    return subprocess.Popen([str(own if own.exists() else program), *map(str, arguments)], stdin=subprocess.DEVNULL,
                            text=True, env=environment(env), **options)


def finish(process, timeout=None):
    out, err = streams.rest(process, timeout or PATIENCE)
    return Result(process.returncode, out, err)


def run(program, *arguments, env=None, timeout=None, **options):
    return finish(start(program, *arguments, env=env, **options), timeout)


@contextlib.contextmanager
def programs_beside(worker):
    """A launch_shm next to a worker_shm that is this script."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ("launch_shm", "ps_shm"):
            shutil.copy(TOOLS / name, folder)
        (folder / "worker_shm").write_text(worker)
        (folder / "worker_shm").chmod(0o755)
        yield folder / "launch_shm"


def wait_until(fact, what, timeout=None):
    """Returns the value that was true; a second call of fact() might return something else."""
    end = time.monotonic() + (timeout or PATIENCE)
    while time.monotonic() < end:
        delay()
        if found := fact():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within the time: {what}")


def has_pending_signal(pid, number):
    fields = dict(line.split(":\t") for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return (int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)) >> (number - 1) & 1 != 0


def workers_of(job):
    code, out, _ = run("inspect_shm", "workers", "--job", job, "--json")
    return json.loads(out)["workers"] if code == 0 else None


# For jobs that a test observes and that end by themselves afterwards. While the gate is closed, each worker makes at
# least FREE_STEPS and at most MOST_STEPS steps, which leaves the job far from its last step: the test sees the workers
# at work however fast the machine is. Once the gate is open, the rest takes about a second.
GATED_STEPS = {"async": 900, "ssp": 900, "sync": 300}
FREE_STEPS, MOST_STEPS = 40, 82
GATED_DELAY = ("--delay", "4ms")


class Gate:
    """Holds workers in a --delay after some steps until they are allowed more or the gate is opened; see
    delay_gate.cpp."""

    def __init__(self, test, steps=FREE_STEPS):
        self.folder = tempfile.mkdtemp(prefix="gate-")
        test.addCleanup(shutil.rmtree, self.folder)
        self.file = pathlib.Path(self.folder, "delays")
        self.allow(steps)
        self.env = {"LD_PRELOAD": os.environ["PS_SHM_DELAY_GATE"], "DELAY_GATE": str(self.file)}
        if SLOWNESS > 1:  # the sanitizer's library must be loaded before all others
            options = [os.environ.get("ASAN_OPTIONS", ""), "verify_asan_link_order=0"]
            self.env["ASAN_OPTIONS"] = ":".join(filter(None, options))

    def allow(self, steps):
        """Lets each worker make at least this many steps from its start, and at most twice as many plus two."""
        new = self.file.with_suffix(".new")
        new.write_text(str(steps))
        new.rename(self.file)

    def open(self):
        self.file.unlink(missing_ok=True)


def stop(process):
    """Stops a process, and returns once none of its threads runs. Takes an object with a `pid`, or a number."""
    pid = getattr(process, "pid", process)
    os.kill(pid, signal.SIGSTOP)

    def states():
        return {task.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0]
                for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}
    wait_until(lambda: states() <= {"T", "t"}, f"process {pid} is stopped")


def wait_for_line(stream, words):
    """Reads lines until one contains these words; returns everything read."""
    read = streams.read_until(stream, lambda line: words in line)
    if words not in read:
        raise AssertionError(f"{words!r} is not in: {read}")
    return read


def wait_training(job, count):
    """Waits until this many workers are training; returns them, by rank."""
    def all_train():
        workers = workers_of(job) or []
        return workers if sum(w["steps"] > 20 for w in workers) == count else None
    return wait_until(all_train, f"{count} workers train")


def children(pid):
    """The ps and workers of a launcher, including those that have ended and are not reaped yet."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listed:
            return [int(child) for child in listed.read().split()]
    except FileNotFoundError:
        return []


def is_running(pid):
    """A process that has ended and is not reaped yet does not count as running."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def programs_of(job):
    """Processes that were started with the name of this job and have not ended."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if job in (process / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                found.append(int(process.name))
        except OSError:
            pass  # the process has ended meanwhile
    return found


def kill_programs_of(job):
    for process in programs_of(job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def venv_python():
    """The Python with the packages of tests/requirements.txt. Skips the test if it exists but this user cannot run
    it."""
    python = os.environ.get("PS_SHM_VENV_PYTHON", "")
    if os.path.lexists(python) and not os.access(python, os.X_OK):
        raise unittest.SkipTest(f"skipped: this user may not start {python}")
    if not os.path.exists(python):
        raise AssertionError(f"PS_SHM_VENV_PYTHON is {python!r}, no Python with the packages of tests/requirements.txt: "
                             "tools/test makes it")
    return python


def may_unshare(*options):
    """Whether the program unshare exists and may create these namespaces."""
    return (shutil.which("unshare") is not None
            and subprocess.run(["unshare", *options, "true"], capture_output=True).returncode == 0)


def may_mount():
    """Whether a file system can be mounted that only the mounting process and its children see."""
    mount = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    return may_unshare("-m") and subprocess.run(mount, capture_output=True).returncode == 0


def why_not_as(user, program):
    """The reason why this process cannot start the program as that user, or None."""
    if os.geteuid() != 0:
        return "skipped: only root can become another user"
    try:
        subprocess.run([program, "--help"], user=user, group=user, extra_groups=[], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"skipped: this root cannot start {program} as another user: {error}"
    return None


class Peer:
    """A process of peer.cpp; the constructor returns once the role is set up."""

    def __init__(self, test, *arguments):
        delay()
        self.process = subprocess.Popen([os.environ["PS_SHM_PEER"], *map(str, arguments)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        test.addCleanup(self.kill)
        line = read_line(self.process.stdout)
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
        self.gates = []

    def close_gate(self, *steps):
        """A gate that is opened when the test ends, if not before."""
        self.gates.append(Gate(self, *steps))
        return self.gates[-1]

    def start_gated(self, *arguments, mode="async", job=None):
        """Starts launch_shm with workers that stay in a delay after some steps; the gate's open() releases them."""
        gate = self.close_gate()
        launch = self.start("launch_shm", "--job", job or self.job, "--mode", mode, "--steps", GATED_STEPS[mode], *GATED_DELAY,
                            *arguments, env=gate.env)
        return launch, gate

    def start(self, program, *arguments, **options):
        process = start(program, *arguments, **options)
        self.started.append(process)
        return process

    def start_ps(self, *arguments):
        """Starts a ps and waits until its job is ready; its first line has been read."""
        ps = self.start("ps_shm", "--job", self.job, *arguments)
        self.assertIn(self.job, read_line(ps.stdout))
        return ps

    def tearDown(self):
        for gate in self.gates:
            gate.open()
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                kill_programs_of(self.job)  # which may have its streams open
                process.communicate(timeout=PATIENCE)
        left = segments(self.job)
        for name in left:
            (SHM / name).unlink(missing_ok=True)
        if self._outcome_is_good():
            self.assertEqual(left, [], "the test leaves segments behind")

    def _outcome_is_good(self):
        result = self._outcome.result
        return not any(test is self for test, _ in [*result.failures, *result.errors])

    def launch(self, *arguments, **options):
        """Runs launch_shm with --json and requires exit code 0; returns the JSON object from its stdout."""
        code, out, err = run("launch_shm", "--job", self.job, *arguments, "--json", **options)
        self.assertEqual(code, 0, f"stdout: {out}\nstderr: {err}")
        return json.loads(out)

    def assert_nothing_left(self):
        self.assertEqual((programs_of(self.job), segments(self.job)), ([], []))

    def assert_fails(self, code, result, *words):
        got, out, err = result
        self.assertEqual(got, code, f"stdout: {out}\nstderr: {err}")
        *before, line = err.strip().splitlines(keepends=True) or [""]
        self.assertEqual(streams.without_waits("".join(before)), "", f"one line says what to do; here: {err}")
        self.assertNotEqual(line, "")
        for word in words:
            self.assertIn(word, line)
        return line


main = timing.main
