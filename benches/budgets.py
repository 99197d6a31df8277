#!/usr/bin/env python3
"""Trains on keyed data with tables of several sizes, admission counts and ways to evict; prints a Markdown table, and draws a plot.

    benches/budgets.py                 synthetic features of which most are rare; some minutes on two cores
    benches/budgets.py --data FILE     LIBSVM text, or with --model mf ratings
    benches/budgets.py --plot FILE     from the results.json of an earlier run

The table: the loss on the test data, and how much it is above that of a table with room for all rows; the rows at the end;
rows that were evicted, and pushes that were not admitted. Losses are medians over the seeds. results.json and loss.png go
into --out; the plot needs matplotlib.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys


def train(options, seed, rows, admit, evict):
    command = [str(options.tools / "launch_shm"), "--model", options.model, "--keyed", "--data", options.data,
               "--epochs", str(options.epochs), "--workers", str(options.workers), "--max-rows", str(rows),
               "--admit-after", str(admit), "--evict", evict, "--seed", str(seed), "--json", *options.more]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def measure(options, rows, admit, evict):
    results = [train(options, seed, rows, admit, evict) for seed in options.seeds]
    entry = {"max_rows": rows, "admit_after": admit, "evict": evict,
             "loss": statistics.median(result["test_loss"] for result in results)}
    for name in ("rows", "evicted", "unadmitted", "bytes"):
        entry[name] = statistics.median(result["table"][name] for result in results)
    print(f"{rows} rows, {evict}, admitted with push {admit}: {entry['loss']:.4f}", file=sys.stderr, flush=True)
    return entry


def table(results):
    free = results["free"]
    yield "| most rows | evicts | admits with push | test loss | above all rows | rows at the end | evicted | not admitted |"
    yield "|---:|---|---:|---:|---:|---:|---:|---:|"
    for entry in [free, *results["entries"]]:
        most, evict = ("all", "") if entry is free else (f"{entry['max_rows']}", entry["evict"])
        yield (f"| {most} | {evict} | {entry['admit_after']} | {entry['loss']:.4f} | {entry['loss'] - free['loss']:+.4f} | "
               f"{entry['rows']:.0f} | {entry['evicted']:.0f} | {entry['unadmitted']:.0f} |")


def draw(results, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "staleness"))
    from style import BLUE, GREEN, GREY, ORANGE, STYLE, VERMILLION, thousands

    looks = [(BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (VERMILLION, "v")]
    free = results["free"]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5.6, 3.7))
        axes.axhline(free["loss"], color=GREY, linestyle="--", linewidth=1.2, label=f"all {free['rows']:,.0f} rows")
        lines = dict.fromkeys((entry["evict"], entry["admit_after"]) for entry in results["entries"])  # in their order
        for (colour, marker), line in zip(looks, lines):
            own = sorted((e["max_rows"], e["loss"]) for e in results["entries"] if (e["evict"], e["admit_after"]) == line)
            axes.plot(*zip(*own), color=colour, marker=marker, label=f"{line[0]}, admitted with push {line[1]}")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(thousands))
        axes.set_xlabel("most rows of the table")
        axes.set_ylabel("loss on the test data")
        axes.legend()
        figure.savefig(path)
        plt.close(figure)


def parse_arguments():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, default=root / "build/run/tools", help="folder of the programs")
    parser.add_argument("--data", default="zipf:1000000000x200000x20x1.1")
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 3000, 10_000, 30_000, 100_000, 300_000])
    parser.add_argument("--admit-after", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--evict", nargs="+", default=["lfu", "lru"], help="all but the first: with the first admission only")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--out", type=pathlib.Path, default=root / "build/budgets")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help="draw that results.json again, into --out")
    parser.add_argument("more", nargs="*", help="behind --: other options of launch_shm")
    options = parser.parse_args()
    options.seeds = range(1, options.seeds + 1)
    if options.plot is None and not (options.tools / "launch_shm").exists():
        sys.exit(f"there is no {options.tools}/launch_shm: run tools/run once, or give --tools")
    return options


def main():
    options = parse_arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.plot is not None:
        results = json.loads(options.plot.read_text())
    else:
        results = {"data": options.data, "model": options.model,
                   "free": measure(options, 100_000_000, 1, options.evict[0]),
                   "entries": [measure(options, rows, admit, evict) for evict in options.evict for admit in options.admit_after
                               if evict == options.evict[0] or admit == options.admit_after[0] for rows in options.rows]}
        (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(*table(results), sep="\n")
    try:
        draw(results, options.out / "loss.png")
    except ImportError:
        print("no plot: install matplotlib, then give --plot", file=sys.stderr)


if __name__ == "__main__":
    main()
