#!/usr/bin/env python3
"""Compares the figures of the pages with the runs that they are of, which benches/results has as JSON.

  - A result has its command, commit, machine, load and date. docs/benchmarks.md names its machine, and a page links it.
  - A table that follows such a link, in the same section, has rows of that file. docs/benchmarks.md has no other tables,
    but for those of the machines and of where it does not pay.
  - "Where it does not pay" has every case of docs/benchmarks.md whose ratio is below 1. LOSSES says where its figures
    are from.
  - CLAIMS says where each number of the README is from, but for names and versions (NAMES), and some of other pages.
  - In outputs that are shown, steps divided by time are the steps per second.

    tests/checks/check_figures.py ROOT
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches"))
import record  # noqa: E402

BENCHMARKS = "docs/benchmarks.md"
NEEDED = ("command", "commit", "machine", "load", "date", "rows")
MACHINES, DOES_NOT_PAY = "Benchmarks", "Where it does not pay"  # the sections whose tables are of no single file
NAMES = r"\d+\. |version [\d.]+|Apache-2\.0|C\+\+20|Python 3\.10|Debian 12|Ubuntu 24\.04|x86-64|aarch64|`[^`]*`"
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "k": 1e3, "M": 1e6}
BARRIER = "no work, 2 processes, of MPI_Barrier (spins, or yields with too few cores)"
COPIED = "ours, copied into each reader's tensors"
SMALL = "1,000 floats, 2 workers: times as fast as MPI_Allreduce and SGD"
MPI_GET = "100,000 floats in two processes, MPI_Get"
NO_LOCK, MUTEX = "64 MiB, of PyTorch's shared memory and a lock", "64 MiB beside a reader that copies it all the time"

# The first column of "Where it does not pay" -> its figure, of the results.
LOSSES = {
    "pushes of 100,000 floats, two writers": lambda of: of("speed", "ratio", "two writers, 100,000 floats"),
    "pushes of 1,000,000 floats, two writers": lambda of: of("speed", "ratio", "two writers, 1,000,000 floats"),
    "pushes of 16,000,000 floats, two writers": lambda of: of("speed", "ratio", "two writers, 16,000,000 floats"),
    "a pull of 100,000 floats": lambda of: of("speed", "ratio", "100,000 floats, of memcpy"),
    "a pull of 100,000 floats beside a pusher": lambda of: of(
        "speed", "ratio", "100,000 floats beside a pusher, of its share of memcpy in two processes"),
    "pulls of 100,000 floats in two processes": lambda of: of("speed", "ratio", MPI_GET),
    "rows pushed one by one, one exact worker": lambda of: of("hogwild", "of plain", "exact", "1"),
    "rows pushed one by one, one racy worker": lambda of: of("hogwild", "of plain", "racy", "1"),
    "rows pushed one by one, two exact workers": lambda of: of("hogwild", "of plain", "exact", "2"),
    "the same, beside a lock": lambda of: of("hogwild", "examples/s", "exact", "2")
    / of("hogwild", "examples/s", "lock", "2"),
    "weights copied into one reader's tensors": lambda of: of(
        "weights", "1 reader", "shared tensors, overwritten while they are read") / of("weights", "1 reader", COPIED),
    "four writers on two cores, 100,000 floats": lambda of: of(
        "speed", "ratio", "four writers on two cores, 100,000 floats, of two writers"),
    "an empty sync step": lambda of: 1 / of("sync-steps", "ratio", BARRIER),
    "64 MiB published beside a reader that copies it all the time": lambda of: of("speed", "ratio", MUTEX),
    "64 MiB published": lambda of: of("speed", "ratio", NO_LOCK),
    "an insert into a table by key, one process": lambda of: of("tables-by-key-cpu", "`table`", "insert", "1")
    / of("tables-by-key-cpu", "`tbb`", "insert", "1"),
    "pulls from a table by key": lambda of: of("tables-by-key-cpu", "`table`", "pull, zipf", "1")
    / of("tables-by-key-cpu", "`striped`", "pull, zipf", "1"),
}


def sync_steps(of):
    return [float(row["ratio"]) for row in of.results["all-reduce"]["rows"] if "2 workers" in row["case"]]


# Page -> (what it says, where each of its numbers is from). Where it has none, that must hold.
CLAIMS = {
    "README.md": [
        (r"reach a test loss of ([\d.]+)\s+in ([\d.]+) s",
         lambda of: of.results["staleness"]["targets"]["digits"], lambda of: of.straggler("async")),
        (r"one backup worker ignores it and takes ([\d.]+) s", lambda of: of.straggler("backup:1")),
        (r"plain sync waits for it and takes ([\d.]+) s", lambda of: of.straggler("sync")),
        (r"of two workers is ([\d.]+) to ([\d.]+) times as fast as `MPI_Allreduce` and SGD",
         lambda of: min(sync_steps(of)), lambda of: max(sync_steps(of))),
        (r"two workers \[train\]\([^)]*\) ([\d.]+) times as fast in async and ([\d.]+) times in sync",
         lambda of: of("speed", "ratio", "async, of TensorFlow's parameter server, a ps and two workers over gRPC"),
         lambda of: of("speed", "ratio", "sync, of TensorFlow's parameter server, a ps and two workers over gRPC")),
        (r"`share_memory\(\)` and Hogwild \| \[as fast\]",
         lambda of: of("python-hogwild", "examples/s", "`mnist_hogwild.py`", "2")
         > 0.97 * of("python-hogwild", "examples/s", "the original", "2")),
    ],
    "docs/staleness.md": [
        (r"batches of 32, 3 workers; target: test loss ([\d.]+)", lambda of: of.results["staleness"]["targets"]["digits"]),
        (r"batches of 1, 3 workers; target: test loss ([\d.]+)", lambda of: of.results["staleness"]["targets"]["linear"]),
    ],
    BENCHMARKS: [
        (r"ours alone is ([\d.]+) times as fast", lambda of: of("speed", "ratio", "one alone, of PyTorch alone")),
        (r"Two workers are ([\d.]+) times as fast as one with ours, ([\d.]+) times with\s+PyTorch",
         lambda of: of("speed", "ratio", "MLP 784-500-10, batch 100, two workers, async, of one alone"),
         lambda of: of("speed", "its figure", "async, of PyTorch's Hogwild (the mnist_hogwild recipe)")
         / of("speed", "its figure", "one alone, of PyTorch alone")),
        (r"up to ([\d.]+) times the CPU time",
         lambda of: max(float(row[rule]) for row in of.results["python-steps"]["rows"] for rule in list(row)[2:])),
        (r"takes ([\d.]+) times as long as the next one",
         lambda of: of("weights", "measured", "first generation in a record, of the next one")),
        (r"of 1,000 floats takes ([\d.]+)\s+us on .*?, and ([\d.]+) us with",
         lambda of: 1e6 * of("all-reduce", "ours", SMALL), lambda of: 1e6 * of("all-reduce", "its figure", SMALL)),
    ],
}


def number(text):
    """12.2 ms is 0.0122, 5.33M is 5330000; None: no figure."""
    found = re.fullmatch(r"([-\d.,]+(?:e[-+]?\d+)?)\s*(ns|us|ms|k|M)?(\s*(?:s|%|[\w]*/s))?", text)
    return float(found[1].replace(",", "")) * UNITS.get(found[2], 1.0) if found else None


def differs(text, value_of, of):
    """None: the text is the value, rounded to as many digits as it has. Else what benches/results has."""
    try:
        value = value_of(of)
    except KeyError as error:
        return f"benches/results: {error.args[0]}"
    half = 0.5001 * 10 ** -len(text.partition(".")[2])
    return None if abs(float(text) - value) <= half else f"benches/results has {value:.4g}"


class Results:
    def __init__(self, folder):
        self.results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    def __call__(self, name, column, *key):
        """The number in this column of the first row that begins with these cells."""
        for row in self.results[name]["rows"]:
            if tuple(row.values())[: len(key)] == key and number(row.get(column, "")) is not None:
                return number(row[column])
        raise KeyError(f"{name}.json has no row {', '.join(key)} with a figure of {column}")

    def straggler(self, mode):
        for cell in self.results["staleness"]["cells"]:
            if (cell["model"], cell["mode"], cell["straggler"]) == ("digits", mode, "10x") and cell["seconds_to_target"]:
                return cell["seconds_to_target"]["median"]
        raise KeyError(f"staleness.json has no time to the target of digits, {mode}, 10x")


def rows_of(text):
    """Yields (line number, section, results named since the table before, {column: text}) of rows of tables."""
    lines = text.splitlines()
    rows = dict(record.rows_of(lines))
    section, named = "", []
    for at, line in enumerate(lines, 1):
        if heading := re.match(r"#+\s+(.*)", line):
            section, named = heading[1], []
        elif at - 1 in rows and at not in rows:
            named = []
        named += re.findall(r"\]\([^)\s]*results/([\w-]+)\.json\)", line)
        if at in rows:
            yield at, section, list(named), rows[at]


def check_rows(page, text, results):
    for at, section, named, row in rows_of(text):
        known = [one for name in named for one in results[name]["rows"]] if set(named) <= set(results) else []
        if not named:
            if page == BENCHMARKS and section not in (MACHINES, DOES_NOT_PAY):
                yield at, "no link above this table names the file of benches/results that it is of"
        elif not any(all(one.get(column) == cell for column, cell in row.items()) for one in known):
            first = next(iter(row.values()))
            near = [one for one in known if next(iter(one.values())) == first]
            near = max(near, key=lambda one: sum(one.get(column) == cell for column, cell in row.items()), default={})
            other = ", ".join(f"{column} {one}" for column, one in near.items() if row.get(column, one) != one)
            yield at, f"no such row in {', '.join(named)}.json" + (f", which has {other}" if other else "")


def check_losses(text, of):
    listed = {}
    for at, section, named, row in rows_of(text):
        if section == DOES_NOT_PAY:
            listed[row["case"]] = row["ours, times as fast"]
            if row["case"] not in LOSSES:
                yield at, f"LOSSES does not say where '{row['case']}' is from"
            elif (what := differs(row["ours, times as fast"], LOSSES[row["case"]], of)) is not None:
                yield at, f"{row['case']}: {what}"
    for missing in set(LOSSES) - set(listed):
        yield 1, f"'{DOES_NOT_PAY}' lacks: {missing}"
    for at, section, named, row in rows_of(text):
        ratio = number(row.get("ratio", ""))
        if ratio is not None and ratio < 1 and all(differs(one, lambda _: ratio, of) for one in listed.values()):
            yield at, f"ours loses ({ratio:g}), and '{DOES_NOT_PAY}' does not say so: {row['case']}"


def check_claims(page, text, of):
    covered = [match.span() for match in re.finditer(NAMES, text)]
    for pattern, *values in CLAIMS.get(page, ()):
        found = re.search(pattern, text, re.S)
        if not found:
            yield 1, f"does not say what CLAIMS has: {pattern}"
            continue
        at = text.count("\n", 0, found.start()) + 1
        covered += [found.span(group) for group in range(1, 1 + len(found.groups()))]
        for shown, value in zip(found.groups(), values):
            if (what := differs(shown, value, of)) is not None:
                yield at, f"{shown}: {what}"
        if not found.groups() and not values[0](of):
            yield at, f"does not hold: {found[0]}"
    if page != "README.md":
        return
    prose = re.sub(r"```.*?```", lambda block: re.sub(r"[^\n]", " ", block[0]), text, flags=re.S)
    prose = re.sub(r"\]\([^)]*\)", lambda link: "]" + " " * (len(link[0]) - 1), prose)
    for figure in re.finditer(r"\d[\d.,]*", prose):
        if not any(begin <= figure.start() < end for begin, end in covered):
            yield prose.count("\n", 0, figure.start()) + 1, f"CLAIMS does not say where {figure[0]} is from"


def check_outputs(text):
    """Steps and their time, and examples and the time of a batch, in outputs that are shown."""
    for block in re.finditer(r"```.*?```", text, re.S):
        at = text.count("\n", 0, block.start()) + 1
        for steps, time, unit, rate in re.findall(r"(\d+) steps in ([\d.]+) (ms|s): (\d+) steps/s", block[0]):
            half = 0.5001 * 10 ** -len(time.partition(".")[2])
            scale = UNITS.get(unit, 1.0)
            least, most = (int(steps) / ((float(time) + way * half) * scale) for way in (1, -1))
            if not least - 1 <= int(rate) <= most + 1:
                yield at, f"{steps} steps in {time} {unit} are {least:.0f} to {most:.0f} steps/s, not {rate}"
        batches = None
        for rate, time in re.findall(r"(\d+) examples/s,\s+([\d.]+) ms/batch", block[0]):
            half = 0.5001 * 10 ** -len(time.partition(".")[2])
            least, most = (int(rate) * (float(time) + way * half) / 1000 for way in (-1, 1))
            these = {size for size in range(1, int(most) + 1) if least <= size}
            batches = these if batches is None else batches & these
            if not batches:
                yield at, f"{rate} examples/s at {time} ms/batch fit no size of a batch, or not that of the lines above"


def check_results(root, results):
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("benches/*.md")]
    texts = "\n".join(page.read_text() for page in pages)
    machines = set(re.findall(r"(?m)^\| \*\*([^*]+)\*\*", (root / BENCHMARKS).read_text()))
    for name, result in results.items():
        where = f"benches/results/{name}.json"
        yield from (f"{where}: has no {key}" for key in NEEDED if not result.get(key))
        if result.get("machine") not in machines:
            yield f"{where}: {BENCHMARKS} has no machine '{result.get('machine')}'"
        if f"results/{name}.json)" not in texts:
            yield f"{where}: no page has a link to it"
    for page in pages:
        for machine in sorted(set(re.findall(r"\bZen \d\b", page.read_text())) - machines):
            yield f"{page.relative_to(root)}: {BENCHMARKS} has no machine '{machine}'"


def complaints(root):
    of = Results(root / "benches/results")
    yield from check_results(root, of.results)
    for path in [root / "README.md", *sorted(root.glob("docs/*.md")), *sorted(root.glob("benches/*.md"))]:
        page, text = str(path.relative_to(root)), path.read_text()
        found = [*check_rows(page, text, of.results), *check_claims(page, text, of), *check_outputs(text)]
        if page == BENCHMARKS:
            found += check_losses(text, of)
        yield from (f"{page}:{at}: {what}" for at, what in found)


def main():
    found = list(complaints(pathlib.Path(sys.argv[1]).resolve()))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
