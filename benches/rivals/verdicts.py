"""Compares what was measured with the targets, and prints the table."""

import collections
import statistics

from measuring import shown


def values_of(samples, key, counter):
    return [figure.get(counter) if figure else None for figure in samples.get(key, [])]


def median_of(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


Judged = collections.namedtuple("Judged", "ours rival rival_key ratio least greatest met")


def judge(target, samples):
    """The target's row; None where its own figure is not there, or of a comparison the rival's."""
    ours = values_of(samples, target.ours, target.counter)
    if median_of(ours) is None:
        return None
    candidates = []
    if not target.rivals:
        candidates.append((None, [value for value in ours if value is not None]))
    for key in target.rivals:
        rival = values_of(samples, key, target.rival_counter or target.counter)
        pairs = [(own, other) for own, other in zip(ours, rival) if own and other]
        if pairs:
            candidates.append((key, [other / own if target.faster else own / other for own, other in pairs]))
    if not candidates:
        return None
    # The rival that we look worst against.
    worst = max if target.at_most is not None else min
    key, ratios = worst(candidates, key=lambda candidate: statistics.median(candidate[1]))
    ratio = statistics.median(ratios)
    met = None
    if target.at_least is not None:
        met = ratio >= target.at_least
    if target.at_most is not None:
        met = ratio <= target.at_most
    rival = median_of(values_of(samples, key, target.rival_counter or target.counter)) if key else None
    return Judged(median_of(ours), rival, key, ratio, min(ratios), max(ratios), met)


def wanted(target):
    if target.is_told_only:
        return ""
    if target.at_least is not None:
        return f"at least {target.at_least:g}"
    is_time = target.counter == "seconds" and not target.rivals
    return f"at most {shown(target.at_most, 'seconds') if is_time else format(target.at_most, 'g')}"


def named_rival(target, judged, samples):
    if not judged.rival_key:
        return ""
    text = judged.rival_key.split("/floats")[0]
    if target.rival_counter:
        text += f": {target.rival_counter}"
    lost = median_of(values_of(samples, judged.rival_key, "lost_%"))
    return text + (f", loses {lost:.2g} % of the updates" if lost else "")


COLUMNS = ("", "ours", "best rival", "its figure", "ratio", "least", "greatest", "target", "met")


def print_row(cells):
    print("| " + " | ".join(cells) + " |")


def print_table(targets, samples, problems):
    """And returns its rows as objects."""
    rows = []
    group = None
    for target in targets:
        if target.group != group:
            group = target.group
            print(f"\n### {group.capitalize()}\n")
            print_row(COLUMNS)
            print("|---|---:|---|" + "---:|" * 4 + "---|---|")
        judged = judge(target, samples)
        # Why a figure is not there says why nothing is compared with its rivals; these do not matter then.
        keys = (target.ours,) if judged is None and target.ours in problems else (target.ours, *target.rivals)
        why_not = {key: problems[key] for key in keys if key in problems}
        row = {
            "type": "target",
            "group": target.group,
            "text": target.text,
            "case": target.ours,
            "counter": target.counter,
            "rivals": target.rivals,
            "target": wanted(target),
            "why": target.why,
            "problems": why_not,
        }
        notes = "; ".join(f"{key}: {why}" for key, why in why_not.items())
        if judged is None:
            own = shown(median_of(values_of(samples, target.ours, target.counter)), target.counter)
            print_row((target.text, own, notes, "", "", "", "", wanted(target), "not measured"))
            row["met"] = None
        else:
            row |= judged._asdict()
            rival = named_rival(target, judged, samples)
            if notes:
                rival += f" (without {notes})"
            own, other = shown(judged.ours, target.counter), shown(judged.rival, target.counter)
            ratio = f"{judged.ratio:.3g}"
            if not target.rivals:  # the figure itself is what the target is about
                own, ratio = "", own
            met = {None: "", True: "yes", False: "**no**"}[judged.met]
            spread = (f"{judged.least:.3g}", f"{judged.greatest:.3g}")
            if not target.rivals:
                spread = (shown(judged.least, target.counter), shown(judged.greatest, target.counter))
            print_row((target.text, own, rival, other, ratio, *spread, wanted(target), met))
        rows.append(row)
    return rows
