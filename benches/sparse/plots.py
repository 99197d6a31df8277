"""The plots of benches/hogwild: examples per second by workers, and the loss by time and by epoch.

    plots.py FOLDER     draws what results.json in there says
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "staleness"))
from style import BLUE, GREEN, GREY, ORANGE, STYLE, VERMILLION, below, ranges, thousands  # noqa: E402

# Colour, marker, line: told apart without colours, too.
SCHEMES = {
    "plain": (GREY, "D", ":"),
    "exact": (BLUE, "o", "-"),
    "racy": (VERMILLION, "s", "--"),
    "striped": (GREEN, "^", "-."),
    "lock": (ORANGE, "v", (0, (1, 1))),
}


def style_of(scheme):
    colour, marker, line = SCHEMES[scheme]
    return {"color": colour, "marker": marker, "linestyle": line, "markersize": 5, "linewidth": 1.5}


def by_scheme(cells):
    for scheme in SCHEMES:
        found = [cell for cell in cells if cell["scheme"] == scheme]
        if found:
            yield scheme, found


def throughput(cells):
    combines = sorted({cell["combine"] for cell in cells})
    figure, grid = plt.subplots(
        1, len(combines), figsize=(max(4.4, 3.1 * len(combines)), 3.7), squeeze=False, sharey=True
    )
    most = max(cell["workers"] for cell in cells)
    for axes, combine in zip(grid[0], combines):
        for scheme, found in by_scheme([cell for cell in cells if cell["combine"] == combine]):
            rates = [cell["examples_per_second"] for cell in found]
            if scheme == "plain":
                axes.axhline(rates[0]["median"], color=GREY, linestyle=":", linewidth=1.5, label=scheme)
                continue
            whiskers = [sum(ends, []) for ends in zip(*(ranges(rate) for rate in rates))]
            axes.errorbar(
                [cell["workers"] for cell in found],
                [rate["median"] for rate in rates],
                yerr=whiskers,
                elinewidth=0.8,
                label=scheme,
                **style_of(scheme),
            )
        axes.set_xticks(range(1, most + 1))
        axes.set_xlim(0.7, most + 0.3)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(thousands))
        axes.set_xlabel("workers")
        axes.set_title("each example pushed" if combine == 1 else f"{combine} examples pushed together", loc="left")
    grid[0][0].set_ylabel("examples per second")
    below(figure, grid[0][0].get_legend_handles_labels()[0], 5)
    return figure


def loss(cells):
    """The curves of the most workers, and of plain, with the least combining."""
    combine, most = min(cell["combine"] for cell in cells), max(cell["workers"] for cell in cells)
    shown = [c for c in cells if c["combine"] == combine and (c["workers"] == most or c["scheme"] == "plain")]
    if not any(cell["curve"] for cell in shown):
        return None
    figure, (by_time, by_epoch) = plt.subplots(1, 2, figsize=(8.4, 3.7), sharey=True)
    for scheme, found in by_scheme(shown):
        curve = found[0]["curve"]
        name = scheme if scheme == "plain" else f"{scheme}, {most} workers"
        for axes, along in ((by_time, "seconds"), (by_epoch, "epoch")):
            axes.plot(
                [point[along] for point in curve], [point["loss"] for point in curve], label=name, **style_of(scheme)
            )
    by_time.set_xlabel("seconds of training")
    by_epoch.set_xlabel("epochs")
    by_time.set_ylabel("loss on the data")
    below(figure, by_time.get_legend_handles_labels()[0], 5)
    return figure


def draw(cells, folder):
    """Writes throughput and, where there are losses, loss, as PNG."""
    with plt.rc_context(STYLE):
        for name, figure in (("throughput", throughput(cells)), ("loss", loss(cells))):
            if figure is None:
                continue
            figure.savefig(folder / f"{name}.png", dpi=150)
            plt.close(figure)


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1])
    draw(json.loads((where / "results.json").read_text())["cells"], where)
