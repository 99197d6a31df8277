"""What is said while cases are measured, and waiting for a machine that does nothing else."""

import os
import pathlib
import sys
import threading
import time

from measuring import Failed

BUSY = 0.2  # processors; the fewest that a process that computes uses for long is one
PATIENCE = 120


class Pace:
    """Says which case of which round is measured, and how long the rest takes: on a terminal in place, else a line each
    ten seconds."""

    def __init__(self, rounds, keys):
        self.rounds, self.keys = rounds, keys
        self.seconds = {}  # of each case's last time
        self.now = None
        self.over = threading.Event()
        self.on_terminal = sys.stderr.isatty()
        every = float(os.environ.get("PS_SHM_TEST_REPORT_SECONDS", 1 if self.on_terminal else 10))
        self.teller = threading.Thread(target=self._tell_each, args=(every,), daemon=True)

    def __enter__(self):
        self.teller.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.teller.join()
        if self.on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def begin(self, number, at, key, left):
        """Case `at` of a round, both from 0; `left` are the cases after it in this round."""
        self.now = (number, at, key, left, time.monotonic())

    def end(self):
        _, _, key, _, began = self.now
        self.seconds[key] = time.monotonic() - began

    def seconds_left(self):
        """None as long as nothing has been measured."""
        if not self.seconds:
            return None
        number, _, key, left, began = self.now
        usual = sum(self.seconds.values()) / len(self.seconds)
        rest = sum(self.seconds.get(one, usual) for one in left)
        rest += max(0.0, self.seconds.get(key, usual) - (time.monotonic() - began))
        return rest + (self.rounds - number - 1) * sum(self.seconds.get(one, usual) for one in self.keys)

    def line(self):
        number, at, key, _, _ = self.now
        left = self.seconds_left()
        text = f"round {number + 1} of {self.rounds}, case {at + 1} of {len(self.keys)}"
        if left is not None:
            text += f", about {said(left)} left"
        return f"{text}: {key}"

    def tell(self):
        if self.now is None:
            return
        if self.on_terminal:
            print(f"\r\033[K{self.line()[: os.get_terminal_size(2).columns - 1]}", end="", file=sys.stderr, flush=True)
        else:
            print(self.line(), file=sys.stderr, flush=True)

    def _tell_each(self, seconds):
        while not self.over.wait(seconds):
            self.tell()


def said(seconds):
    amount, unit = (seconds, "second") if seconds < 90 else (seconds / 60, "minute")
    amount = max(1, round(amount))
    return f"{amount} {unit}{'s' if amount != 1 else ''}"


def processor_times(path=pathlib.Path("/proc/stat")):
    """(used, all) of all processors since the machine's start, in seconds."""
    fields = [int(field) for field in path.read_text().splitlines()[0].split()[1:9]]
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(fields) - fields[3] - fields[4]) / tick, sum(fields) / tick


def busy_processors(times=processor_times, wait=time.sleep):
    """How many the machine uses, on average over two seconds."""
    used, everything = times()
    wait(2)
    used_then, everything_then = times()
    return (used_then - used) / max(1e-9, everything_then - everything) * (os.cpu_count() or 1)


def wait_until_idle(busy=busy_processors, patience=PATIENCE, clock=time.monotonic):
    """Raises Failed where the machine stays busy."""
    began = clock()
    told = None
    while (used := busy()) > BUSY:
        now = clock()
        if now - began >= patience:
            raise Failed(f"the machine is busy: {used:.1f} of {os.cpu_count()} processors, and has been for "
                         f"{now - began:.0f} s; --anyway measures all the same")
        if told is None or now - told >= 10:
            print(f"waiting: the machine is busy, {used:.1f} of {os.cpu_count()} processors (--anyway does not wait)",
                  file=sys.stderr, flush=True)
            told = now
