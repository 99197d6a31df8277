"""From runs to figures: loss targets, medians over repetitions, the tables for people."""
import collections
import statistics

import plan

TARGET_SHARE = 0.9  # of the way from the first to the lowest loss of the reference


def target_loss(references):
    """The loss that a reference has reached when this share of its way down is done; the median over repetitions."""
    targets = []
    for reference in references:
        losses = [point["loss"] for point in reference["result"]["curve"]]
        targets.append(losses[0] - TARGET_SHARE * (losses[0] - min(losses)))
    return statistics.median(targets) if targets else None


def reached(curve, target):
    """(seconds, step) at which the curve first falls to the target, between two of its points by a straight line."""
    before = None
    for point in curve:
        if point["loss"] <= target:
            if before is None:
                return point["seconds"], point["step"]
            share = (before["loss"] - target) / (before["loss"] - point["loss"])
            return tuple(before[what] + share * (point[what] - before[what]) for what in ("seconds", "step"))
        if point["loss"] == point["loss"]:  # not a NaN: a diverged run
            before = point
    return None


def spread(values):
    """Median, least and most of what is known; of a run that did not reach the target there is None."""
    known = sorted(value for value in values if value is not None)
    if not known or 2 * len(known) < len(values):
        return None  # most of them have none
    # A value that is not known is beyond all others.
    padded = known + [float("inf")] * (len(values) - len(known))
    median = statistics.median_low(padded)
    return {"median": median, "least": known[0], "most": known[-1], "known": len(known), "of": len(values)}


def figures_of(result, target):
    """What is reported of one run."""
    seconds_in = collections.Counter()
    for worker in result["per_worker"]:
        seconds_in.update(worker.get("seconds_in", {}))
    whole = sum(seconds_in.values()) or 1.0
    gradients = result["dropped"] + sum(worker["steps"] for worker in result["per_worker"])
    dropped = result["dropped"] / gradients if gradients else 0.0
    hit = reached(result["curve"], target) if target is not None else None
    return {
        "steps_per_second": result["steps_per_second"],
        "examples_per_second": result["examples_per_second"] * (1 - dropped),  # whose gradients took effect
        "staleness_mean": result["staleness"]["mean"],
        "staleness_p99": result["staleness"]["p99"],
        "staleness_max": result["staleness"]["max"],
        "waiting": seconds_in["step"] / whole,
        "delayed": seconds_in["delay"] / whole,
        "dropped": dropped,
        "retries_per_step": result["retries"] / result["steps"],
        "seconds_to_target": hit[0] if hit else None,
        "steps_to_target": hit[1] if hit else None,
        # What was computed, used or not, up to then.
        "examples_to_target": hit[1] / result["steps"] * result["examples_per_second"] * result["seconds"]
        if hit
        else None,
        "accuracy": result["test_accuracy"],
        "loss": result["test_loss"],
        "seconds": result["seconds"],
        "steps": result["steps"],
    }


RECORDED = ("steps_per_second", "examples_per_second", "staleness_mean", "staleness_p99", "seconds_to_target", "accuracy", "seconds")


class Cells:
    """`cells` maps (model, workers, mode, straggler) to spreads of figures."""

    def panels(self):
        """(model, workers), in order."""
        return sorted(
            {key[:2] for key in self.cells}, key=lambda panel: (list(self.models()).index(panel[0]), panel[1])
        )

    def models(self):
        order = {"digits": 0, "linear": 1}
        return sorted({key[0] for key in self.cells}, key=lambda model: (order.get(model, 2), model))

    def modes(self, *panel):
        names = {key[2] for key in self.cells if key[:2] == panel or not panel}
        return sorted((plan.mode(name) for name in names), key=plan.Mode.order)

    def stragglers(self, *panel):
        order = {"none": 0, "random": 1e9}
        names = {key[3] for key in self.cells if key[:2] == panel or not panel}
        return [
            plan.straggler(name)
            for name in sorted(
                names, key=lambda name: (order.get(name) if name in order else float(name.split("x")[0]), name)
            )
        ]

    def cell(self, panel, mode, straggler):
        return self.cells.get((*panel, mode.name, straggler.name))


class Summary(Cells):
    """All runs of one environment, grouped."""

    def __init__(self, entries):
        self.runs = collections.defaultdict(list)  # of a cell
        references = collections.defaultdict(list)  # of a model
        for entry in entries:
            settings = entry["settings"]
            if settings["reference"]:
                references[settings["model"]].append(entry)
            else:
                self.runs[(settings["model"], settings["workers"], settings["mode"], settings["straggler"])].append(
                    entry
                )
        self.references = dict(references)
        self.targets = {model: target_loss(runs) for model, runs in references.items()}
        self.cells = {key: self._cell(key[0], runs) for key, runs in self.runs.items()}
        self.alone = {model: self._cell(model, runs) for model, runs in references.items()}

    def _cell(self, model, runs):
        figures = [figures_of(run["result"], self.targets.get(model)) for run in runs]
        return {name: spread([one[name] for one in figures]) for name in figures[0]}

    def middle_run(self, panel, mode, straggler):
        """The repetition whose throughput is the median: its curve and histogram are drawn."""
        runs = sorted(
            self.runs[(*panel, mode.name, straggler.name)], key=lambda run: run["result"]["examples_per_second"]
        )
        return runs[(len(runs) - 1) // 2]["result"] if runs else None

    def curve(self, panel, mode, straggler):
        run = self.middle_run(panel, mode, straggler)
        return run and run["curve"]

    def recorded(self):
        """What a file of benches/results has of it: enough for the table, the dots and the curves."""
        rounded = lambda value: value if isinstance(value, int) else float(f"{value:.6g}")  # noqa: E731
        spread_of = lambda one: one and {name: rounded(one[name]) for name in ("median", "least", "most", "of")}  # noqa: E731
        cells = []
        for key, cell in sorted(self.cells.items()):
            panel, mode, straggler = key[:2], plan.mode(key[2]), plan.straggler(key[3])
            curve = [[rounded(point["seconds"]), rounded(point["loss"])] for point in self.curve(panel, mode, straggler)]
            cells.append(
                dict(zip(("model", "workers", "mode", "straggler"), key))
                | {name: spread_of(cell[name]) for name in RECORDED}
                | {"curve": curve}
            )
        return {"targets": {model: rounded(loss) for model, loss in self.targets.items()}, "cells": cells}


class Recorded(Cells):
    """The cells of a file of benches/results. Where it has no curves, or only some of the figures, there are fewer plots."""

    def __init__(self, document):
        self.targets = document["targets"]
        kept = {tuple(cell[name] for name in ("model", "workers", "mode", "straggler")): cell for cell in document["cells"]}
        self.cells = {key: {name: cell.get(name) for name in RECORDED} for key, cell in kept.items()}
        self.curves = {
            key: [{"seconds": seconds, "loss": loss} for seconds, loss in cell["curve"]]
            for key, cell in kept.items()
            if "curve" in cell
        }

    def curve(self, panel, mode, straggler):
        """Test loss against time of the run in the middle, or None."""
        return self.curves.get((*panel, mode.name, straggler.name))


def median(cell, name):
    return cell[name]["median"] if cell[name] else None


def brief(value):
    """A rate for people: 36.1k, 4200, 87."""
    return f"{value / 1000:.1f}k" if value >= 9999.5 else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def seconds_text(value, unknown="–"):
    return (
        unknown
        if value is None
        else f"{value:.3f}"
        if value < 0.1
        else f"{value:.2f}"
        if value < 10
        else f"{value:.1f}"
    )


FIGURES = {
    "steps/s": lambda cell: brief(median(cell, "steps_per_second")),
    "staleness, mean": lambda cell: f"{median(cell, 'staleness_mean'):.2f}",
    "staleness, 99th percentile": lambda cell: f"{median(cell, 'staleness_p99'):.0f}",
    "seconds to the target": lambda cell: seconds_text(median(cell, "seconds_to_target")),
    "accuracy at the end, %": lambda cell: f"{100 * median(cell, 'accuracy'):.1f}",
}


def markdown(summary):
    """One table per model and number of workers: a row for each straggler and mode, a column for each figure."""
    lines = []
    for panel in summary.panels():
        model, workers = panel
        target = summary.targets.get(model)
        heading = f"{plan.model(model).label}, {workers} workers"
        if target is not None:
            alone = summary.alone[model]
            heading += (
                f"; target: test loss {target:.3f}, which one worker alone reaches in "
                f"{seconds_text(median(alone, 'seconds_to_target'))} s"
            )
        lines += [
            heading + ":",
            "",
            "| straggler | mode | " + " | ".join(FIGURES) + " |",
            "|---|---|" + "---:|" * len(FIGURES),
        ]
        for straggler in summary.stragglers(*panel):
            for mode in summary.modes(*panel):
                cell = summary.cell(panel, mode, straggler)
                figures = ["not run yet" if cell is None else text(cell) for text in FIGURES.values()]
                lines.append(f"| {straggler.label} | {mode.label(workers)} | " + " | ".join(figures) + " |")
        lines.append("")
    return "\n".join(lines)
