#!/usr/bin/env python3
"""Prints where the time of tests went: each suite from its first start to its last end, and the ten slowest tests.

    tools/dev/test_times.py BUILD=LOG...    LOG is of `meson test`, in JSON lines
"""
import collections
import json
import pathlib
import sys

SLOWEST = 10


def read(argument):
    """(suite, test, start, seconds) of each; a log that was cut off can end in half a line."""
    build, log = argument.split("=", 1)
    for line in pathlib.Path(log).read_text(errors="replace").splitlines():
        try:
            test = json.loads(line)
            suites, name = test["name"].split(":", 1)[-1].split(" / ", 1)
            yield f"{build} {suites.split('+')[0]}", name, float(test["starttime"]), float(test["duration"])
        except (ValueError, KeyError, TypeError):
            continue


def main():
    tests = [test for argument in sys.argv[1:] for test in read(argument)]
    suites = collections.defaultdict(list)
    for suite, _, start, seconds in tests:
        suites[suite].append((start, seconds))
    width = max((len(suite) for suite in suites), default=0)
    for suite, ran in suites.items():
        wall = max(start + seconds for start, seconds in ran) - min(start for start, _ in ran)
        summed = sum(seconds for _, seconds in ran)
        print(f"{suite:{width}}  {wall:5.0f} s from start to end, {summed:5.0f} s of {len(ran)} tests")
    print(f"The {min(SLOWEST, len(tests))} slowest tests:")
    for suite, name, _, seconds in sorted(tests, key=lambda test: -test[3])[:SLOWEST]:
        print(f"  {seconds:5.0f} s  {suite} {name}")


if __name__ == "__main__":
    main()
