"""Which test case notices which mutant: all cases of some doctest programs, against each mutant of what these compile."""
import collections
import csv
import hashlib
import html
import os
import pathlib
import re
import subprocess
import tempfile
import time

from building import PATIENCE

COLUMNS = "mutant", "sources", "test", "case", "outcome"
FAILED, CRASHED, HANGS, NOT_RUN = "failed", "crashed", "hangs", "not run"
FINDS_NOTHING, DOES_NOT_BUILD = "no case notices", "does not build"
AT_END = "(behind the last case)"
MOST_HANGS = 3  # of one program: the cases after these are not run
EVENTS = re.compile(r'<TestCase name="([^"]*)"|test_case_success="(true|false)"(?: duration="([^"]*)")?')


def read_results(text):
    """[(case, whether it passed; None if it has not ended, seconds)] of what doctest's XML says so far. The last word on a
    case counts: a process that a case forks inherits the file, and may write that it is being killed."""
    results = []
    for name, success, seconds in EVENTS.findall(text):
        if not success:
            results.append((html.unescape(name), None, 0.0))
        elif results:
            results[-1] = (results[-1][0], success == "true", float(seconds or 0))
    return results


class Cases:
    """The cases of one program."""

    def __init__(self, start, usual=None, patience=PATIENCE):
        self.start, self.patience = start, patience  # start(words to add): a context manager, which gives the process
        self.usual = usual or {}  # {case: seconds on the unbroken code}, in their order

    def measure(self):
        """Runs them on the unbroken code; the failures, as those of run()."""
        results, status, _ = self.run_from(0, lambda _: 900)
        self.usual = {case: seconds for case, _, seconds in results}
        failures = {case: FAILED for case, passed, _ in results if not passed}
        if not results or results[-1][1] is None:
            failures[results[-1][0] if results else ""] = f"{CRASHED}, with {status}"
        return failures

    def run(self):
        """{case: how it fails}. After one at which the program ends or hangs the rest have a run of their own."""
        failures, hangs, cases = {}, 0, list(self.usual)
        at = 0
        while at < len(cases):
            if hangs == MOST_HANGS:
                failures.update(dict.fromkeys(cases[at:], NOT_RUN))
                break
            results, status, has_hung = self.run_from(at, self.patience_with)
            failures.update((case, FAILED) for case, passed, _ in results if passed is False)
            if not results or results[-1][1] is None:  # at its start, or in a case
                failures[results[-1][0] if results else cases[at]] = HANGS if has_hung else CRASHED
            elif status != 0 and not failures:
                failures[AT_END] = CRASHED
            hangs += has_hung
            at += max(len(results), 1)
        return failures

    def patience_with(self, case):
        return self.patience[0] * self.usual.get(case, 0) + self.patience[1]

    def run_from(self, first, patience):
        """(the results from this case on, the exit status, whether it was stopped since a case took longer than its
        patience)."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "results.xml")
            words = ["--reporters=xml", f"--out={file}", "--duration=true", "--no-skipped-summary=true",
                     f"--first={first + 1}"]
            begun, since, has_hung = -1, time.monotonic(), False
            with self.start(words) as process:
                while True:
                    try:
                        process.wait(0.2)
                        break
                    except subprocess.TimeoutExpired:
                        results = read_results(file.read_text(errors="replace")) if file.exists() else []
                    if len(results) != begun:
                        begun, since = len(results), time.monotonic()
                    if time.monotonic() - since > patience(results[-1][0] if results else ""):
                        has_hung = True
                        break
                text = file.read_text(errors="replace") if file.exists() else ""
            return read_results(text), process.returncode, has_hung


class Table:
    """The rows of a CSV file: one for each mutant and case that notices it, or one for a mutant that none notices. They are
    written once a mutant has been tried, and are there when the same is asked for again."""

    def __init__(self, path):
        self.path, self.rows = path, []
        if path.exists():
            with open(path, newline="") as file:
                rows = list(csv.DictReader(file))
            cut = {row["mutant"] for row in rows if None in row.values()}
            self.rows = [row for row in rows if row["mutant"] not in cut]

    def keep(self, wanted):
        """Leaves out the rows of all but these mutants as they are now: {mutant: the digest of its sources}."""
        self.rows = [row for row in self.rows if wanted.get(row["mutant"]) == row["sources"]]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = self.path.with_name(self.path.name + ".new")
        with open(made, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        os.replace(made, self.path)

    def add(self, rows):
        self.rows += rows
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(rows)

    def has(self, mutant):
        return any(row["mutant"] == mutant for row in self.rows)


def rows_of(mutant, digest, failures, why):
    """The rows of a mutant: `failures` as {(test, case): how}; `why` it does not build, or None."""
    start = {"mutant": mutant, "sources": digest}
    if why:
        return [{**start, "test": "", "case": "", "outcome": DOES_NOT_BUILD}]
    rows = [{**start, "test": test, "case": case, "outcome": how} for (test, case), how in failures.items()]
    return rows or [{**start, "test": "", "case": "", "outcome": FINDS_NOTHING}]


def summarise(rows, cases):
    """Lines on the mutants of these rows, and on which of these cases, given as (test, case), are there for nothing."""
    by_mutant, noticed = collections.defaultdict(set), collections.defaultdict(set)
    unnoticed = [row["mutant"] for row in rows if row["outcome"] == FINDS_NOTHING]
    unbuilt = [row["mutant"] for row in rows if row["outcome"] == DOES_NOT_BUILD]
    for row in rows:
        if row["case"]:
            by_mutant[row["mutant"]].add((row["test"], row["case"]))
            noticed[row["test"], row["case"]].add(row["mutant"])
    alone = {one for those in by_mutant.values() if len(those) == 1 for one in those}
    yield (f"{len({row['mutant'] for row in rows})} mutants: {len(by_mutant)} noticed, {len(unnoticed)} by no case, "
           f"{len(unbuilt)} do not build")
    for title, names in (("noticed by no case:", unnoticed), ("do not build:", unbuilt)):
        if names:
            yield title
            yield from (f"  {name}" for name in names)
    never = [one for one in cases if one not in noticed]
    never_alone = [one for one in cases if one in noticed and one not in alone]
    yield f"{len(cases)} cases: {len(never)} notice none, {len(never_alone)} notice none alone"
    if never:
        yield "cases that notice none:"
        yield from (f"  {test}: {case}" for test, case in never)
    if never_alone:
        yield "cases that notice none alone, with the number that they notice:"
        yield from (f"  {len(noticed[test, case]):3}  {test}: {case}" for test, case in never_alone)


def fill(table, mutants, selected, digest_of, try_one, say=print):
    """Adds the rows of the selected mutants that the table has none of; those of the others stay. try_one(mutant) is
    ({(test, case): how}, why it does not build)."""
    digests = {mutant.name: digest_of(mutant) for mutant in mutants}
    table.keep(digests)
    for mutant in (one for one in mutants if one.name in selected):
        if table.has(mutant.name):
            continue
        began = time.monotonic()
        failures, why = try_one(mutant)
        rows = rows_of(mutant.name, digests[mutant.name], failures, why)
        table.add(rows)
        counts = collections.Counter(row["outcome"] for row in rows)
        say(f"{mutant.name:<34} {time.monotonic() - began:4.0f} s  " +
            ", ".join(f"{count} {how}" if rows[0]["case"] else how for how, count in counts.items()) +
            (f": {why}" if why else ""))


def run_matrix(mutants, selected, tests, builder, path):
    """Tries those of the mutants that the programs compile and whose names are selected. Whether a program fails without a
    mutant."""
    programs = {}
    for test in tests:
        words, why = builder.build(test, all_cases=True)
        if why is not None:
            raise SystemExit(f"{test.name} does not build: {why}")
        cases = Cases(lambda more, test=test, words=words: builder.started(test, words + more, {}, subprocess.DEVNULL))
        if failures := cases.measure() and cases.measure():  # on a busy machine a run may fail by accident
            for case, how in failures.items():
                print(f"! without a mutant, {test.name}: {case}: {how}")
            return True
        programs[test] = cases
    is_own = all(test.name in builder.objects for test in tests)
    used = builder.compiled([one for name in builder.objects for one in builder.objects[name]] if is_own else [])
    names = {test.name for test in tests}
    chosen = [one for one in mutants if not one.is_of_package and
              (one.file in used or one.is_of_kernel and names & {test.name for test in one.tests})]
    content = hashlib.sha256("\n".join(map(repr, tests)).encode())
    for file in sorted(used):
        content.update((builder.tree / file).read_bytes())

    def broken_text(mutant):
        text, why = mutant.applied_to((builder.tree / mutant.file).read_text())
        if why:
            raise SystemExit(f"{mutant.name} does not fit: {why}")
        return text

    def digest_of(mutant):
        whole = content.copy()
        whole.update(broken_text(mutant).encode())
        return whole.hexdigest()[:12]

    def try_one(mutant):
        failures = {}
        with builder.broken(mutant, broken_text(mutant)) as (settings, why):
            if why:
                return {}, why
            for test, cases in programs.items():
                words, why = builder.build(test, all_cases=True)
                if why is not None:
                    return {}, why
                broken = Cases(lambda more: builder.started(test, words + more, settings, subprocess.DEVNULL),
                               cases.usual)
                failures.update({(test.name, case): how for case, how in broken.run().items()})
        return failures, None

    table = Table(path)
    print(f"{sum(one.name in selected for one in chosen)} mutants,",
          f"{sum(len(cases.usual) for cases in programs.values())} cases; the table: {path}", flush=True)
    try:
        fill(table, chosen, selected, digest_of, try_one, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here")
    print(*summarise(table.rows, [(test.name, case) for test, cases in programs.items() for case in cases.usual]), sep="\n")
    return False
