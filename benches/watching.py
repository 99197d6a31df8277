#!/usr/bin/env python3
"""What inspect_shm watch takes of a processor, page by page, beside a job that trains.

  build/venv/bin/python benches/watching.py [--mib N] [--seconds S]     after tools/test has built the programs
"""
import argparse
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ.setdefault("PS_SHM_TOOLS", str(ROOT / "build" / "test" / "tools"))
os.environ.setdefault("PS_SHM_SOURCE", str(ROOT))
sys.path.insert(0, str(ROOT / "tests" / "process"))
import support

PAGES = ("overview", "workers", "variables", "chunks", "rows", "events")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="of the job's values")
    parser.add_argument("--seconds", type=float, default=20, help="of each page")
    options = parser.parse_args()
    from full_screen import FullScreen  # needs the tests' Python

    job = f"bench-{os.getpid()}-watch"
    peer = subprocess.Popen([str(support.TOOLS.parent / "tests" / "peer"), "train", job, str(options.mib)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if peer.stdout.readline() != "ready\n":
            sys.exit("the job did not begin")
        with FullScreen(120, 36, "inspect_shm", "watch", "--job", job) as screen:
            screen.wait_for(lambda text: "q quit" in text, "the first page")

            def used():
                """In seconds, to the nanosecond."""
                return int(pathlib.Path(f"/proc/{screen.process.pid}/schedstat").read_text().split()[0]) * 1e-9

            print(f"{options.mib} MiB of values, a terminal of 120 x 36")
            print("page        share of a core")
            for number, page in enumerate(PAGES, 1):
                screen.press(str(number), *(">" * 16 if page == "rows" else ""))
                began, before = time.monotonic(), used()
                while time.monotonic() < began + options.seconds:
                    screen.read()
                print(f"{page:10}  {100 * (used() - before) / (time.monotonic() - began):5.2f} %", flush=True)
            screen.press("q")
            screen.finish()
    finally:
        peer.communicate(timeout=60)


if __name__ == "__main__":
    main()
