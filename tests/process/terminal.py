"""A pseudo-terminal of a given width, and the output of a program on it."""
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time

import support

ESCAPE = r"\x1b\[[0-9;?]*[A-Za-z]"


class Terminal:
    """Runs one program; `shown` is its whole output so far."""

    def __init__(self, columns, program, *arguments, env=None):
        self.here, there = os.openpty()
        self.shown = ""
        self.resize(columns)
        support.delay()
        self.process = subprocess.Popen([str(support.TOOLS / program), *map(str, arguments)], stdin=there, stdout=there,
                                        stderr=there, env=support.environment(env))
        os.close(there)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.finish()
        os.close(self.here)

    def resize(self, columns):
        fcntl.ioctl(self.here, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self):
        """Reads what the program has printed. Returns False once it can print nothing more."""
        if not select.select([self.here], [], [], 0.1)[0]:
            return True
        try:
            self.shown += os.read(self.here, 65536).decode()
        except OSError:  # the other end is closed
            return False
        return True

    def read_until(self, fact, what):
        end = time.monotonic() + support.PATIENCE
        while not fact():
            support.delay()
            if time.monotonic() > end or not self.read():
                raise AssertionError(f"{what}: not shown\n{self.shown}")

    def finish(self, timeout=support.PATIENCE):
        """Waits for the program to end; returns its exit code."""
        end = time.monotonic() + timeout
        while self.read():
            if time.monotonic() > end:
                self.process.kill()
        return self.process.wait()

    def redraws(self):
        """The progress line, once for each time that it was drawn."""
        lines = [re.sub(ESCAPE, "", line) for line in re.findall(r"\r([^\r\n]*?)\x1b\[K", self.shown)]
        return [line for line in lines if line]

    def lines(self):
        return re.sub(ESCAPE, "", self.shown).replace("\r\n", "\n").splitlines()


def show(columns, program, *arguments, env=None):
    """Runs a program on a terminal of that width and returns the terminal; the exit code must be 0."""
    with Terminal(columns, program, *arguments, env=env) as terminal:
        code = terminal.finish()
    if code != 0:
        raise AssertionError(f"{program} {arguments}: exit code {code}\n{terminal.shown}")
    return terminal
