#!/usr/bin/env python3
"""Trains with every optimizer in every mode at three workers and alone; prints three Markdown tables.

    benches/accuracy.py                          digits, five seeds, about ten minutes on two cores
    benches/accuracy.py --data DIR --steps 3000  IDX files such as MNIST's; with --seeds 1 about as long

The tables: test accuracy in per cent, mean staleness in updates, steps per second. Figures are medians over the seeds.
"(!)" marks an accuracy that is half a point or more below that of one process alone.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

OPTIMIZERS = ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "ftrl"]
MODES = {
    "async": ["--mode", "async"],
    "ssp, S = 2": ["--mode", "ssp", "--staleness", "2"],
    "sync": ["--mode", "sync"],
    "sync, quorum 2": ["--mode", "sync", "--quorum", "2"],
    "sync, atomic": ["--mode", "sync", "--reduce", "atomic"],
}


def train(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def measure(options, optimizer, mode):
    """One entry of the table: accuracies of all seeds, and medians of staleness and rate."""
    results = []
    for seed in options.seeds:
        common = ["--optimizer", optimizer, "--lr-schedule", f"cosine:{options.steps}", "--steps", str(options.steps),
                  "--seed", str(seed), "--data", options.data, "--model", options.model, "--json"]
        if mode == "alone":
            results.append(train([str(options.tools / "worker_shm"), "--standalone", *common]))
        else:
            results.append(train([str(options.tools / "launch_shm"), "--workers", "3", *MODES[mode], *common]))
    return {
        "optimizer": optimizer,
        "mode": mode,
        "accuracies": [result["test_accuracy"] for result in results],
        "accuracy": statistics.median(result["test_accuracy"] for result in results),
        "staleness": None if mode == "alone" else statistics.median(result["staleness"]["mean"] for result in results),
        "steps_per_second": statistics.median(result["steps_per_second"] for result in results),
    }


def accuracy_text(entry, alone):
    mark = "" if entry["accuracy"] >= alone["accuracy"] - 0.005 else " (!)"
    return f"{100 * entry['accuracy']:.2f}{mark}"


def tables(entries, modes):
    """Of the entries of all optimizers, each a mapping from a mode, or "alone", to what was measured: three tables."""
    figures = {
        "Test accuracy in per cent": (["alone", *modes], accuracy_text),
        "Mean staleness in updates": (modes, lambda entry, _: f"{entry['staleness']:.2f}"),
        "Steps per second": (modes, lambda entry, _: f"{entry['steps_per_second']:.0f}"),
    }
    for title, (columns, text) in figures.items():
        yield f"{title}:\n"
        yield "| optimizer | " + " | ".join(columns) + " |"
        yield "|---|" + "---:|" * len(columns)
        for optimizer, of_mode in entries.items():
            yield f"| {optimizer} | " + " | ".join(text(of_mode[mode], of_mode["alone"]) for mode in columns) + " |"
        yield ""


def parse_arguments():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, default=root / "build/run/tools", help="folder of the programs")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--optimizers", nargs="+", default=OPTIMIZERS)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--json", action="store_true", help="print the entries as JSON lines instead of the tables")
    options = parser.parse_args()
    options.seeds = range(1, options.seeds + 1)
    if not (options.tools / "launch_shm").exists():
        sys.exit(f"there is no {options.tools}/launch_shm: run tools/run once, or give --tools")
    return options


def main():
    options = parse_arguments()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {options.data}, {options.model}, "
          f"{options.steps} global steps, cosine schedule, seeds 1 to {options.seeds[-1]}", file=sys.stderr)
    entries = {}
    for optimizer in options.optimizers:
        print(optimizer, file=sys.stderr, flush=True)
        entries[optimizer] = {mode: measure(options, optimizer, mode) for mode in ["alone", *options.modes]}
        if options.json:
            for entry in entries[optimizer].values():
                print(json.dumps(entry), flush=True)
    if not options.json:
        print(*tables(entries, options.modes), sep="\n")


if __name__ == "__main__":
    main()
