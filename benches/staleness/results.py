"""The results, one JSON object a line in a file that grows by whole lines, and the runs that are added to it."""
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time

MOST_CALIBRATIONS = 5
CALIBRATION_SECONDS = 0.1  # a run that is shorter says too little about the rate
LEAST_STEPS = 20
END_SECONDS = 20.0  # that launch_shm may take over a clean end


class Failed(Exception):
    """A run that did not do what it should; the text says which and why."""


def key_of(kind, settings, repetition, environment_key):
    text = json.dumps([kind, settings, repetition, environment_key], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """The file of one output folder. One process writes it."""

    def __init__(self, path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a+b")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failed(f"{path}: another sweep writes to it; wait for that one, or give --out") from None
        self.file.seek(0)
        content = self.file.read()
        self.lines, unreadable = {}, 0
        for line in content.splitlines():
            try:
                entry = json.loads(line)
                self.lines[entry["key"]] = entry
            except (ValueError, KeyError, TypeError):
                unreadable += 1  # half a line, of a machine that went down
        if unreadable:
            print(f"{path}: {unreadable} lines cannot be read and are left out", file=sys.stderr)
        if content and not content.endswith(b"\n"):
            self._append(b"\n")

    def _append(self, data):
        os.write(self.file.fileno(), data)
        os.fsync(self.file.fileno())

    def find(self, kind, settings, repetition, environment_key):
        return self.lines.get(key_of(kind, settings, repetition, environment_key))

    def add(self, kind, settings, repetition, environment, environment_key, result):
        key = key_of(kind, settings, repetition, environment_key)
        entry = {
            "key": key,
            "kind": kind,
            "unix_seconds": round(time.time(), 3),
            "settings": settings,
            "repetition": repetition,
            "environment": environment,
            "environment_key": environment_key,
            "result": result,
        }
        self._append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self.lines[key] = entry
        return entry


def launch(tools, arguments, patience):
    """One launch_shm; its JSON. Interrupted, it lets the job end cleanly first."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PS_SHM_")}
    command = [str(tools / "launch_shm"), "--on-nan", "warn", *arguments]  # a run that diverges is a result, too
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        out, err = process.communicate(timeout=patience)
    except BaseException as error:
        process.send_signal(signal.SIGINT)  # the terminal's own, where it was that, counts as the same
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=END_SECONDS)
        if process.poll() is None:
            process.kill()
            process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failed(f"{' '.join(command)}\nis not done after {patience:.0f} s") from None
        raise
    if process.returncode == 130:
        raise KeyboardInterrupt  # the terminal's Ctrl-C reached the job before it reached us
    if process.returncode != 0:
        raise Failed(f"{' '.join(command)}\nended with exit code {process.returncode}:\n{err.strip()}")
    return json.loads(out)


def round_to_two_digits(steps):
    unit = 10 ** max(0, len(str(int(steps))) - 2)
    return max(LEAST_STEPS, int(steps) // unit * unit)


def calibrate(tools, run, patience):
    """How many global steps this setting does in its time, by short runs: no run has to be cut off."""
    steps = run.model.first_steps
    for _ in range(MOST_CALIBRATIONS):
        result = launch(tools, run.arguments(steps, seed=1), patience)
        rate = result["steps_per_second"]
        if result["seconds"] >= min(CALIBRATION_SECONDS, run.seconds / 2) or rate <= 0:
            break
        steps = int(steps * min(20.0, max(2.0, 1.5 * CALIBRATION_SECONDS / max(result["seconds"], 1e-3))))
    return {"steps": round_to_two_digits(rate * run.seconds), "steps_per_second": rate, "tried_steps": steps}
