"""The output of a program some of whose lines have been read."""
import os
import re
import subprocess
import threading
import time

# Sanitizer builds are slower by about this factor.
SLOWNESS = float(os.environ.get("PS_SHM_TEST_PATIENCE", "1"))
PATIENCE = SLOWNESS * 600  # seconds; only ends what hangs: a busy machine is many times slower


def without_waits(text):
    """Without the lines that say once a second what a program waits for: how many there are depends on the machine."""
    return re.sub(r"(?m)^.*\bwaiting (for|at) .*\n", "", text)


def read_until(stream, is_last):
    """Reads lines up to the first one for which this is true, or to the end; that it takes too long is an AssertionError."""
    lines = []

    def read():
        while line := stream.readline():
            lines.append(line)
            if is_last(line):
                break

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(PATIENCE)
    if reader.is_alive():
        raise AssertionError(f"the line did not come in time, but {lines}")
    return "".join(lines)


def read_line(stream):
    """The next line; "" at the end."""
    return read_until(stream, lambda line: True)


def rest(process, timeout):
    """Waits until the program has ended, and returns what it has written since the last readline() of each stream.

    Popen.communicate() leaves out what readline() has read ahead. A program that does not end in time is killed, and is an
    AssertionError.
    """
    read = {name: [] for name in ("stdout", "stderr") if getattr(process, name)}

    def collect(name):
        with getattr(process, name) as stream:
            for line in stream:
                read[name].append(line)

    readers = [threading.Thread(target=collect, args=(name,), daemon=True) for name in read]
    for reader in readers:
        reader.start()
    end = time.monotonic() + timeout
    try:
        process.wait(timeout)
        for reader in readers:
            reader.join(max(0.0, end - time.monotonic()))
        has_ended = not any(reader.is_alive() for reader in readers)  # no child of the program has a stream open
    except subprocess.TimeoutExpired:
        process.kill()
        for reader in readers:
            reader.join(5)
        has_ended = False
    out, err = ("".join(read[name]) if name in read else None for name in ("stdout", "stderr"))
    if not has_ended:
        raise AssertionError(f"{process.args} did not end in time\nstdout: {out}\nstderr: {err}")
    return out, err
