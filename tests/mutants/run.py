#!/usr/bin/env python3
"""Breaks the protocols on purpose, one rule at a time, and looks whether the tests that suit it notice.

    tests/mutants/run.py                all mutants; some minutes each where a header is broken
    tests/mutants/run.py --sample N     N of them, spread evenly
    tests/mutants/run.py --only NAME    those whose names contain NAME
    tests/mutants/run.py --list         what there is

A mutant is a patch beside this file. Above the patch stand "Rule: LABEL", "Tests: NAME..." (names of meson's tests), and
where no test can notice it "Survives: REASON". It is applied to a copy of the tracked files in build/mutants, which has
a build folder of its own; only what these tests need is built there. Exits with 0 if every mutant is noticed, but for
those that survive for their reason.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = SOURCE / "tests/mutants"
TREE = SOURCE / "build/mutants/tree"
BUILD = SOURCE / "build/mutants/build"


class Mutant:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        head = path.read_text().split("\n--- ", 1)[0]
        fields = dict(re.findall(r"^([A-Z][a-z]+): (.*)$", head, re.MULTILINE))
        try:
            self.rule, self.tests = fields["Rule"], fields["Tests"].split()
        except KeyError as error:
            sys.exit(f"{path}: there is no line {error}")
        self.survives = fields.get("Survives")


def run(*command, **options):
    return subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, **options)


def copy_tree():
    """Copies what has changed, so that a second run compiles little."""
    files = run("git", "-C", str(SOURCE), "ls-files", "-z", "--cached", "--others", "--exclude-standard", check=True)
    wanted = {name for name in files.stdout.split("\0") if name and (SOURCE / name).is_file()}
    for old in (path for path in TREE.rglob("*") if path.is_file()):
        if str(old.relative_to(TREE)) not in wanted:
            old.unlink()
    for name in wanted:
        source, copy = SOURCE / name, TREE / name
        if copy.exists() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


def set_up(jobs):
    copy_tree()
    if (BUILD / "build.ninja").exists():
        return
    made = run("meson", "setup", str(BUILD), str(TREE), "-Dbuildtype=debugoptimized", "-Doptimization=1", "-Dtests=true",
               "-Dcuda=disabled", env={**os.environ, "CXXFLAGS": "-g1"})
    if made.returncode != 0:
        sys.exit(made.stdout + made.stderr)


def programs_of(tests):
    """What ninja has to build for these tests."""
    found = json.loads(run("meson", "introspect", "--tests", str(BUILD), check=True).stdout)
    targets, ids = set(), {}
    for target in json.loads(run("meson", "introspect", "--targets", str(BUILD), check=True).stdout):
        ids[target["id"]] = [str(pathlib.Path(name).relative_to(BUILD)) for name in target["filename"]]
    for test in tests:
        of_name = [one for one in found if one["name"] == test]
        if not of_name:
            sys.exit(f"there is no test {test}")
        for depends in of_name[0]["depends"]:
            targets.update(ids.get(depends, []))
        if of_name[0]["cmd"][0].startswith(str(BUILD)):
            targets.add(str(pathlib.Path(of_name[0]["cmd"][0]).relative_to(BUILD)))
    return sorted(targets)


def find_failures(tests, jobs):
    """The tests that fail, each with its last line; or None, and why it does not build."""
    built = run("ninja", "-C", str(BUILD), f"-j{jobs}", *programs_of(tests))
    if built.returncode != 0:
        return None, "\n".join(built.stdout.splitlines()[-15:])
    log = BUILD / "meson-logs/mutants.json"
    log.unlink(missing_ok=True)
    run("meson", "test", "-C", str(BUILD), "--no-rebuild", "--logbase", "mutants", *tests)
    results = [json.loads(line) for line in log.read_text().splitlines()]
    return [one["name"].split(":")[-1] for one in results if one["result"] not in ("OK", "SKIP")], ""


def try_mutant(mutant, jobs):
    """"noticed by ...", "survives", or what is wrong with the mutant; and whether that is as it should be."""
    patched = run("patch", "-d", str(TREE), "-p1", "--forward", "-i", str(mutant.path))
    if patched.returncode != 0:
        copy_tree()
        return "does not apply: " + patched.stdout.strip().splitlines()[-1], False
    try:
        failed, why = find_failures(mutant.tests, jobs)
    finally:
        run("patch", "-d", str(TREE), "-p1", "--reverse", "-i", str(mutant.path))
        copy_tree()
    if failed is None:
        return "does not build: " + why, False
    if failed:
        return "noticed by " + ", ".join(failed), mutant.survives is None
    return "survives" + (f": {mutant.survives}" if mutant.survives else ""), mutant.survives is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="of the compiler")
    options = parser.parse_args()
    mutants = [Mutant(path) for path in sorted(HERE.glob("*.patch")) if options.only in path.stem]
    if options.sample:
        step = max(1, len(mutants) // options.sample)
        mutants = mutants[::step][:options.sample]
    if not mutants:
        sys.exit("there is no such mutant")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:<32} {mutant.rule:<16} {' '.join(mutant.tests)}")
        return 0
    TREE.mkdir(parents=True, exist_ok=True)
    set_up(options.jobs)
    failed, why = find_failures(sorted({test for mutant in mutants for test in mutant.tests}), options.jobs)
    if failed is None or failed:
        sys.exit(f"without a mutant: {why or ', '.join(failed)}")
    wrong = 0
    for mutant in mutants:
        verdict, is_good = try_mutant(mutant, options.jobs)
        wrong += not is_good
        print(f"{'  ' if is_good else '! '}{mutant.name:<32} {mutant.rule:<16} {verdict}", flush=True)
    print(f"{len(mutants)} mutants, {wrong} not as they should be")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
