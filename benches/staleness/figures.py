"""The plots, by matplotlib, as SVG and PNG."""
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import PIL.Image  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

import plan  # noqa: E402
import summary as summaries  # noqa: E402
from style import (  # noqa: E402
    FAMILY_LABELS,
    GREY,
    MARKERS,
    STYLE,
    below,
    colour_of_straggler,
    panel_title,
    plain_log,
    ranges,
    style_of_mode,
)

# Of histograms: staleness from .. to, both included.
BUCKETS = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 7), (8, 15), (16, 31), (32, 63), (64, None)]


def throughput(summary, panels):
    """Examples per second against staleness; a row per model, mean and 99th percentile."""
    stragglers = summary.stragglers()
    figure, grid = plt.subplots(len(panels), 2, figsize=(10, 3.5 * len(panels) + 0.7), squeeze=False, sharey="row")
    for row, panel in zip(grid, panels):
        modes = summary.modes(*panel)
        for axes, what, name in zip(row, ("staleness_mean", "staleness_p99"), ("mean", "99th percentile")):
            for straggler in summary.stragglers(*panel):
                colour = colour_of_straggler(straggler, stragglers)
                line = []
                for mode in modes:
                    cell = summary.cell(panel, mode, straggler)
                    if cell is None:
                        continue
                    x, y = cell[what], cell["examples_per_second"]
                    axes.errorbar(
                        x["median"],
                        y["median"],
                        xerr=ranges(x),
                        yerr=ranges(y),
                        color=colour,
                        elinewidth=0.8,
                        marker=MARKERS[mode.family],
                        markersize=7 if mode.family != "ssp" else 8,
                        markeredgecolor="white",
                        markeredgewidth=0.7,
                        linestyle="none",
                        zorder=3,
                    )
                    if mode.family == "ssp":
                        axes.annotate(
                            str(mode.bound),
                            (x["median"], y["median"]),
                            xytext=(5, -9),
                            zorder=4,
                            textcoords="offset points",
                            fontsize=7.5,
                            color=colour,
                        )
                    if mode.family in ("ssp", "async"):
                        line.append((x["median"], y["median"]))
                axes.plot(*zip(*line), color=colour, linewidth=1.1, alpha=0.55, zorder=2) if line else None
            axes.set_yscale("log")
            axes.margins(y=0.1)
            plain_log(axes.yaxis)
            if what == "staleness_p99":
                axes.set_xscale("symlog", linthresh=1, linscale=0.5)
                most = axes.get_xlim()[1]
                axes.set_xticks([tick for tick in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= most])
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.set_xlim(left=-0.08 if what == "staleness_mean" else -0.15)
            axes.set_xlabel(f"staleness in updates, {name}")
        row[0].set_ylabel("examples per second")
        row[0].set_title(panel_title(panel), loc="left")
    handles = [
        Line2D([], [], color=colour_of_straggler(one, stragglers), linewidth=3, label=one.label) for one in stragglers
    ]
    families = list(dict.fromkeys(mode.family for mode in sorted(summary.modes(), key=lambda m: -m.order()[0])))
    handles += [
        Line2D([], [], color=GREY, marker=MARKERS[one], markersize=7, linestyle="none", label=FAMILY_LABELS[one])
        for one in families
    ]
    below(figure, handles, 4)
    return figure


def loss(summary, panel):
    """Test loss against time; a column per straggler, a line per mode."""
    modes, stragglers = summary.modes(*panel), summary.stragglers(*panel)
    figure, grid = plt.subplots(
        1, len(stragglers), figsize=(3.3 * len(stragglers) + 0.6, 3.9), squeeze=False, sharey=True, sharex=True
    )
    target = summary.targets.get(panel[0])
    for axes, straggler in zip(grid[0], stragglers):
        for mode in modes:
            if curve := summary.curve(panel, mode, straggler):
                draw_curve(axes, curve, mode, modes)
        finish_curves(axes, target)
        axes.set_title(straggler.label, loc="left")
    grid[0][0].set_ylabel("test loss")
    figure.suptitle(panel_title(panel).replace("\n", ", "), x=0.01, ha="left", fontsize=10)
    below(figure, handles_of_curves(modes, panel[1], target), 4)
    return figure


def straggler(summary, panel, name):
    """Of one straggler: test loss against time, where there are curves, and seconds to the target, by mode."""
    modes, one, target = summary.modes(*panel), plan.straggler(name), summary.targets[panel[0]]
    curves = [(mode, curve) for mode in modes if (curve := summary.curve(panel, mode, one))]
    figure, grid = plt.subplots(1, 1 + bool(curves), squeeze=False, figsize=(4.3 * (1 + bool(curves)) + 0.7, 3.6))
    if curves:
        for mode, curve in curves:
            draw_curve(grid[0][0], curve, mode, modes)
        finish_curves(grid[0][0], target)
        grid[0][0].set_ylabel("test loss")
    axes, left = grid[0][-1], least_seconds(summary, panel, modes, [one])
    for place, mode in enumerate(modes):
        if cell := summary.cell(panel, mode, one):
            draw_dot(axes, place, cell, style_of_mode(mode, modes)[0], left)
    finish_dots(axes, summary, panel, modes, left)
    figure.suptitle(f"{panel_title(panel)}, {one.label}".replace("\n", ", "), x=0.01, ha="left", fontsize=10)
    if curves:
        below(figure, handles_of_curves(modes, panel[1], target), 3)
    else:
        figure.tight_layout()
    return figure


def draw_curve(axes, curve, mode, modes):
    colour, line, _ = style_of_mode(mode, modes)
    # A log axis has no 0, and what is nearer to it than this is the start of the programs.
    points = [(point["seconds"], point["loss"]) for point in curve if point["seconds"] > 0.002]
    if points:
        axes.plot(*zip(*points), color=colour, linestyle=line, linewidth=1.6, label=mode.label())


def finish_curves(axes, target):
    if target is not None:
        axes.axhline(target, color=GREY, linewidth=1, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds of training")


def handles_of_curves(modes, workers, target):
    handles = [
        Line2D([], [], color=colour, linestyle=line, linewidth=2, label=mode.label(workers))
        for mode in modes
        for colour, line, _ in [style_of_mode(mode, modes)]
    ]
    if target is not None:
        handles.append(Line2D([], [], color=GREY, linewidth=1, linestyle=":", label=f"target {target:.3f}"))
    return handles


def shares(histogram):
    total = sum(count for _, count in histogram) or 1
    return [
        100 * sum(count for least, count in histogram if low <= least and (high is None or least <= high)) / total
        for low, high in BUCKETS
    ]


def staleness(summary, panel):
    """Histograms of staleness; a row per mode but sync, whose staleness is 0, a column per straggler."""
    modes = [mode for mode in summary.modes(*panel) if mode.family in ("async", "ssp")]
    stragglers = summary.stragglers(*panel)
    if not modes:
        return None
    figure, grid = plt.subplots(
        len(modes),
        len(stragglers),
        squeeze=False,
        sharex=True,
        sharey=True,
        figsize=(2.9 * len(stragglers) + 0.9, 1.25 * len(modes) + 1.2),
    )
    labels = [f"{low}" if low == high else f"{low}+" if high is None else f"{low}–{high}" for low, high in BUCKETS]
    for row, mode in zip(grid, modes):
        for axes, straggler in zip(row, stragglers):
            colour = style_of_mode(mode, modes)[0]
            if summary.cell(panel, mode, straggler) is not None:
                result = summary.middle_run(panel, mode, straggler)
                axes.bar(
                    range(len(BUCKETS)), shares(result["staleness"].get("histogram", [])), width=0.86, color=colour
                )
                axes.text(
                    0.98,
                    0.92,
                    f"mean {result['staleness']['mean']:.2f}\np99 {result['staleness']['p99']}",
                    transform=axes.transAxes,
                    ha="right",
                    va="top",
                    fontsize=8,
                    color="#333333",
                )
            axes.set_xticks(range(len(BUCKETS)), labels, rotation=60, fontsize=7.5)
            axes.grid(axis="x", visible=False)
            axes.set_ylim(0, 105)
            axes.set_yticks([0, 50, 100])
        row[0].set_ylabel(f"{mode.label()}\nper cent")
    for axes, straggler in zip(grid[0], stragglers):
        axes.set_title(straggler.label, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("staleness in updates")
    figure.suptitle(panel_title(panel).replace("\n", ", ") + ": share of pushed chunks", x=0.01, ha="left", fontsize=10)
    figure.tight_layout()
    return figure


def target(summary, panels):
    """Seconds to the loss target; a panel per model, dots per mode and straggler."""
    stragglers = summary.stragglers()
    tallest = max(len(summary.modes(*panel)) for panel in panels)
    figure, grid = plt.subplots(
        1, len(panels), squeeze=False, figsize=(4.9 * len(panels) + 0.6, 0.19 * tallest * (len(stragglers) + 1) + 1.6)
    )
    for axes, panel in zip(grid[0], panels):
        modes = summary.modes(*panel)
        left = least_seconds(summary, panel, modes, stragglers)
        for i, mode in enumerate(modes):
            axes.axhspan(i - 0.45, i + 0.45, color="#f6f6f6", zorder=0)
            for j, straggler in enumerate(stragglers):
                if cell := summary.cell(panel, mode, straggler):
                    place = i + (j - (len(stragglers) - 1) / 2) * 0.8 / len(stragglers)
                    draw_dot(axes, place, cell, colour_of_straggler(straggler, stragglers), left)
        finish_dots(axes, summary, panel, modes, left)
        axes.set_title(panel_title(panel), loc="left")
    below(
        figure,
        [
            Line2D([], [], color=colour_of_straggler(one, stragglers), marker="o", linestyle="none", label=one.label)
            for one in stragglers
        ],
        4,
    )
    return figure


def least_seconds(summary, panel, modes, stragglers):
    """Where the axis of draw_dot begins: a dot's place, unlike a bar's length, does not depend on it."""
    cells = [summary.cell(panel, mode, one) for mode in modes for one in stragglers]
    return min((cell["seconds_to_target"]["least"] for cell in cells if cell and cell["seconds_to_target"]), default=0.01) / 1.3


def draw_dot(axes, place, cell, colour, left):
    """The median, with a line from the least to the most; or that the target was not reached."""
    spread = cell["seconds_to_target"]
    if spread is None:
        ran = summaries.seconds_text(cell["seconds"]["median"])
        axes.text(left * 1.05, place, f"not within {ran} s", va="center", fontsize=6.5, color=colour)
        return
    axes.errorbar(
        spread["median"],
        place,
        xerr=ranges(spread) if spread["of"] > 1 else None,
        color=colour,
        marker="o",
        markersize=5,
        elinewidth=1.2,
        linestyle="none",
        zorder=3,
    )
    text = summaries.seconds_text(spread["median"])
    axes.annotate(text, (spread["most"], place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=6.5, color="#333333")


def finish_dots(axes, summary, panel, modes, left):
    axes.set_yticks(range(len(modes)), [mode.label() for mode in modes])
    axes.set_ylim(len(modes) - 0.45, -0.55)
    axes.set_xscale("log")
    axes.set_xlim(left, axes.get_xlim()[1] * 1.2)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"seconds to a test loss of {summary.targets.get(panel[0], float('nan')):.3f}")


def safe(name):
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")


def draw(summary, folder):
    """Writes every plot as SVG and PNG. Returns (file stem, title) of each, in the order of the page."""
    plots = []
    with plt.rc_context(STYLE):
        jobs = []
        for workers in sorted({panel[1] for panel in summary.panels()}):
            row = [panel for panel in summary.panels() if panel[1] == workers]
            jobs += [
                (
                    f"throughput-{workers}-workers",
                    "Throughput against staleness",
                    lambda row=row: throughput(summary, row),
                ),
                (f"target-{workers}-workers", "Seconds to the loss target", lambda row=row: target(summary, row)),
            ]
        for panel in summary.panels():
            where = f"{safe(panel[0])}-{panel[1]}-workers"
            jobs += [
                (f"loss-{where}", "Loss against time", lambda panel=panel: loss(summary, panel)),
                (f"staleness-{where}", "Distribution of staleness", lambda panel=panel: staleness(summary, panel)),
            ]
        for stem, title, make in jobs:
            if save(make(), folder, stem, ("svg", "png")):
                plots.append((stem, title))
    return plots


def save(figure, folder, stem, kinds):
    """Whether there is a figure at all."""
    if figure is None:
        return False
    for kind in kinds:
        figure.savefig(folder / f"{stem}.{kind}", **({"metadata": {"Date": None}} if kind == "svg" else {}))
    plt.close(figure)
    return True


def draw_recorded(recorded, folder):
    """The plots that the pages show, as PNG, of a file of benches/results; of those whose figures it has."""
    with plt.rc_context(STYLE):
        for workers in sorted({panel[1] for panel in recorded.panels()}):
            row = [panel for panel in recorded.panels() if panel[1] == workers]
            if all(cell["examples_per_second"] for cell in recorded.cells.values()):
                save(throughput(recorded, row), folder, f"throughput-{workers}-workers", ("png",))
            save(target(recorded, row), folder, f"target-{workers}-workers", ("png",))
            save(straggler(recorded, row[0], "10x"), folder, f"straggler-{workers}-workers", ("png",))
            for stem in ("throughput", "target", "straggler"):
                reduce(folder / f"{stem}-{workers}-workers.png")


def reduce(path):
    """With 64 colours, which show all that is drawn, a PNG takes a third of the bytes."""
    if path.exists():
        with PIL.Image.open(path) as image:
            image.convert("RGB").quantize(64).save(path, optimize=True)
