"""The page of benches/scaling: a table of each path, one of the laws, and a plot."""

import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import measuring  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402
from scaling_law import law  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "staleness"))
from style import BLUE, GREY, ORANGE, STYLE, below, ranges, thousands  # noqa: E402

KINDS = {"free": "not pinned", "pinned": "each worker on a core of its own"}
COLOURS = {"free": BLUE, "pinned": ORANGE}


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


class Curve:
    """What was found of a path, in rounds: [{"path", "kind", "workers", "rate", "limit"}]."""

    def __init__(self, path, kind, found):
        self.path, self.kind = path, kind
        of = {}
        for one in found:
            of.setdefault(one["workers"], []).append(one)
        self.rates = {count: spread([one["rate"] for one in ones]) for count, ones in sorted(of.items())}
        self.limits = {count: spread([one["limit"] for one in ones]) for count, ones in sorted(of.items())}
        self.of_limit = {
            count: statistics.median(one["rate"] / one["limit"] for one in ones) for count, ones in of.items()
        }
        self.rounds = {count: [one["rate"] for one in ones] for count, ones in sorted(of.items())}
        self.law = law.fit({count: rate["median"] for count, rate in self.rates.items()})
        self.limit_law = law.fit({count: limit["median"] for count, limit in self.limits.items()})


def per_cent(share):
    return f"{100 * share:.2g} %"


def pays(fitted, most):
    if fitted is None:
        return ""
    workers = fitted.pays_up_to()
    if workers is None:
        return f"more than {law.MOST}"
    return f"{workers}" if workers <= most else f"{workers}, foretold"


def share_of(curve, name):
    """A share of the law with its interval."""
    between = law.interval(curve.rounds, lambda fitted: getattr(fitted, name))
    text = per_cent(getattr(curve.law, name))
    return text if between is None else f"{text} ({per_cent(between[0])} to {per_cent(between[1])})"


def foretold_rows(curve):
    """What the law of the smaller half of the numbers of workers foretells of the larger half, beside what was measured."""
    counts = sorted(curve.rounds)
    known = counts[: -(-len(counts) // 2)]
    if len(known) < 3:
        return
    rounds = {count: curve.rounds[count] for count in known}
    fitted = law.fit({count: statistics.median(rates) for count, rates in rounds.items()})
    for count in counts[len(known):]:
        between = law.interval(rounds, lambda one, count=count: one.rate(count))
        measured = curve.rates[count]["median"]
        yield [
            curve.path.name, KINDS[curve.kind], str(known[-1]), str(count), shown(fitted.rate(count)),
            "" if between is None else f"{shown(between[0])} to {shown(between[1])}", shown(measured),
            f"{100 * (measured / fitted.rate(count) - 1):+.0f} %",
        ]


def law_row(curve):
    most, fitted = max(curve.rates), curve.law
    told = [share_of(curve, "contention"), share_of(curve, "coherence") if len(curve.rates) > 2 else ""]
    words = [curve.path.name, KINDS[curve.kind], *told, per_cent(fitted.error)]
    return [*words, pays(fitted, most), pays(curve.limit_law, most)]


def table(head, words, rows):
    """Markdown; the first `words` columns are words, the others numbers."""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace(" --- ", "---").replace(" ---: ", "---:")


def text_of(environment, warnings, curves):
    parts = ["# Scaling", "\n".join(f"- {key}: {value}" for key, value in environment.items())]
    parts += [f"**{line}**" for line in warnings]
    if any(curve.law for curve in curves):
        parts.append(
            "## Where a path stops scaling\n\nrate(N) = rate(1) N / (1 + contention (N - 1) + coherence N (N - 1)), fitted to "
            "the medians; in brackets the interval\nthat holds 90 % of the laws of resampled rounds. A worker pays that adds\na tenth of one worker's rate. What more workers than were measured would do "
            "is foretold by the law."
        )
        head = ["path", "workers are", "contention", "coherence", "greatest error", "pay up to", "the limit's"]
        rows = [law_row(curve) for curve in curves if curve.law]
        parts.append(table(head, 2, rows))
        foretold = [row for curve in curves if curve.law for row in foretold_rows(curve)]
        if foretold:
            parts.append("## What the law foretells\n\nIt is fitted to the smaller half of the numbers of workers.")
            head = ["path", "workers are", "fitted up to", "workers", "foretold", "interval", "measured", "difference"]
            parts.append(table(head, 2, foretold))
        if any(len(curve.rates) == 2 for curve in curves):
            parts.append("Two numbers of workers tell nothing of coherence: it is taken for 0.")
    for curve in curves:
        one = curve.rates[min(curve.rates)]["median"] / min(curve.rates)
        parts.append(f"## {curve.path.name}, {KINDS[curve.kind]}\n\nThe limit: {curve.path.limit}.")
        head = ["workers", curve.path.unit, "least to most", "of one worker", "limit", "of limit"]
        rows = []
        for count, rate in curve.rates.items():
            between = f"{shown(rate['least'])} to {shown(rate['most'])}"
            words = [str(count), shown(rate["median"]), between, f"{rate['median'] / one:.2f}"]
            words += [shown(curve.limits[count]["median"]), f"{curve.of_limit[count]:.2f}"]
            rows.append(words)
        parts.append(table(head, 0, rows))
    return "\n\n".join(parts) + "\n"


def shown(rate):
    return measuring.shown(rate, "")


def draw_panel(axes, path, curves):
    most = max(max(curve.rates) for curve in curves)
    steps = [1 + (most - 1) * at / 200 for at in range(201)]
    for curve in curves:
        colour = COLOURS[curve.kind]
        whiskers = [sum(ends, []) for ends in zip(*(ranges(rate) for rate in curve.rates.values()))]
        medians = [rate["median"] for rate in curve.rates.values()]
        axes.errorbar(list(curve.rates), medians, yerr=whiskers, fmt="o", color=colour, markersize=4, elinewidth=0.8)
        if curve.law:
            axes.plot(steps, [curve.law.rate(count) for count in steps], color=colour, linewidth=1.3)
        axes.plot(list(curve.limits), [limit["median"] for limit in curve.limits.values()], color=GREY,
                  linestyle="--" if curve.kind == "free" else ":", linewidth=1.2, marker=".", markersize=4)
    axes.set_title(path.name)
    axes.set_ylabel(path.unit)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))


def draw(curves, path):
    paths = list(dict.fromkeys(curve.path for curve in curves))
    columns = min(5, len(paths))
    rows = -(-len(paths) // columns)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(rows, columns, figsize=(2.6 * columns, 2.3 * rows + 0.5), squeeze=False)
        for axes, one in zip(grid.flat, paths):
            draw_panel(axes, one, [curve for curve in curves if curve.path == one])
        for axes in grid.flat[len(paths):]:
            axes.set_visible(False)
        for axes in grid.flat[:len(paths)]:
            axes.set_xlabel("workers")
        kinds = [kind for kind in KINDS if any(curve.kind == kind for curve in curves)]
        handles = [Line2D([], [], color=COLOURS[kind], marker="o", markersize=4, label=f"measured, and the law: {KINDS[kind]}")
                   for kind in kinds]
        handles.append(Line2D([], [], color=GREY, linestyle="--", label="the machine's limit"))
        below(figure, handles, len(handles))
        figure.savefig(path)
        plt.close(figure)
