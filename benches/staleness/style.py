"""What the plots have in common. Colours are Okabe's and Ito's, which the colour-blind can tell apart."""
import matplotlib
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

import plan

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILLION, PINK, GREY = "#D55E00", "#CC79A7", "#777777"
STRAGGLER_COLOURS = {"none": BLUE, "2x": ORANGE, "10x": VERMILLION, "random": GREEN}
MARKERS = {"async": "o", "clip": "P", "scale": "X", "drop": "v", "ssp": "^", "sync": "s", "backup": "D"}
FAMILY_LABELS = {
    "async": "async",
    "clip": "async, clip-norm",
    "scale": "async, lr-staleness",
    "drop": "async, age limit",
    "ssp": "ssp (number: S)",
    "sync": "sync",
    "backup": "sync with backup worker",
}
STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.12,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "svg.hashsalt": "staleness",
    "figure.facecolor": "white",
}


def colour_of_straggler(straggler, stragglers):
    spare = [SKY, PINK, GREY]
    others = [one.name for one in stragglers if one.name not in STRAGGLER_COLOURS]
    return STRAGGLER_COLOURS.get(straggler.name) or spare[others.index(straggler.name) % len(spare)]


def style_of_mode(mode, modes):
    """Colour, line style and marker: the ssp modes are shades, darker for larger S."""
    if mode.family == "ssp":
        bounds = [one.bound for one in modes if one.family == "ssp"]
        share = bounds.index(mode.bound) / max(1, len(bounds) - 1)
        return matplotlib.colormaps["YlGn"](0.35 + 0.6 * share), "-", "^"
    if mode.family == "drop":
        bounds = [one.bound for one in modes if one.family == "drop"]
        return SKY, ["-", ":", "-."][sorted(bounds).index(mode.bound) % 3], "v"
    return {
        "async": (BLUE, "-", "o"),
        "clip": (GREEN, "-", "P"),
        "scale": (ORANGE, "-", "X"),
        "sync": (VERMILLION, "--", "s"),
        "backup": (PINK, "--", "D"),
    }[mode.family]


def thousands(value, _):
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def plain_log(axis):
    """A log axis whose few labels read 2k, 5k, 10k."""
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(FuncFormatter(thousands))
    axis.set_minor_formatter(NullFormatter())


def panel_title(panel):
    model, workers = panel
    return f"{plan.model(model).label}\n{workers} workers"


def ranges(spread):
    return [[max(0.0, spread["median"] - spread["least"])], [max(0.0, spread["most"] - spread["median"])]]


def below(figure, handles, columns):
    """A legend under everything, and room for it."""
    rows = -(-len(handles) // columns)
    height = figure.get_size_inches()[1]
    figure.tight_layout(rect=(0, (0.22 * rows + 0.1) / height, 1, 1))
    figure.legend(handles=handles, loc="lower center", ncol=columns, bbox_to_anchor=(0.5, 0))
