#!/usr/bin/env python3
"""Records the classic start, each program on a terminal of 80 columns, as docs/start.md shows it.

  tools/dev/record_start.py [--job NAME] [--steps N]      after tools/run has built the programs
"""
import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("PS_SHM_TOOLS", str(ROOT / "build" / "run" / "tools"))
os.environ.setdefault("PS_SHM_SOURCE", str(ROOT))
sys.path.insert(0, str(ROOT / "tests" / "process"))
import support
from terminal import Terminal, show

COLUMNS = 80
FIRST, LAST = 4, 2  # of a worker's lines: two for each message


def print_session(arguments, lines):
    """Long lines as a terminal shows them."""
    for line in ["$ build/run/tools/" + " ".join(arguments), *(line.rstrip() for line in lines if line.strip())]:
        print("\n".join(line[begin:begin + COLUMNS] for begin in range(0, len(line), COLUMNS)))


def shortened(lines):
    return lines if len(lines) <= FIRST + LAST + 1 else [*lines[:FIRST], "...", *lines[-LAST:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="demo")
    parser.add_argument("--steps", default="1000000", help="of the job; 1000000 take about half a minute")
    options = parser.parse_args()
    ps_command = ["ps_shm", "--job", options.job, "--workers", "2", "--steps", options.steps]
    worker_command = ["worker_shm", "--job", options.job]
    look = ["inspect_shm", "workers", "--job", options.job]
    with Terminal(COLUMNS, *ps_command) as ps, Terminal(COLUMNS, *worker_command) as first, \
            Terminal(COLUMNS, *worker_command) as second:
        both_train = lambda: sum(worker["steps"] > 0 for worker in support.workers_of(options.job) or []) == 2
        support.wait_until(both_train, "both workers train")
        seen = show(COLUMNS, *look).lines()
        codes = [worker.finish(timeout=600) for worker in (first, second)] + [ps.finish()]
        if codes != [0, 0, 0]:
            sys.exit(f"exit codes {codes}\n{ps.shown}{first.shown}{second.shown}")
        print_session(ps_command, ps.lines())
        print_session(worker_command, shortened(first.lines()))
        print_session(look, seen)


if __name__ == "__main__":
    main()
