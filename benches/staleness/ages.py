"""The age of a gradient by its step against that of each chunk that it meets, measured by benches/ages.cpp."""
import collections
import json

import matplotlib.pyplot as plt

import measuring

WORKERS, CHUNKS = (2, 4, 8, 16), (1, 16, 64)
MOST = 3  # by which the oldest chunk is older, and more


class Ages:
    """Of one setting: how often each {age of the step, age of the youngest chunk, age of the oldest chunk} was seen."""

    def __init__(self, result):
        self.workers, self.chunks = result["workers"], result["chunks"]
        self.counts = [((step, youngest, oldest), count) for step, youngest, oldest, count in result["ages"]]
        self.pushes = sum(count for _, count in self.counts)

    def share(self, fact):
        return sum(count for ages, count in self.counts if fact(*ages)) / self.pushes


def measure(program, seconds, sleep_us=4000, slow=10):
    """One setting after the other: they would disturb each other. Returns what the program has printed, as objects."""
    results = []
    for workers in WORKERS:
        for chunks in CHUNKS:
            words = ["--workers", workers, "--chunks", chunks, "--seconds", seconds, "--sleep-us", sleep_us, "--slow", slow]
            out = measuring.run([program, *map(str, words)], 60 + 10 * seconds)
            results.append(json.loads(out))
    return results


def markdown(found):
    lines = [
        "| workers | chunks of 32 KiB | pushes | pushes whose chunks differ in age, % | oldest chunk as old as the step, % "
        "| older by 1, % | by 2, % | by 3 or more, % | younger, % |",
        "|" + "---:|" * 9,
    ]
    for one in found:
        figures = [one.share(lambda step, youngest, oldest: youngest != oldest)]
        figures += [one.share(lambda step, _, oldest, by=by: oldest - step == by) for by in range(MOST)]
        figures.append(one.share(lambda step, _, oldest: oldest - step >= MOST))
        figures.append(one.share(lambda step, _, oldest: oldest < step))
        lines.append(
            f"| {one.workers} | {one.chunks} | {one.pushes} | " + " | ".join(f"{100 * share:.2f}" for share in figures) + " |"
        )
    return "\n".join(lines) + "\n"


def draw(found, folder, most=24):
    """Joint histograms: the age of the step against that of its oldest chunk; a row per size, a column per workers."""
    rows, columns = sorted({one.chunks for one in found}), sorted({one.workers for one in found})
    figure, grid = plt.subplots(
        len(rows), len(columns), figsize=(2.1 * len(columns), 2.1 * len(rows)), squeeze=False, sharex=True, sharey=True
    )
    for one in found:
        axes = grid[rows.index(one.chunks)][columns.index(one.workers)]
        counts = collections.Counter()
        for (step, _, oldest), count in one.counts:
            counts[min(step, most), min(oldest, most)] += count
        largest = max(counts.values())
        axes.plot([0, most], [0, most], color="#bbbbbb", linewidth=0.8, zorder=1)
        axes.scatter(
            *zip(*counts), s=[2 + 70 * (count / largest) ** 0.5 for count in counts.values()], color="#0072B2", alpha=0.6,
            linewidth=0, zorder=2,
        )
        axes.set_title(f"{one.workers} workers, {one.chunks} chunk{'s' if one.chunks > 1 else ''}", loc="left", fontsize=8.5)
    for axes in grid[-1]:
        axes.set_xlabel(f"age of the step (≥ {most} at the edge)", fontsize=8)
    for row in grid:
        row[0].set_ylabel("age of its oldest chunk", fontsize=8)
    figure.tight_layout()
    for kind in ("svg", "png"):
        figure.savefig(folder / f"ages.{kind}", **({"metadata": {"Date": None}} if kind == "svg" else {}))
    plt.close(figure)
