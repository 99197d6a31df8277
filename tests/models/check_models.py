"""Searches every state of the protocol models with Spin: what shall hold holds, and what is broken on purpose is found.

usage: check_models.py CASES...    PS_SHM_TEST_FULL in the environment: the large cases too

CASES is a file such as table.cases, whose lines say what a search of table.pml is expected to show.
"""
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
HOLDS, FAILS = "holds", "fails"

SECONDS, LARGE_SECONDS = 60, 300
MEGABYTES, LARGE_MEGABYTES = 2000, 6000
DEPTH = 3000000
CUT_SHORT = ("Search not completed", "max search depth too small", "out of memory", "MEMLIM", "hash conflicts too high")


class Trouble(Exception):
    """The search itself went wrong: nothing is shown."""


def run(command, folder, seconds, megabytes):
    """Its exit code and output. The limit is on seconds of the processor, so that a loaded machine changes nothing."""

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    done = subprocess.run(command, cwd=folder, preexec_fn=limit, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        raise Trouble(f"{command[0]} did not end within {seconds} s")
    return done.returncode, done.stdout


def cases_of(file):
    """(whether it is large, expected, defines, what it shows) of each search."""
    for line in file.read_text().splitlines():
        if line.startswith("#"):
            continue
        kind, defines, shows = (part.strip() for part in line.split("|"))
        *large, expected = kind.split()
        if large not in ([], ["large"]) or expected not in (HOLDS, FAILS):
            raise Trouble(f"{file}: {line}")
        yield bool(large), expected, defines, shows


def search(model, defines, optimization, seconds, megabytes):
    """The output of an exhaustive search, up to the first error."""
    with tempfile.TemporaryDirectory(prefix="models_") as folder:
        flags = [f"-D{define}" for define in defines.split()]
        code, output = run(["spin", *flags, "-a", str(HERE / f"{model}.pml")], folder, 30, 1000)
        if code != 0 or "Error" in output or not (pathlib.Path(folder) / "pan.c").exists():
            raise Trouble(f"spin: {output.strip()}")
        compiler = os.environ.get("CC", "cc").split()
        code, output = run([*compiler, optimization, "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048",
                            f"-DMEMLIM={megabytes}", "-o", "pan", "pan.c"], folder, 120, 4000)
        if code != 0:
            raise Trouble(f"{compiler[0]}: {output.strip()}")
        code, output = run(["./pan", f"-m{DEPTH}", "-w22"], folder, seconds, megabytes + 1000)
        if code < 0:
            raise Trouble(f"pan was ended by signal {-code}")
        return output


def judge(output):
    """HOLDS or FAILS. A search that was cut short shows neither, unless it has found an error."""
    errors = re.search(r"errors: (\d+)", output)
    if errors is None:
        raise Trouble(f"no result: {output.strip()[-500:]}")
    found = re.search(r"pan:\d+: (assertion violated|invalid end state)", output)
    if int(errors[1]) > 0:
        if not found:
            raise Trouble(f"an error of another kind: {output.strip()[:500]}")
        return FAILS
    for sign in CUT_SHORT:
        if sign in output:
            raise Trouble(f"cut short: {sign}")
    if not re.search(r"assertion violations\s+\+", output) or not re.search(r"invalid end states\s+\+", output):
        raise Trouble("the search looked for something else")
    return HOLDS


def main():
    if shutil.which("spin") is None:
        print("skip: spin is not installed")
        return 77
    is_full = bool(os.environ.get("PS_SHM_TEST_FULL"))
    cases = [(file.stem, *case) for file in map(pathlib.Path, sys.argv[1:]) for case in cases_of(file)]
    wrong = 0
    for model, is_large, expected, defines, shows in cases:
        if is_large and not is_full:
            continue
        # Compiling takes longer than most searches.
        limits = ("-O2", LARGE_SECONDS, LARGE_MEGABYTES) if is_large else ("-O1" if expected == HOLDS else "-O0", SECONDS, MEGABYTES)
        begin = time.monotonic()
        try:
            output = search(model, defines, *limits)
            found = judge(output)
            states = int(float(re.search(r"([\d.e+]+) states, stored", output)[1]))
        except Trouble as trouble:
            found, states = f"no result ({trouble})", 0
        wrong += found != expected
        verdict = "ok" if found == expected else f"WRONG, it {found}" if states else f"WRONG: {found}"
        print(f"{verdict:5} {model:11} {defines:55} {expected} {states:>10,} states {time.monotonic() - begin:6.1f} s  "
              f"{shows}", flush=True)
    print(f"{wrong} wrong" if wrong else "all as expected")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
