"""Starting the programs, with a bound on every wait, and looking for what they leave behind."""
import itertools
import json
import os
import pathlib
import signal
import subprocess
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
    return f"t{os.getpid()}-{next(_numbers)}"


def segments(job):
    return sorted(p.name for p in SHM.glob(f"ps.{job}*"))


def environment(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PS_") or k.startswith("PS_TEST")}
    for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        env.pop(name, None)
    return {**env, **(extra or {})}


def start(program, *arguments, env=None, **options):
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([str(TOOLS / program), *map(str, arguments)], stdin=subprocess.DEVNULL, text=True,
                            env=environment(env), **options)


def finish(process, timeout=None):
    try:
        out, err = process.communicate(timeout=timeout or PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{process.args} did not end in time\nstdout: {out}\nstderr: {err}")
    return process.returncode, out, err


def run(program, *arguments, env=None, timeout=None, **options):
    return finish(start(program, *arguments, env=env, **options), timeout)


def wait_until(fact, what, timeout=None):
    end = time.monotonic() + (timeout or PATIENCE)
    while time.monotonic() < end:
        if fact():
            return
        time.sleep(0.005)
    raise AssertionError(f"not within the time: {what}")


def workers_of(job):
    code, out, _ = run("inspect_shm", "workers", "--job", job, "--json")
    return json.loads(out)["workers"] if code == 0 else None


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

    def assert_fails(self, code, result, *words):
        got, out, err = result
        self.assertEqual(got, code, f"stdout: {out}\nstderr: {err}")
        lines = err.strip().splitlines()
        self.assertEqual(len(lines), 1, f"one line says what to do; here: {err}")
        for word in words:
            self.assertIn(word, lines[0])


def main():
    unittest.main(verbosity=2)
