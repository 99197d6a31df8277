"""Sweeps mode, straggler, model and number of workers on this machine, and says what staleness costs and what it buys.

    benches/staleness_throughput            short: six modes, four stragglers, two models; within three minutes
    benches/staleness_throughput --full     every mode, more workers, five repetitions of ten seconds: hours
    benches/staleness_throughput --smoke    some seconds, to see that it works
    benches/staleness_throughput --rates 0.05:3.2 --modes async clip:0.3 scale drop:8 backup:4 ssp:16 \\
        --stragglers sleep-1x sleep-10x sleep-spread sleep-own-data --models digits --workers 8 --seconds 1 --repeats 3
                                            each mode at its own best learning rate
    benches/staleness_throughput --ages     the age of gradients by their steps and by their chunks

It writes results.jsonl (a line per run), index.html (all in one page), plots as SVG and PNG, and summary.md, which is
also printed. With --rates, every mode runs once with every rate; then the rate with which it reached the target soonest is
repeated. The table (rates.md) and the plot (rates.svg, rates.png) are of these. --ages writes ages.md and ages.svg and .png,
and needs build/bench, which it builds. Called again with the same folder it goes on where it was: Ctrl-C loses one run at most.
"""
import argparse
import json
import pathlib
import signal
import sys
import time

import environment as environments
import plan
import results as stored

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "benches"))
import measuring  # noqa: E402
import record  # noqa: E402

RECORD = record.RESULTS / "staleness.json"


def positive(kind):
    def read(text):
        value = kind(text)
        if not 0 < value < 1e6:
            raise argparse.ArgumentTypeError(f"'{text}' is not above 0")
        return value

    read.__name__ = kind.__name__
    return read


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="benches/staleness_throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    setting = parser.add_mutually_exclusive_group()
    setting.add_argument("--full", dest="setting", action="store_const", const="full", help="the whole sweep")
    setting.add_argument("--smoke", dest="setting", action="store_const", const="smoke", help="a few short runs")
    setting.set_defaults(setting="short")
    parser.add_argument(
        "--modes",
        nargs="+",
        metavar="MODE",
        help="async, clip:X (async with --clip-norm), scale (with --lr-staleness), drop:R (with --stale-limit), ssp:S (staleness "
        "bound S), sync, backup:B (sync that waits for all but B)",
    )
    parser.add_argument(
        "--stragglers",
        nargs="+",
        metavar="NAME",
        help="none; 2x, 10x, ...: the last worker is so many times slower; random: a tenth of all steps is "
        "10x slower; sleep-1x, sleep-10x, sleep-spread, sleep-own-data: workers that sleep in place of computing, so that "
        "cores do not matter: 4 ms each; the last one 40 ms; 2 to 256 ms; the last one 40 ms, and each has classes of its own",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        help="digits, digits-momentum, digits-adam, logistic, rows, linear, fashion-mnist (Debian's dataset-fashion-mnist), or a folder with MNIST's files",
    )
    parser.add_argument("--workers", nargs="+", type=positive(int), metavar="N", help="numbers of workers")
    parser.add_argument(
        "--rates", nargs="+", metavar="RATE", help="learning rates, or LO:HI for a grid of factors of 2: sweep them"
    )
    parser.add_argument(
        "--target", type=positive(float), metavar="LOSS", help="with --rates: the test loss to reach (as for the other plots)"
    )
    parser.add_argument("--ages", action="store_true", help="measure ages of gradients, and nothing else without --rates")
    parser.add_argument("--repeats", type=positive(int), metavar="N", help="repetitions of everything")
    parser.add_argument("--seconds", type=positive(float), metavar="S", help="time budget of a run")
    parser.add_argument("--curve", type=positive(int), metavar="N", help="points of loss against time in a run")
    parser.add_argument("--seed", type=int, default=1, help="of the runs' order (1)")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="FOLDER",
        help="where results and plots go (build/staleness/short, full or smoke)",
    )
    parser.add_argument(
        "--tools",
        type=pathlib.Path,
        default=ROOT / "build/run/tools",
        metavar="FOLDER",
        help="of the programs to measure (build/run/tools)",
    )
    parser.add_argument(
        "--bench", type=pathlib.Path, default=ROOT / "build/bench", metavar="FOLDER", help="build folder of --ages (build/bench)"
    )
    parser.add_argument("--no-runs", action="store_true", help="draw and print what there is, measure nothing")
    parser.add_argument(
        "--record",
        metavar="MACHINE",
        help="also write staleness.json and the plots of docs/staleness.md to benches/results, as of this machine of "
        "docs/benchmarks.md; with --no-runs, draw these plots anew from that file",
    )
    parser.add_argument("--command", help=argparse.SUPPRESS)  # as the user has typed it
    options = parser.parse_args()
    options.default_models = options.models is None
    for name, value in plan.presets(options.setting).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.out = (options.out or ROOT / "build/staleness" / options.setting).resolve()
    options.tools = options.tools.resolve()
    if options.record and (options.rates or options.ages):
        parser.error("--record is for the table of modes and stragglers, without --rates and --ages")
    options.command = options.command or " ".join(["benches/staleness_throughput", *sys.argv[1:]])
    try:
        options.modes = [plan.mode(name) for name in dict.fromkeys(options.modes)]
        options.stragglers = [plan.straggler(name) for name in dict.fromkeys(options.stragglers)]
        options.models = [plan.model(name) for name in dict.fromkeys(options.models)]
        options.rates = options.rates and plan.rates_of(options.rates)
    except plan.Unknown as error:
        parser.error(str(error))
    return options


def say(text):
    print(text, file=sys.stderr, flush=True)


class Progress:
    """tqdm's bar with the time left on a terminal, a line now and then elsewhere."""

    LINE_SECONDS = 15.0

    def __init__(self, total):
        self.total, self.done, self.said, self.bar = total, 0, time.monotonic(), None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(total=total, unit="run", dynamic_ncols=True, smoothing=0.05)

    def now(self, what):
        if self.bar is not None:
            self.bar.set_postfix_str(what)
        elif time.monotonic() - self.said > self.LINE_SECONDS:
            self.said = time.monotonic()
            say(f"{self.done} of {self.total} runs are done; {what}")

    def step(self):
        self.done += 1
        if self.bar is not None:
            self.bar.update(1)

    def close(self):
        if self.bar is not None:
            self.bar.close()


def measure(options, results, environment, environment_key, todo):
    patience = 120 + 20 * options.seconds
    progress = Progress(len(todo))
    try:
        for repetition, run in todo:
            speed = run.settings_of_speed()
            known = results.find("calibration", speed, 0, environment_key)
            if known is None:
                progress.now(f"{run.title()}: how fast is it?")
                found = stored.calibrate(options.tools, run, patience)
                known = results.add("calibration", speed, 0, environment, environment_key, found)
            progress.now(run.title())
            arguments = run.arguments(known["result"]["steps"], seed=repetition)
            results.add(
                "run",
                run.settings(),
                repetition,
                environment,
                environment_key,
                stored.launch(options.tools, arguments, patience),
            )
            progress.step()
    finally:
        progress.close()


def report(options, results, environment, environment_key, wanted):
    """Page, plots and table of the wanted runs that are there. Returns how many those are."""
    import figures
    import page
    import summary as summaries

    entries = [
        entry
        for entry in (results.find("run", run.settings(), repetition, environment_key) for repetition, run in wanted)
        if entry
    ]
    cells = {entry["settings"]["model"] for entry in entries if not entry["settings"]["reference"]}
    alone = {entry["settings"]["model"] for entry in entries if entry["settings"]["reference"]}
    entries = [entry for entry in entries if entry["settings"]["model"] in cells & alone]
    if not entries:
        return 0
    summary = summaries.Summary(entries)
    say("drawing ...")
    plots = figures.draw(summary, options.out)
    settings = {"seconds": options.seconds, "repeats": options.repeats, "seed": options.seed}
    page.write(
        options.out / "index.html",
        summary,
        plots,
        options.out,
        environment,
        options.command,
        settings,
        is_complete=len(entries) == len(wanted),
    )
    text = summaries.markdown(summary)
    (options.out / "summary.md").write_text(text)
    print(text, end="", flush=True)
    if options.record:
        rows = [row for _, row in record.rows_of(text.splitlines())]
        loads = sorted({entry["environment"]["load_before"] for entry in entries})
        load = " to ".join(f"{one:g}" for one in dict.fromkeys((loads[0], loads[-1])))
        record.write(RECORD, record.document(options.command, options.record, rows, load=load, **summary.recorded()))
        draw_record()
    return len(entries)


def draw_record():
    """Of what is in the file, and of nothing else."""
    import figures
    import summary as summaries

    figures.draw_recorded(summaries.Recorded(json.loads(RECORD.read_text())), RECORD.parent)
    say(f"see {RECORD}")


def missing(options, results, environment_key, wanted):
    if options.no_runs:
        return []
    return [
        (repetition, run)
        for repetition, run in wanted
        if results.find("run", run.settings(), repetition, environment_key) is None
    ]


def sweep_rates(options, results, environment, environment_key):
    """Every mode with every rate once, then each mode's best rate --repeats times. Returns the number of runs."""
    import matplotlib.pyplot as plt
    import rates
    from style import STYLE

    runs = plan.runs(
        options.models, options.workers, options.modes, options.stragglers, options.seconds, options.curve, options.rates
    )
    wanted = list(plan.in_order(runs, 1, options.seed))

    def found():
        entries = (results.find("run", run.settings(), repetition, environment_key) for repetition, run in wanted)
        return rates.Sweep([entry for entry in entries if entry], options.target)

    for _ in range(2):
        todo = missing(options, results, environment_key, wanted)
        say(f"{len(wanted)} runs of {options.seconds:g} s, {len(wanted) - len(todo)} are done already; results in {options.out}")
        measure(options, results, environment, environment_key, todo)
        sweep = found()
        best = list(rates.best_runs(sweep, runs))
        wanted += [(1 + repetition, run) for repetition, run in plan.in_order(best, options.repeats, options.seed)]
        wanted = list(dict.fromkeys(wanted))
    sweep = found()
    if not sweep.swept:
        return 0
    with plt.rc_context(STYLE):
        rates.draw(sweep, options.out)
    text = rates.markdown(sweep)
    (options.out / "rates.md").write_text(text)
    print(text, end="", flush=True)
    return len(sweep.swept)


def measure_ages(options):
    import ages
    import matplotlib.pyplot as plt
    from style import STYLE

    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "ages.json"
    if not options.no_runs:
        measuring.build(options.bench, ROOT, "benches/ages")
        kept.write_text(json.dumps(ages.measure(options.bench / "benches/ages", options.seconds)))
    found = [ages.Ages(result) for result in json.loads(kept.read_text())] if kept.exists() else []
    if not found:
        return 0
    with plt.rc_context(STYLE):
        ages.draw(found, options.out)
    text = ages.markdown(found)
    (options.out / "ages.md").write_text(text)
    print(text, end="", flush=True)
    return len(found)


def report_code(options, found):
    """The exit code."""
    if not found:
        say("staleness_throughput: there are no runs of these settings here yet")
        return 1
    say(f"see {options.out / ('rates.md' if options.rates else 'index.html')}")
    return 0


def main():
    options = parse_arguments()
    if options.record and options.no_runs:
        draw_record()
        return 0
    refusal = environments.refusal(options.tools)
    if refusal:
        say(f"staleness_throughput: {refusal}")
        return 1
    environment = environments.describe(options.tools)
    environment_key = environments.key_of(environment)
    say(
        f"{environment['cpu']}, {environment['cores']} cores, pinning: {environment['pinning']}; "
        f"{environment['compiler']}, "
        f"{environment['build']}, commit {environment['commit']}"
    )
    wanted = list(
        plan.in_order(
            plan.runs(
                options.models, options.workers, options.modes, options.stragglers, options.seconds, options.curve
            ),
            options.repeats,
            options.seed,
        )
    )
    try:
        if options.ages and not measure_ages(options):
            return report_code(options, 0)
        results = stored.Results(options.out / "results.jsonl")
        if options.rates:
            return report_code(options, sweep_rates(options, results, environment, environment_key))
        if options.ages:
            return 0
        todo = missing(options, results, environment_key, wanted)
        if options.setting == "full" and options.default_models and not pathlib.Path(plan.FASHION).is_dir():
            say(
                "Fashion-MNIST is not here and is left out: apt install dataset-fashion-mnist, or name a folder with "
                "--models"
            )
        say(
            f"{len(wanted)} runs of {options.seconds:g} s in random order, seed {options.seed}; "
            f"{len(wanted) - len(todo)} are "
            f"done already; results in {options.out}"
        )
        measure(options, results, environment, environment_key, todo)
        found = report(options, results, environment, environment_key, wanted)
    except (stored.Failed, measuring.Failed, plan.Unknown) as error:
        say(f"staleness_throughput: {error}")
        return 1
    return report_code(options, found)


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        code = main()
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        code = 130
    sys.exit(code)
