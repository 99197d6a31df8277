"""What rounds of benches/hogwild come to: medians, ratios within a round, and the tables of them."""

import statistics


def key_of(run):
    return run["scheme"], run["workers"], run["combine"]


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratios(rounds, run_key, base_key):
    """examples/s of one configuration over another's in the same round."""
    found = []
    for runs in rounds:
        rates = {key_of(run): run["examples_per_second"] for run in runs}
        if run_key in rates and base_key in rates:
            found.append(rates[run_key] / rates[base_key])
    return found


def spread(values):
    return {"median": median(values), "least": min(values), "most": max(values)} if values else None


def curve_of(runs):
    """The median over the rounds at each epoch."""
    curves = [run["curve"] for run in runs if "curve" in run]
    points = []
    for at in zip(*curves):
        points.append({name: median([point[name] for point in at]) for name in at[0]})
    return points


def summarise(rounds):
    """A cell for each configuration, in the order of schemes, combined examples and workers."""
    order = {"plain": 0, "exact": 1, "racy": 2, "striped": 3, "lock": 4}
    keys = sorted({key_of(run) for runs in rounds for run in runs}, key=lambda k: (k[2], order[k[0]], k[1]))
    least_combine = min(key[2] for key in keys)
    cells = []
    for key in keys:
        runs = [run for all_runs in rounds for run in all_runs if key_of(run) == key]
        scheme, workers, combine = key
        cell = {"scheme": scheme, "workers": workers, "combine": combine}
        cell["examples_per_second"] = spread([run["examples_per_second"] for run in runs])
        cell["of_one_worker"] = spread(ratios(rounds, key, (scheme, 1, combine)))
        cell["of_plain"] = spread(ratios(rounds, key, ("plain", 1, combine)))
        cell["of_uncombined"] = spread(ratios(rounds, key, (scheme, workers, least_combine)))
        cell["of_racy"] = spread(ratios(rounds, key, ("racy", workers, combine)))
        cell["row_updates"] = sum(run["row_updates"] for run in runs)
        cell["lost_row_updates"] = sum(run["lost_row_updates"] for run in runs)
        cell["lost_per_million"] = 1e6 * cell["lost_row_updates"] / max(1, cell["row_updates"])
        cell["staleness"] = None
        if all("staleness" in run for run in runs):
            cell["staleness"] = {
                name: median([run["staleness"][name] for run in runs]) for name in ("mean", "p99", "max")
            }
        cell["curve"] = curve_of(runs)
        cells.append(cell)
    return cells


def brief(number):
    """Three digits, and k or M."""
    if number is None:
        return ""
    unit, size = next(((u, s) for u, s in (("M", 1e6), ("k", 1e3)) if abs(number) >= s), ("", 1))
    return f"{number / size:.3g}{unit}"


def ratio(value, is_itself=False):
    return "" if value is None or is_itself else f"{value['median']:.2f}"


def table(cells, has_model):
    several = len({cell["combine"] for cell in cells}) > 1
    columns = ["scheme", *(["combined"] if several else []), "workers", "examples/s", "of one worker", "of plain"]
    columns += ["of racy", *(["of uncombined"] if several else [])]
    columns += ["lost per million", "staleness, mean", "staleness, 99th percentile"]
    last = cells[0]["curve"][-1]["epoch"] if cells[0]["curve"] else 0
    columns += [f"loss after {last} epochs", "seconds for them"] if last else []
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    for cell in cells:
        row = [cell["scheme"], *([cell["combine"]] if several else []), cell["workers"]]
        row += [brief(cell["examples_per_second"]["median"]), ratio(cell["of_one_worker"], cell["workers"] == 1)]
        row += [ratio(cell["of_plain"], cell["scheme"] == "plain"), ratio(cell["of_racy"], cell["scheme"] != "exact")]
        if several:
            row.append(ratio(cell["of_uncombined"], cell["of_uncombined"] and cell["of_uncombined"]["most"] == 1))
        row += [f"{cell['lost_per_million']:.3g}"]
        staleness = cell["staleness"] or {"mean": None}
        row += ["", ""] if staleness["mean"] is None else [f"{staleness['mean']:.2f}", f"{staleness['p99']:g}"]
        if last:
            row += [f"{cell['curve'][-1]['loss']:.4f}", f"{cell['curve'][-1]['seconds']:.3g}"]
        lines.append("| " + " | ".join(str(entry) for entry in row) + " |")
    return "\n".join(lines)


def loss_of(cells):
    """What exact workers end with, the worst of them."""
    return max(cell["curve"][-1]["loss"] for cell in cells if cell["scheme"] == "exact")


def fastest(cells, loss):
    """The exact workers that have that loss first, and their seconds."""
    reached = []
    for cell in (cell for cell in cells if cell["scheme"] == "exact"):
        seconds = next((point["seconds"] for point in cell["curve"] if point["loss"] <= loss), None)
        if seconds is not None:
            reached.append((seconds, cell))
    return min(reached, key=lambda one: one[0])


def rivals_table(cells, rivals):
    loss = loss_of(cells)
    ours, cell = fastest(cells, loss)
    workers = f"{cell['workers']} exact worker{'s' if cell['workers'] > 1 else ''}"
    lines = [
        "",
        f"Until the mean loss is {loss:.4f}, for which {workers} with {cell['combine']} examples a push take {ours:.3g} s:",
        "",
        "| learner | passes | examples/s | loss | seconds | times as long |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for rival, runs in rivals.items():
        curves = [run["curve"] for run in runs]
        passes = round(median([len(curve) for curve in curves]))
        seconds = median([curve[-1]["seconds"] for curve in curves])
        rate = median([run["examples"] * len(run["curve"]) / run["curve"][-1]["seconds"] for run in runs])
        reached = median([curve[-1]["loss"] for curve in curves])
        cells_of = [f"{rival} {runs[0]['version']}", passes, brief(rate), f"{reached:.4f}", f"{seconds:.3g}"]
        cells_of.append(f"{seconds / ours:.1f}" if reached <= loss else "not reached")
        lines.append("| " + " | ".join(str(entry) for entry in cells_of) + " |")
    return lines


def report(environment, warnings, data, options, cells, rivals):
    what = f"rows of {options.width} floats" if options.model == "rows" else options.model
    lines = [f"- {key}: {value}" for key, value in environment.items()]
    lines += [f"- **{line}**" for line in warnings]
    lines += [
        "",
        f"{what}, {data['source']}: {data['examples']:,} examples, {data['features']:,} features, "
        f"{data['nonzeros'] / max(1, data['examples']):.1f} a row; "
        + ("" if options.model == "rows" else f"learning rate {options.lr:g}, ")
        + f"batch {options.batch}",
        "",
        table(cells, options.model != "rows"),
    ]
    if rivals:
        lines += rivals_table(cells, rivals)
    return "\n".join(lines) + "\n"
