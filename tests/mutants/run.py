#!/usr/bin/env python3
"""Breaks the code on purpose, one rule at a time, and checks that the tests of that rule notice.

    tests/mutants/run.py                        all mutants; some seconds each, minutes where a header is broken
    tests/mutants/run.py --sample 5 --seed 1    five random ones
    tests/mutants/run.py --only PART...         those whose names contain one of these
    tests/mutants/run.py --build build/test     only kernels and the Python package, by the tests of that build folder,
                                                which stays as it is
    tests/mutants/run.py --list                 lists them
    tests/mutants/run.py --check                only whether each still fits the code and the tests; some seconds
    tests/mutants/run.py --matrix TEST...       which case of these doctest programs notices which mutant

They are in the *.txt beside this file. Paragraphs are separated by empty lines; the first says what the file is about.
A paragraph "# FILE" names the source of those that follow. A mutant is

    NAME | RULE | TEST... | What is broken, in a sentence. | survives: the reason, if no test can notice
     a line that stays
    -a line that goes
    +a line that comes

which may take several lines before the first of the change. RULE is the label of the protocol's rule. Each TEST must
notice: "[VARIABLE=VALUE] NAME [CASES]". NAME is one of meson's tests, or several: gpu_kernels_on_cpu_{0,1,2}. CASES is a
filter: of doctest's names, or for a process test CLASS.METHOD, or for a test of pytest the name of a function. The lines
that stay or go occur once in the source, as they are written; the first may begin, and the last may end, within a line.
A line "@@" separates two changes.

A mutant is applied to a copy of the sources in build/mutants/tree, which has a build folder of its own. Only what its
tests need is built there, some ten minutes for the first of them, and it is an error if that does not compile the
mutant's file. A kernel's tests run on the CPU, with a library of its own; those of a file of the Python package with a
package of its own, of links to what was built. The first test that fails, or does not end in ten times its usual time,
has noticed the mutant. Where the system allows it, each test has processes and a /dev/shm of its own, so that a hang
leaves nothing behind.
Exits with 0 if every mutant is noticed, except those that have a reason to survive.

The matrix runs all cases of the named tests against each mutant of a source that their programs compile, also if the mutant
names other tests. It writes a table (CSV) of the pairs, and prints the cases that notice no mutant, and those that notice
none alone. It may be interrupted: the same command goes on, and only tries again what has changed.
"""
import argparse
import collections
import fcntl
import os
import pathlib
import random
import signal
import sys
import time

sys.dont_write_bytecode = True
from building import FOLDER, Builder, copy_tree
from matrix import run_matrix
from reading import SOURCE, find_misfits, parse_tests, read_mutants


def try_mutant(mutant, builder):
    """The outcome in words, and whether it is as expected."""
    broken, why = mutant.applied_to((builder.tree / mutant.file).read_text())
    if why:
        return f"does not fit: {why}", False
    with builder.broken(mutant, broken) as (settings, why):
        test, how = (None, why) if why else builder.find_failure(mutant.tests, settings)
    if test is not None:
        return f"noticed by {test.name}: {how}", not mutant.survives
    if how:
        return f"does not build: {how}", False
    return f"survives: {mutant.survives}" if mutant.survives else "SURVIVES", bool(mutant.survives)


def try_all(mutants, builder):
    """Whether any is not as it should be."""
    counts = collections.Counter()
    for test in dict.fromkeys(test for mutant in mutants for test in mutant.tests):
        if why := builder.measure(test) and builder.measure(test):  # on a busy machine a run may fail by accident
            print(f"! without a mutant, {test.name} {test.filter}: {why}", flush=True)
            counts["unfit", False] += 1
            mutants = [mutant for mutant in mutants if test not in mutant.tests]
    # A file that no command reads where it is in the copy would leave every mutant of it alive.
    compiled = builder.compiled() if builder.is_copy else ()
    for mutant in [one for one in mutants if one.file.endswith((".cpp", ".hpp")) and one.file not in compiled]:
        print(f"! {mutant.name}: what its tests need does not compile {builder.tree / mutant.file}", flush=True)
        counts["unfit", False] += 1
        mutants.remove(mutant)
    for mutant in mutants:
        began = time.monotonic()
        verdict, is_good = try_mutant(mutant, builder)
        counts[verdict.split()[0].lower(), is_good] += 1
        print(f"{'  ' if is_good else '! '}{mutant.name:<34} {mutant.rule:<16} {time.monotonic() - began:4.0f} s",
              verdict, sep="  ", flush=True)
    noticed, expected = counts["noticed", True] + counts["noticed", False], counts["survives:", True]
    wrong = sum(count for (_, is_good), count in counts.items() if not is_good)
    print(f"{len(mutants)} mutants: {noticed} noticed, {expected} survive for their reason,",
          f"{wrong} not as they should be")
    return wrong != 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, by chance")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the sample")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART", help="of their names")
    parser.add_argument("--files", nargs="+", default=[""], metavar="PART", help="of the names of their sources")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--check", action="store_true", help="only whether each fits the code")
    parser.add_argument("--quick", action="store_true", help="only the first test of each")
    parser.add_argument("--build", type=pathlib.Path, metavar="FOLDER", help="only kernels and Python, by the tests here")
    parser.add_argument("--matrix", nargs="+", metavar="TEST", help="which case of these notices which mutant")
    parser.add_argument("--to", type=pathlib.Path, metavar="FILE", help="the matrix's table, of build/mutants to begin with")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="of the compiler")
    return parser.parse_args()


def make_matrix(mutants, selected, options):
    tests = [test for text in options.matrix for test in parse_tests(text, "--matrix")]
    path = options.to or SOURCE / f"build/mutants/matrix_{'_'.join(test.name for test in tests)}.csv"
    return lambda builder: run_matrix(mutants, {mutant.name for mutant in selected}, tests, builder, path.absolute())


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also if it was begun in the background
    options = parse_arguments()
    all_mutants = sorted(read_mutants(), key=lambda one: (one.file, one.name))
    mutants = [mutant for mutant in all_mutants if any(part in mutant.name for part in options.only)
               and any(part in mutant.file for part in options.files)
               and (mutant.is_of_kernel or mutant.is_of_package or not options.build)]
    if options.sample:
        print(f"a sample by seed {options.seed}")
        mutants = sorted(random.Random(options.seed).sample(mutants, min(options.sample, len(mutants))),
                         key=lambda one: (one.file, one.name))
    if not mutants:
        sys.exit("there is no such mutant")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:<34} {mutant.rule:<16} {' '.join(dict.fromkeys(t.name for t in mutant.tests))}")
        return 0
    if options.check:
        misfits = list(find_misfits(mutants))
        print("\n".join([*misfits, f"{len(mutants)} mutants, {len(misfits)} misfits"]))
        return bool(misfits)
    for mutant in mutants if options.quick else []:
        del mutant.tests[1:]
    work = make_matrix(all_mutants, mutants, options) if options.matrix else lambda builder: try_all(mutants, builder)
    if options.build:
        return work(Builder(options.jobs, False, options.build))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another one runs in {FOLDER}")
        changed = copy_tree()
        has_changed = any(pathlib.Path(name).name.startswith("meson") for name in changed)
        return work(Builder(options.jobs, has_changed))


if __name__ == "__main__":
    sys.exit(main())
