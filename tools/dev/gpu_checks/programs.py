"""Running programs with a bound on their time, and the suite gpu of a build folder."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

SKIPPED = 77


class Failed(Exception):
    """A program did not do what it is there for."""


class Done:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def last_line(self):
        lines = [line for line in (self.out + "\n" + self.err).splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it says nothing"


_allowed_until = None


def allow(seconds):
    """From here on programs run for so many seconds altogether; None: for as long as each may."""
    global _allowed_until
    _allowed_until = time.monotonic() + seconds if seconds is not None else None


@contextlib.contextmanager
def allow_share(share):
    """Within it, programs run for that share of what is left of their time."""
    global _allowed_until
    until = _allowed_until
    if until is not None:
        _allowed_until -= (until - time.monotonic()) * (1 - share)
    try:
        yield
    finally:
        _allowed_until = until


def run(command, seconds, env=None):
    """Ends the program, and what it has started, when its time is over; the code is 124 then."""
    if _allowed_until is not None:
        seconds = min(seconds, _allowed_until - time.monotonic())
        if seconds <= 0:
            raise Failed("the part's time is over")
    process = start(command, env)
    try:
        out, err = process.communicate(timeout=seconds)
        return Done(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        out, err = end(process)
        return Done(124, out, err + f"\nit took longer than {seconds} s")
    except BaseException:  # SystemExit by a signal: a program in a session of its own would go on
        end(process)
        raise


@contextlib.contextmanager
def running(command):
    """Runs it beside what is done within it, and ends it then."""
    with start(command) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                end(process)


def start(command, env=None):
    libraries = [os.environ.get("LD_LIBRARY_PATH"), *cublas_folders(sys.path)]
    return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env={**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries)), **(env or {})})


def end(process):
    os.killpg(process.pid, signal.SIGTERM)  # launch_shm removes its job then
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def cublas_folders(paths):
    """Where Python packages have cuBLAS, for boxes on which nothing else has it."""
    return [str(library.parent) for path in paths for library in sorted(pathlib.Path(path).glob("nvidia/*/lib/libcublas.so.*"))]


def errors_in(found, path=""):
    if isinstance(found, dict):
        if "error" in found:
            yield f"{path}: {found['error']}"
        for key, value in found.items():
            yield from errors_in(value, f"{path}/{key}" if path else key)
    elif isinstance(found, list):
        for value in found:
            yield from errors_in(value, path)


def suite_of(build):
    """The tests of suite gpu on a GPU as meson lists them; where the folder was moved, with its present place.

    Not those that are scripts: they need no GPU, but the sources, and a whole build folder.
    """
    tests = json.loads((build / "meson-info" / "intro-tests.json").read_text())
    built_in = json.loads((build / "meson-info" / "meson-info.json").read_text())["directories"]["build"]
    for test in tests:
        is_of_gpu = any(suite.split(":")[-1] == "gpu" for suite in test["suite"]) and "_on_cpu_" not in test["name"]
        if is_of_gpu and pathlib.Path(test["cmd"][0]).is_relative_to(built_in):
            command = [word.replace(built_in, str(build)) for word in test["cmd"]]
            yield test["name"], command, test["timeout"], test["env"]


def run_suite(report, build, prefix=(), suffix=(), label="test", patience=1, more_env=None):
    found = report.data.setdefault(label, {})
    tests = list(suite_of(build))
    if not tests:
        return report.add(label, False, f"{build} has no tests of suite gpu; was it built with CUDA?")
    for name, command, seconds, env in tests:
        try:
            done = run([*prefix, *command, *suffix], seconds * patience, {**env, **(more_env or {})})
        except Failed as error:
            report.add(f"{label} {name}", False, str(error))
            continue
        found[name] = {"exit_code": done.code, "output": (done.out + done.err)[-4000:]}
        if done.code == SKIPPED:
            report.add(f"{label} {name}", False, "skipped, though there is a GPU: " + done.last_line())
        else:
            report.add(f"{label} {name}", done.code == 0, done.last_line())
            for line in done.out.splitlines():
                if "skipped: " in line:  # doctest knows no cases that do not run
                    report.add(f"{label} {name}", None, line.partition("skipped: ")[2])


def sanitizer():
    beside_nvcc = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "compute-sanitizer"
    return shutil.which("compute-sanitizer") or (str(beside_nvcc) if beside_nvcc.exists() else None)


def sanitize_suite(report, build, quick=False):
    program = sanitizer()
    if program is None:
        return report.add("compute-sanitizer", None, "it is not installed")
    # Tools that let one launch run after the other would wait for ever behind a stream that waits for the processor. What
    # is killed by a test could not be told from what the tools have found.
    suffix = ["--test-case-exclude=*can wait on the stream*,gpu deaths: *"]
    # They take many times as long, so rounds are few, and a slow tool leaves the others their share of the time.
    rounds, tools = {"PS_SHM_TEST_ROUNDS": "20"}, ("memcheck",) if quick else ("memcheck", "racecheck", "synccheck")
    for number, tool in enumerate(tools):
        prefix = [program, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
        with allow_share(1 / (len(tools) - number)):
            run_suite(report, build, prefix, suffix, label=tool, patience=10, more_env=rounds)
