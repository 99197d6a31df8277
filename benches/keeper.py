"""Ends what a program has started, and what that has started, whatever ends the program: also SIGKILL.

A process of its own waits for the program's end and then ends whatever has the program's mark in its environment: ranks
of MPI and tasks of TensorFlow are neither children of the program nor in its process group.
"""

import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import time

MARK = "BENCH_STARTED_BY"


class Keeper:
    """Until end(), what is started inherits the mark. `leftovers` are folders, and patterns of names in /dev/shm, that
    are removed as well."""

    def __init__(self, *leftovers):
        mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        command = [sys.executable, "-B", __file__, mark, *map(str, leftovers)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        os.environ[MARK] = mark

    def end(self):
        os.environ.pop(MARK, None)
        self._process.stdin.close()
        self._process.wait()


def marked(mark):
    """Those that still run; an ended one has no environment any more."""
    wanted = f"{MARK}={mark}".encode()
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)
        except OSError:  # it is gone, or another user's
            pass


def end_all(mark):
    """SIGTERM, after 5 seconds SIGKILL. After 30 it gives up: a process that hangs in the kernel does not end."""
    begun = time.monotonic()
    while (found := list(marked(mark))) and time.monotonic() < begun + 30:
        number = signal.SIGTERM if time.monotonic() < begun + 5 else signal.SIGKILL
        for process in found:
            try:
                os.kill(process, number)
            except OSError:  # it is gone, or has become another user's
                pass
        time.sleep(0.1)
    if found:
        print(f"still running: processes {', '.join(map(str, found))}", file=sys.stderr)


def main(mark, *leftovers):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the program has ended
    end_all(mark)
    for one in leftovers:
        if os.path.isabs(one):
            shutil.rmtree(one, ignore_errors=True)
        else:
            for path in pathlib.Path("/dev/shm").glob(one):
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
