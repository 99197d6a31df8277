"""One HTML page that needs nothing but itself: plots as inline SVG, tables, the environment, the command."""
import html
import re

import plan
import summary as summaries

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 1080px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2em; } h3 { font-size: 1.05em; margin-bottom: .3em; }
svg { max-width: 100%; height: auto; } figure { margin: 1em 0 2em; } figcaption { color: #555; font-size: .92em; }
table { border-collapse: collapse; font-size: .88em; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: right; } th { background: #f6f6f6; }
th:first-child, td:first-child, td.text { text-align: left; } .scroll { overflow-x: auto; }
pre { background: #f6f6f6; padding: .7em 1em; overflow-x: auto; } .note { background: #fff6e0; padding: .5em 1em; }
"""

CAPTIONS = {
    "throughput": "Up is faster, left is fresher. Examples per second, because a sync step is worth several async "
    "ones; those of gradients that came too late do not count. The "
    "line joins the ssp bounds, marked with their S, and async; sync has no staleness by construction. "
    "Whiskers, where there are several repetitions: least and most.",
    "target": "Shorter is better: how long until the test loss is the target for the first time.",
    "loss": "Test loss of copies of the parameters, taken while the workers train and evaluated after the end. The "
    "dotted line is the target.",
    "staleness": "How many updates by other workers landed on a chunk between the pull and the push of it.",
}

COLUMNS = [
    ("steps/s", lambda c: summaries.brief(summaries.median(c, "steps_per_second"))),
    ("examples/s", lambda c: summaries.brief(summaries.median(c, "examples_per_second"))),
    ("staleness mean", lambda c: f"{summaries.median(c, 'staleness_mean'):.2f}"),
    ("p99", lambda c: f"{summaries.median(c, 'staleness_p99'):.0f}"),
    ("max", lambda c: f"{summaries.median(c, 'staleness_max'):.0f}"),
    ("waiting", lambda c: f"{100 * summaries.median(c, 'waiting'):.0f} %"),
    ("dropped", lambda c: f"{100 * summaries.median(c, 'dropped'):.1f} %"),
    ("retries/step", lambda c: f"{summaries.median(c, 'retries_per_step'):.3f}"),
    ("s to target", lambda c: summaries.seconds_text(summaries.median(c, "seconds_to_target"))),
    ("steps to target", lambda c: whole(summaries.median(c, "steps_to_target"))),
    ("examples to target", lambda c: whole(summaries.median(c, "examples_to_target"))),
    ("accuracy at the end", lambda c: f"{100 * summaries.median(c, 'accuracy'):.2f} %"),
    ("seconds of training", lambda c: f"{summaries.median(c, 'seconds'):.2f}"),
    ("runs", lambda c: str(c["steps_per_second"]["of"])),
]


def whole(value):
    return "–" if value is None else f"{value:,.0f}".replace(",", " ")


def row(cells, tag="td", texts=1):
    return (
        "<tr>"
        + "".join(
            f'<{tag}{" class=text" if i < texts and tag == "td" else ""}>{html.escape(str(cell))}</{tag}>'
            for i, cell in enumerate(cells)
        )
        + "</tr>"
    )


def table(summary, panel):
    lines = [row(["mode", "straggler"] + [name for name, _ in COLUMNS], "th")]
    alone = summary.alone.get(panel[0])
    if alone:
        lines.append(row(["one worker alone", "no straggler"] + [of(alone) for _, of in COLUMNS], texts=2))
    for mode in summary.modes(*panel):
        for straggler in summary.stragglers(*panel):
            cell = summary.cell(panel, mode, straggler)
            if cell:
                lines.append(row([mode.label(panel[1]), straggler.label] + [of(cell) for _, of in COLUMNS], texts=2))
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>"


def inline(svg, prefix):
    """What stands in a page: no XML head, no link to anywhere, identifiers that no other plot has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(
        r'\b(id|clip-path|xlink:href)="(#|url\(#)?([^")]+)(\)?)"',
        lambda m: f'{m[1]}="{m[2] or ""}{prefix}-{m[3]}{m[4]}"',
        svg,
    )
    return svg


def write(path, summary, plots, folder, environment, command, settings, is_complete):
    references = "".join(
        f"<li>{html.escape(plan.model(model).label)}: test loss {summary.targets[model]:.4f}; one worker alone reaches "
        f"it in {summaries.seconds_text(summaries.median(summary.alone[model], 'seconds_to_target'))} s.</li>"
        for model in summary.models()
        if model in summary.targets
    )
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Staleness against throughput</title><style>{STYLE}</style>",
        "<h1>Staleness against throughput</h1>",
        "<p>What each mode of a parameter server in shared memory costs in staleness, and what it buys in throughput "
        "and in time to a loss, with and without a straggler.</p>",
        ""
        if is_complete
        else "<p class=note>Not all of the runs are done yet: the same command goes on with them.</p>",
        f"<pre>{html.escape(command)}</pre>",
        "<h2>How to read it</h2><ul>"
        "<li><b>A global step</b> is one applied update. In async and ssp mode each push is one, in sync mode each "
        "round: the mean over the gradients of all workers, or of the first ones where there is a backup worker. So "
        "steps per second do not compare across modes; examples per second and seconds to the target do.</li>"
        f"<li><b>Each run has about the same time</b>, {settings['seconds']:g} s, as a number of global steps that a "
        "short run of the same setting has found, so nothing is cut off. Accuracy at the end is what that time "
        "buys.</li>"
        "<li><b>The learning rate is the same in all modes.</b> A sync step goes no further than an async one, it goes "
        "with a better gradient; who scales the rate with the number of workers makes it faster.</li>"
        "<li><b>The target</b> is where one worker alone, which is plain SGD, has gone "
        f"{100 * summaries.TARGET_SHARE:.0f} per cent of the way from its first to its lowest test loss:"
        f"<ul>{references}</ul></li>"
        "<li><b>Stragglers</b>: the last worker's steps take 2 or 10 times as long as their work, or a random tenth of "
        "all workers' steps take 10 times as long.</li>"
        "<li><b>Waiting</b> is the share of the workers' time spent at the end of a step: for others, in sync mode "
        "also for applying gradients. <b>Dropped</b> is the share of gradients that came too late for their step.</li>"
        f"<li>{settings['repeats']} repetition{'s' if settings['repeats'] > 1 else ''}, medians; in each the settings "
        f"in random order, seed {settings['seed']}.</li></ul>",
        "<h2>Environment</h2><table>"
        + "".join(row([name.replace("_", " "), value], texts=2) for name, value in environment.items())
        + "</table>",
        "<h2>Plots</h2>",
    ]
    for stem, title in plots:
        caption = CAPTIONS[stem.split("-")[0]]
        parts.append(
            f"<figure><h3>{html.escape(title)}</h3>{inline((folder / f'{stem}.svg').read_text(), stem)}"
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    parts.append("<h2>Tables</h2>")
    for panel in summary.panels():
        parts += [f"<h3>{html.escape(plan.model(panel[0]).label)}, {panel[1]} workers</h3>", table(summary, panel)]
    parts.append("</html>\n")
    path.write_text("\n".join(parts))
