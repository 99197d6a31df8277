#!/usr/bin/env python3
"""Prints the coverage of the shared-memory modules by the tests, and the lines that they do not reach.

    tests/coverage.py BUILD    a build by clang with -fprofile-instr-generate -fcoverage-mapping

Lines in a row that were not reached are a gap, named by the longest of them. One that no test is to reach stands in
unreached.txt beside this file, with the reason. Exits with 0 if there is no other, and each line of that list is in
its file.
"""
import collections
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent
MODULES = ["shm", "update", "snapshot", "publish", "worker", "server", "inspection"]
PROGRAMS = ["tests/unit_tests", "tests/stress_tests", "tests/stopped_between", "tests/scenes", "tests/kill_matrix",
            "tests/publication_matrix", "tests/table_matrix", "tests/peer", "tools/ps_shm", "tools/worker_shm",
            "tools/launch_shm", "tools/inspect_shm"]


def read_counts(build):
    """{file: {line: execution count}}"""
    profile = build / "coverage.profdata"
    subprocess.run(["llvm-profdata", "merge", "--sparse", "--failure-mode=all", *map(str, build.glob("profiles/*")),
                    "-o", str(profile)], check=True)
    first, *others = [str(build / name) for name in PROGRAMS]
    report = subprocess.run(["llvm-cov", "export", "--format=lcov", f"--instr-profile={profile}", first,
                             *(f"--object={name}" for name in others),
                             *(str(SOURCE / "src" / module) for module in MODULES)],
                            check=True, stdout=subprocess.PIPE, text=True).stdout
    counts, lines = collections.defaultdict(collections.Counter), None
    for row in report.splitlines():
        kind, _, rest = row.partition(":")
        if kind == "SF":
            lines = counts[pathlib.Path(rest).resolve()]
        elif kind == "DA":
            number, count = map(int, rest.split(",")[:2])
            lines[number] += count
    return counts


def read_reasons():
    """{(file, longest line of a gap): reason}: rows `FILE: TEXT`, each group below its reason, which starts with '#
    '."""
    reasons, reason = {}, ""
    for row in (SOURCE / "tests/unreached.txt").read_text().splitlines():
        if row.startswith("#"):
            reason = row.lstrip("# ")
        elif row:
            name, _, text = row.partition(": ")
            reasons[SOURCE / name, text.strip()] = reason
    return reasons


def gaps_of(counts, texts):
    """The line numbers of code only: a brace has no count of its own."""
    gaps, was_reached = [], True
    for number, count in sorted(counts.items()):
        if not any(letter.isalnum() for letter in texts[number - 1]):
            continue
        if count == 0:
            if was_reached:
                gaps.append([])
            gaps[-1].append(number)
        was_reached = count > 0
    return gaps


def main():
    counts, reasons, missed = read_counts(pathlib.Path(sys.argv[1]).resolve()), read_reasons(), []
    print(f"{'module':<10} {'lines':>6} {'reached':>8} {'listed':>7} {'missed':>7}")
    for module in MODULES:
        figures = collections.Counter()
        for path in sorted(path for path in counts if SOURCE / "src" / module in path.parents):
            texts = path.read_text().splitlines()
            figures["lines"] += sum(any(map(str.isalnum, texts[number - 1])) for number in counts[path])
            for gap in gaps_of(counts[path], texts):
                text = max((texts[number - 1].strip() for number in gap), key=len)
                is_listed = (path, text) in reasons
                figures["listed" if is_listed else "missed"] += len(gap)
                if not is_listed:
                    missed.append(f"{path.relative_to(SOURCE)}:{gap[0]}: {text} ({len(gap)})")
        reached = figures["lines"] - figures["listed"] - figures["missed"]
        print(f"{module:<10} {figures['lines']:6} {reached:8} {figures['listed']:7} {figures['missed']:7}")
    gone = [f"{path.relative_to(SOURCE)}: {text}" for path, text in reasons
            if not path.exists() or text not in map(str.strip, path.read_text().splitlines())]
    for told, rows in (("never reached, with the number of lines:", missed), ("listed in unreached.txt, but gone:", gone)):
        if rows:
            print("", told, *rows, sep="\n  ")
    return bool(missed or gone)


if __name__ == "__main__":
    sys.exit(main())
