"""Each mode at its own best learning rate: the sweep of rates, its table and its plot."""
import collections
import statistics

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

import plan
import summary as summaries
from style import GREY, below, panel_title, ranges, style_of_mode

NEAR = 1.5  # a rate works if it takes at most so many times as long as the best one


class Sweep:
    """The runs of a sweep of rates. Repetition 1 swept them, and chose each mode's best; the others measure that one."""

    def __init__(self, entries, target=None):
        references = collections.defaultdict(list)
        for entry in entries:
            if entry["settings"]["reference"]:
                references[entry["settings"]["model"]].append(entry)
        self.targets = {model: target or summaries.target_loss(runs) for model, runs in references.items()}
        self.swept = collections.defaultdict(dict)  # (model, workers, straggler, mode) -> {rate: figures}
        self.repeated = collections.defaultdict(list)  # the same -> figures at the best rate
        self.excess = collections.defaultdict(list)  # R -> how far the staleness of chunks exceeded R - 1, by run
        for entry in sorted(entries, key=lambda entry: entry["repetition"]):
            settings, result = entry["settings"], entry["result"]
            if "rate" not in settings:
                continue
            cell = tuple(settings[key] for key in ("model", "workers", "straggler", "mode"))
            figures = summaries.figures_of(result, self.targets[settings["model"]])
            if entry["repetition"] == 1:
                self.swept[cell][settings["rate"]] = figures
            elif settings["rate"] == self.best_rate(cell):
                self.repeated[cell].append(figures)
            mode = plan.mode(settings["mode"])
            if mode.family == "drop" and settings["model"] != "rows":  # of rows a push counts once for each row of a block
                self.excess[mode.bound].append(max(0, result["staleness"]["max"] - (mode.bound - 1)))

    def best_rate(self, cell):
        """The one with which the target was reached soonest; None: with none of them."""
        known = {rate: one["seconds_to_target"] for rate, one in self.swept[cell].items() if one["seconds_to_target"]}
        return min(known, key=known.get) if known else None

    def rates_near_best(self, cell):
        best = self.swept[cell][self.best_rate(cell)]["seconds_to_target"]
        return [
            rate
            for rate, one in sorted(self.swept[cell].items())
            if one["seconds_to_target"] and one["seconds_to_target"] <= NEAR * best
        ]

    def seconds(self, cell):
        """Spread of the repetitions at the best rate, or of the one run that there is."""
        runs = self.repeated[cell] or [self.swept[cell][self.best_rate(cell)]]
        return summaries.spread([one["seconds_to_target"] for one in runs])

    def panels(self):
        return sorted({cell[:2] for cell in self.swept})

    def stragglers(self, panel):
        names = {cell[2] for cell in self.swept if cell[:2] == panel}
        order = [f"sleep-{one}" for one in plan.SLEEPS]
        return [plan.straggler(name) for name in sorted(names, key=lambda name: (name in order and order.index(name), name))]

    def modes(self, panel):
        names = {cell[3] for cell in self.swept if cell[:2] == panel}
        return sorted((plan.mode(name) for name in names), key=plan.Mode.order)


def best_runs(sweep, runs):
    """Of the runs of a sweep, those at their mode's best rate."""
    for run in runs:
        if run.is_reference or run.rate is None:
            continue
        if run.rate == sweep.best_rate((run.model.name, run.workers, run.straggler.name, run.mode.name)):
            yield run


def markdown(sweep):
    lines = []
    for panel in sweep.panels():
        model, workers = panel
        lines += [
            f"{plan.model(model).label}, {workers} workers; target: test loss {sweep.targets[model]:.3f}:",
            "",
            "| workers | mode | own best rate | seconds to the target | least | most | lowest rate that works "
            "| highest | accuracy at the end, % |",
            "|---|---|" + "---:|" * 7,
        ]
        for straggler in sweep.stragglers(panel):
            for mode in reversed(sweep.modes(panel)):
                cell = (*panel, straggler.name, mode.name)
                if cell not in sweep.swept:
                    continue
                best, figures = sweep.best_rate(cell), ["–"] * 6
                accuracies = [one["accuracy"] for one in sweep.swept[cell].values()]
                if best is not None:
                    near, seconds = sweep.rates_near_best(cell), sweep.seconds(cell)
                    accuracies = [one["accuracy"] for one in sweep.repeated[cell]] or [sweep.swept[cell][best]["accuracy"]]
                    figures = [f"{best:g}", *(["–"] * 3), f"{near[0]:g}", f"{near[-1]:g}"]
                    if seconds is not None:
                        figures[1:4] = [summaries.seconds_text(seconds[key]) for key in ("median", "least", "most")]
                accuracy = statistics.median(accuracies) if best is not None else max(accuracies)
                lines.append(
                    f"| {straggler.label} | {mode.label()} | " + " | ".join(figures) + f" | {100 * accuracy:.1f} |"
                )
        lines.append("")
    for limit, excess in sorted(sweep.excess.items()):
        counts = collections.Counter(excess)
        lines.append(
            f"Age limit {limit}: in {len(excess)} runs the staleness of a chunk exceeded {limit - 1} by at most "
            + ", ".join(f"{more} in {counts[more]}" for more in sorted(counts))
            + "."
        )
    return "\n".join(lines) + "\n"


def _around(rates):
    """The whole range of rates: a line that ends within it says that the target was not reached beyond."""
    return min(rates) / 1.3, max(rates) * 1.3


def draw(sweep, folder):
    """Seconds to the target over the rate; a row per model, a column per straggler. Returns [(stem, title)]."""
    panels = sweep.panels()
    columns = max(len(sweep.stragglers(panel)) for panel in panels)
    figure, grid = plt.subplots(
        len(panels), columns, figsize=(3.1 * columns + 0.7, 2.9 * len(panels) + 0.8), squeeze=False, sharex="row", sharey="row"
    )
    modes = sorted({mode for panel in panels for mode in sweep.modes(panel)}, key=plan.Mode.order, reverse=True)
    for row, panel in zip(grid, panels):
        for axes in row[len(sweep.stragglers(panel)):]:
            axes.set_visible(False)
        for axes, straggler in zip(row, sweep.stragglers(panel)):
            for mode in modes:
                cell = (*panel, straggler.name, mode.name)
                if cell not in sweep.swept:
                    continue
                colour, line, marker = style_of_mode(mode, modes)
                points = [
                    (rate, one["seconds_to_target"] or float("nan")) for rate, one in sorted(sweep.swept[cell].items())
                ]
                axes.plot(*zip(*points), color=colour, linestyle=line, marker=marker, markersize=3.5, linewidth=1.1)
                if (best := sweep.best_rate(cell)) and sweep.repeated[cell] and (seconds := sweep.seconds(cell)):
                    axes.errorbar(
                        best,
                        seconds["median"],
                        yerr=ranges(seconds),
                        color=colour,
                        marker=marker,
                        markersize=8,
                        markerfacecolor="white",
                        elinewidth=0.9,
                        zorder=3,
                    )
            axes.set_xscale("log")
            axes.set_yscale("log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis="x", rotation=60, labelsize=7.5)
            axes.set_xlim(*_around([rate for cell, swept in sweep.swept.items() if cell[:2] == panel for rate in swept]))
            axes.set_xlabel("learning rate")
            axes.set_title(straggler.label, loc="left", fontsize=8.5)
        row[0].set_title(f"{panel_title(panel)}\n{row[0].get_title('left')}", loc="left", fontsize=8.5)
        row[0].set_ylabel("seconds to the target", fontsize=8)
    handles = [
        Line2D([], [], color=style[0], linestyle=style[1], marker=style[2], markersize=5, label=mode.label())
        for mode in modes
        for style in [style_of_mode(mode, modes)]
    ]
    handles.append(
        Line2D([], [], color=GREY, marker="o", markersize=8, markerfacecolor="white", linestyle="none",
               label="best rate: median, least and most of repeated runs")
    )
    below(figure, handles, 4)
    for kind in ("svg", "png"):
        figure.savefig(folder / f"rates.{kind}", **({"metadata": {"Date": None}} if kind == "svg" else {}))
    plt.close(figure)
    return [("rates", "Seconds to the target against the learning rate")]
