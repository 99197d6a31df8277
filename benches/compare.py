#!/usr/bin/env python3
"""Says figure by figure whether the hot paths have become better, stayed the same or become worse.

    benches/compare.py OLD NEW                       of two builds, revisions or saved measurements
    benches/compare.py main HEAD --filter push/      builds both (build/compare-<revision>), measures the pushes
    benches/compare.py old/benches/micro new/benches/micro --repetitions 20
    benches/compare.py old.json new.json             saved by micro --benchmark_out=old.json --benchmark_repetitions=12
                                                     --benchmark_report_aggregates_only=false

Programs run one case at a time, the old one and the new one next to each other, in the order old new, new old, old new
...: so whatever the machine does meanwhile falls on both. Each repetition gives a ratio of new to old; said is their
median, and the interval between those two of the sorted ratios that enclose the true median with at least --confidence,
whatever the distribution (the sign test's interval). A figure is better or worse where the interval leaves out 1 and
the median differs from 1 by --threshold or more; else it is the same. Counts that may be 0 (lost updates, retries) are
compared by differences in the same way, and 0.

Saved measurements have not been interleaved: repetition i is compared with repetition i, so the interval is right
only as far as the machine was the same both times. Figures of other people's code in the same program (racy adds,
locks, memcpy) are controls: they are shown, and do not count.

Exit code: 0 nothing is worse, 1 something is worse, 2 wrong usage or a failure.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

import measuring
from measuring import Failed, shown

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTROLS = r"/(racy_simd|job_racy|\w+_lock|atomic_ref|exchange16|socket|memcpy4?|bare_exchange|exchange_\w+)(/|$)"

# higher: whether more is better; None: the machine's figure, not ours. differences: may be 0, so ratios mean nothing;
# a change below `least` is none.
Counter = collections.namedtuple("Counter", "higher differences least", defaults=(False, 0.0))
COUNTERS = {
    "GB/s": Counter(True),
    "pull_GB/s": Counter(True),
    "push_GB/s": Counter(True),
    "steps/s": Counter(True),
    "of_limit": Counter(True),
    "items_per_second": Counter(True),
    "bytes_per_second": Counter(True),
    "seconds": Counter(False),
    "own_us": Counter(False),
    "lost_%": Counter(False, True, 0.01),
    "retries": Counter(False, True, 0.01),
    "pull_retries": Counter(False, True, 0.01),
    "limit": Counter(None),
    "pull_limit": Counter(None),
    "push_limit": Counter(None),
    "own_limit": Counter(None),
    "limit_push_pull": Counter(None),
    "pulls/s": Counter(None),
    "pushes/s": Counter(None),
    "computes/s": Counter(None),
}


def rank_of_bound(count, confidence):
    """k such that the k-th smallest and the k-th largest of `count` values enclose their distribution's median with at
    least that confidence: each lies on the wrong side with probability P(Binomial(count, 1/2) < k). 0: too few."""
    tail, k = 0.0, 0
    while k < count // 2:
        tail += math.comb(count, k) / 2**count
        if 2 * tail > 1 - confidence:
            break
        k += 1
    return k


def least_repetitions(confidence):
    return next(count for count in range(2, 100) if rank_of_bound(count, confidence))


def judge(name, counter, old, new, options):
    """One row of the report."""
    kind = COUNTERS[counter]
    paired = list(zip(old, new))
    if kind.differences or 0 in old or 0 in new:
        changes, neutral = sorted(b - a for a, b in paired), 0.0
        least = max(kind.least, options.threshold * abs(statistics.median(old)))
    else:
        changes, neutral = sorted(b / a for a, b in paired), 1.0
        least = options.threshold
    k = rank_of_bound(len(changes), options.confidence)
    median, low, high = statistics.median(changes), changes[k - 1], changes[-k]
    verdict = "same"
    if not low <= neutral <= high and abs(median - neutral) >= least:
        verdict = "better" if (median > neutral) == kind.higher else "worse"
    return {
        "name": name,
        "counter": counter,
        "verdict": verdict,
        "control": bool(re.search(options.controls, name)),
        "old": statistics.median(old),
        "new": statistics.median(new),
        "change": median - neutral,
        "low": low - neutral,
        "high": high - neutral,
        "is_ratio": neutral == 1.0,
        "samples": {"old": old, "new": new},
    }


def figures_to_judge(counters, unknown):
    """Not twice the same: of a case that has a rate its time says nothing more."""
    unknown.update(counter for counter in counters if counter not in COUNTERS)
    known = [counter for counter in counters if counter in COUNTERS and COUNTERS[counter].higher is not None]
    rates = [counter for counter in known if COUNTERS[counter].higher and counter != "of_limit"]
    return [counter for counter in known if not (counter == "seconds" and rates)]


def compare(old, new, options):
    rows, unknown = [], set()
    for name in [name for name in old if name in new]:
        for counter in figures_to_judge(old[name], unknown):
            pairs = min(len(old[name][counter]), len(new[name].get(counter, [])))
            if not rank_of_bound(pairs, options.confidence):
                raise Failed(
                    f"{name}: {pairs} repetitions of {counter} are too few for a confidence of "
                    f"{options.confidence:g}: {least_repetitions(options.confidence)} are needed"
                )
            rows.append(judge(name, counter, old[name][counter][:pairs], new[name][counter][:pairs], options))
    if unknown:
        print(f"not judged, nobody having said what is better: {', '.join(sorted(unknown))}", file=sys.stderr)
    return rows


def measure(programs, options):
    """{name: {counter: [...]}} of both programs, interleaved."""
    listed = [measuring.list_benchmarks(program, options.filter) for program in programs]
    by_plain = [{measuring.plain_name(name): name for name in names} for names in listed]
    common = [name for name in by_plain[0] if name in by_plain[1]]
    if not common:
        raise Failed(f"the two have no figure in common that matches '{options.filter}'")
    found = [{name: collections.defaultdict(list) for name in names} for names in by_plain]
    for repetition in range(options.repetitions):
        for number, name in enumerate(common):
            if sys.stderr.isatty():
                print(
                    f"\r\033[Krepetition {repetition + 1} of {options.repetitions}: {number + 1}/{len(common)} {name}",
                    end="",
                    file=sys.stderr,
                )
            for side in (0, 1) if repetition % 2 == 0 else (1, 0):
                figures, _ = measuring.run_benchmark(programs[side], by_plain[side][name], options.time_out)
                for counter, value in figures.items():
                    found[side][name][counter].append(value)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return found


def build(revision, commit, options):
    """The program of a revision, built from nothing but what is committed there."""
    folder = ROOT / "build" / f"compare-{commit[:12]}"
    program = folder / "build/benches" / options.program
    if not program.exists():
        print(f"building {options.program} of {revision} in {folder.relative_to(ROOT)}", file=sys.stderr)
        source = folder / "source"
        shutil.rmtree(folder, ignore_errors=True)
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        # Without the bound, the build would find this checkout's git and call itself by its commit.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)}
        measuring.run(
            [
                "meson",
                "setup",
                folder / "build",
                source,
                "-Dbuildtype=release",
                "-Dtests=false",
                "-Dtools=false",
                "-Dwerror=false",
            ],
            300,
            env=environment,
        )
        try:
            measuring.run(["meson", "compile", "-C", folder / "build", options.program], 1800, env=environment)
        except Failed:
            raise Failed(
                f"{revision}: benches/{options.program} does not build there; is it in that revision? Look with "
                f"meson compile -C {folder / 'build'} {options.program}"
            ) from None
    return program


def resolve(text, options):
    """('json', path) or ('program', path)."""
    path = pathlib.Path(text)
    if path.is_file():
        return ("program", path.resolve()) if os.access(path, os.X_OK) else ("json", path)
    if (path / "benches" / options.program).is_file():
        return "program", (path / "benches" / options.program).resolve()
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", text + "^{commit}"], capture_output=True, text=True
    )
    if found.returncode == 0:
        return "program", build(text, found.stdout.strip(), options)
    raise Failed(f"{text} is no program, no saved JSON, no build folder and no revision")


def print_report(rows, left_out, options):
    def change(row, key):
        return f"{100 * row[key]:+.1f} %" if row["is_ratio"] else f"{row[key]:+.3g}"

    table = [
        (
            row["name"],
            row["counter"],
            shown(row["old"], row["counter"]),
            shown(row["new"], row["counter"]),
            change(row, "change"),
            f"[{change(row, 'low')}, {change(row, 'high')}]",
            row["verdict"] + (" (control)" if row["control"] else ""),
        )
        for row in rows
    ]
    table.insert(0, ("figure", "", "old", "new", "change", f"{100 * options.confidence:g} % interval", "verdict"))
    widths = [max(len(line[i]) for line in table) for i in range(7)]
    for line in table:
        print(
            "  ".join(
                cell.rjust(width) if 2 <= i <= 5 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths))
            ).rstrip()
        )
    ours = [row for row in rows if not row["control"]]
    moved = [row for row in rows if row["control"] and row["verdict"] != "same"]
    for side, names in left_out.items():
        if names:
            print(f"only in {side}: {', '.join(names)}")
    if moved:
        print(f"{len(moved)} controls are not the same: the machine or the build has changed, not only our code")
    wide = [row for row in ours if row["verdict"] == "same" and row["is_ratio"] and row["high"] - row["low"] > 0.2]
    if wide:
        print(
            f"{len(wide)} of the same have intervals wider than 20 %: they would hide a change; more repetitions or "
            "a quieter machine"
        )
    counts = collections.Counter(row["verdict"] for row in ours)
    print(f"{counts['better']} better, {counts['same']} same, {counts['worse']} worse")
    return 1 if counts["worse"] else 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in ("old", "new"):
        parser.add_argument(side, help="a program, its build folder, a git revision or a saved JSON file")
    parser.add_argument("--filter", default="", metavar="REGEX", help="measure the cases whose names match")
    parser.add_argument("--repetitions", type=int, default=12, help="pairs per figure (12)")
    parser.add_argument("--confidence", type=float, default=0.99, help="of each interval (0.99, since there are many)")
    parser.add_argument("--threshold", type=float, default=3, metavar="PERCENT", help="a smaller change is none (3)")
    parser.add_argument("--controls", default=CONTROLS, metavar="REGEX", help="cases that do not count (%(default)s)")
    parser.add_argument("--program", default="micro", help="of a revision or build folder, in its benches/ (micro)")
    parser.add_argument("--time-out", type=float, default=120, metavar="SECONDS", help="of one case (120)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all rows with their samples")
    options = parser.parse_args()
    if not 0.5 <= options.confidence < 1:
        parser.error("--confidence: between 0.5 and 1")
    if options.repetitions < least_repetitions(options.confidence):
        parser.error(
            f"--repetitions: a confidence of {options.confidence:g} needs "
            f"{least_repetitions(options.confidence)} at least"
        )
    options.threshold /= 100
    return options


def main():
    options = parse_arguments()
    kinds, places = zip(*[resolve(text, options) for text in (options.old, options.new)])
    if "json" in kinds:
        if "program" in kinds:
            raise Failed("a saved measurement can be compared with another saved one only")
        found = [
            {name: counters for name, counters in measuring.read_json(place).items() if re.search(options.filter, name)}
            for place in places
        ]
    else:
        found = measure(places, options)
    rows = compare(*found, options)
    if not rows:
        raise Failed("the two have no figure in common")
    left_out = {
        "OLD": [name for name in found[0] if name not in found[1]],
        "NEW": [name for name in found[1] if name not in found[0]],
    }
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "old": options.old,
                    "new": options.new,
                    "confidence": options.confidence,
                    "threshold": options.threshold,
                    "rows": rows,
                    "only": left_out,
                },
                indent=1,
            )
        )
    return print_report(rows, left_out, options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"compare: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
