#!/usr/bin/env python3
"""Measures what the library's tuning constants were chosen from; prints Markdown tables.

    benches/tuning.py            about ten minutes on two cores, most of it building
    benches/tuning.py --rounds 9 --only free-buffers

Each variant is `micro`, built from a copy of the sources with one constant changed. Variants take turns, round by round;
figures are medians, and what is in use is bold. Chunk sizes need no build of their own: they are a setting of a job.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name: (file, what stands there, what is put instead); None is the value in use.
VARIANTS = {
    "free-buffers": {
        "2": ("src/shm/segment/layout.hpp", r"kFreeBuffersPerClass = \d+;", "kFreeBuffersPerClass = 2;"),
        "4": None,
        "8": ("src/shm/segment/layout.hpp", r"kFreeBuffersPerClass = \d+;", "kFreeBuffersPerClass = 8;"),
    },
    "spins": {
        "0": ("src/shm/base/futex.hpp", r"int spins = \d+;", "int spins = 0;"),
        "100": ("src/shm/base/futex.hpp", r"int spins = \d+;", "int spins = 100;"),
        "400": None,
        "4000": ("src/shm/base/futex.hpp", r"int spins = \d+;", "int spins = 4000;"),
    },
    "start": {
        "apart": None,
        "the same": ("src/worker/variable_state.cpp", r"start_ = pieces \* .*;", "start_ = 0 * rank * workers;"),
    },
}
# What a table says of its first column.
TITLES = {"free-buffers": "free buffers per worker and size", "spins": "looks before yielding", "start": "where workers begin"}
# case: (its counter, what the table says of it)
CASES = {
    "free-buffers": {
        "push/versioned/floats:1000/processes:2": ("GB/s", "1 000 floats, GB/s"),
        "push/versioned/floats:100000/processes:2": ("GB/s", "100 000 floats, GB/s"),
        "push/versioned/floats:1000000/processes:2": ("GB/s", "1 M floats, GB/s"),
        "pull/versioned_beside_pusher/floats:1000/processes:2": (
            "retries", "repeats of a pull beside a pusher, 1 000 floats"),
    },
    "spins": {
        "sync/empty/processes:2": ("us", "empty step, 2 workers, us"),
        "sync/empty/processes:3": ("us", "empty step, 3 workers, us"),
        "sync/step/floats:1000000/processes:2": ("us", "step of 1 M floats, 2 workers, us"),
    },
    "start": {
        "push/versioned/floats:100000/processes:2": ("GB/s", "100 000 floats, GB/s"),
        "push/versioned/floats:1000000/processes:2": ("GB/s", "1 M floats, GB/s"),
        "push/versioned/floats:16000000/processes:2": ("GB/s", "16 M floats, GB/s"),
    },
}
# rule: the sizes in use, in KiB, and (floats, processes) of the columns. Variables of up to 256 KiB have chunks of 8 KiB,
# and up to 4 MiB, with their optimizer slots, of 32 KiB.
CHUNKS = {
    "sgd": ((8, 32), [(100_000, 2), (1_000_000, 2), (16_000_000, 2)]),
    "adam": ((8, 32, 128), [(1_000_000, 1), (16_000_000, 1), (1_000_000, 2), (16_000_000, 2)]),
}
CHUNK_KIB = (4, 8, 16, 32, 64, 128, 256)


def run(command, **options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build(name, change):
    """`micro` with that change."""
    copy = ROOT / "build" / "tuning" / name.replace(" ", "-")
    source = copy / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("build", ".git", "__pycache__"))
    if change is not None:
        file, pattern, replacement = change
        path = source / file
        text, count = re.subn(pattern, replacement, path.read_text())
        if count != 1:
            sys.exit(f"{file}: {pattern} is there {count} times")
        path.write_text(text)
    build_folder = copy / "build"
    if not (build_folder / "build.ninja").exists():
        run(["meson", "setup", build_folder, source, "-Dtests=false", "-Dtools=false"])
    run(["ninja", "-C", build_folder, "benches/micro"])
    return build_folder / "benches" / "micro"


def measure(micro, cases):
    pattern = "|".join(f"^{case}$" for case in cases)
    out = run([micro, "--seconds=0.1", "--benchmark_repetitions=1", f"--benchmark_filter={pattern}",
               "--benchmark_format=json"])
    rows = json.loads(out[out.index("{"):])["benchmarks"]
    return {row["run_name"]: row for row in rows if row.get("aggregate_name", "median") == "median"}


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def tune(subject, rounds):
    programs = {value: build(f"{subject} {value}", change) for value, change in VARIANTS[subject].items()}
    found = {value: {case: [] for case in CASES[subject]} for value in programs}
    for _ in range(rounds):
        for value, micro in programs.items():
            figures = measure(micro, CASES[subject])
            for case, (counter, _) in CASES[subject].items():
                found[value][case].append(figures[case][counter])
    rows = [[f"**{value}**" if VARIANTS[subject][value] is None else value,
             *(f"{statistics.median(found[value][case]):.3g}" for case in CASES[subject])] for value in programs]
    table([TITLES[subject], *(title for _, title in CASES[subject].values())], rows)


def tune_chunks(micro, rounds):
    for rule, (in_use, columns) in CHUNKS.items():
        names = {(kib, column): f"push_chunk/{rule}/bytes:{kib << 10}/floats:{column[0]}/processes:{column[1]}"
                 for kib in CHUNK_KIB for column in columns}
        found = {name: [] for name in names.values()}
        for _ in range(rounds):
            for name, figures in measure(micro, found).items():
                found[name].append(figures["GB/s"])
        rows = [[f"**{kib} KiB**" if kib in in_use else f"{kib} KiB",
                 *(f"{statistics.median(found[names[kib, column]]):.1f}" for column in columns)] for kib in CHUNK_KIB]
        table([f"chunk, {rule}", *(f"{floats:,} floats, processes: {processes}, GB/s" for floats, processes in columns)],
              rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro", type=pathlib.Path, default=ROOT / "build/bench/benches/micro")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["chunk", *VARIANTS])
    options = parser.parse_args()
    if not options.micro.exists():
        parser.error(f"there is no {options.micro}: meson setup build/bench && ninja -C build/bench")
    if options.only in (None, "chunk"):
        tune_chunks(options.micro, options.rounds)
    for subject in VARIANTS:
        if options.only in (None, subject):
            tune(subject, options.rounds)


if __name__ == "__main__":
    main()
