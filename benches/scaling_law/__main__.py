"""Measures how each path of the library scales with the number of workers, and where it stops.

    benches/scaling                         builds build/bench, then three rounds of everything
    benches/scaling --workers 1 2 4 8 16    for so many workers; otherwise up to the cores there are
    benches/scaling --only push --pin       these paths, each worker on a core of its own as well
    benches/scaling --only simulated --workers 1 2 4 8 16 32
                                            a larger box: workers that sleep in place of computing
    benches/scaling --quick                 one short round: whether everything works, no figures to rely on

Paths: pushes and pulls of a million floats, rows of 16 floats, sync steps and training of a perceptron. Beside each figure
stands what the machine has to give at the same time: processes that share nothing. In every round each path runs once
for each number of workers, every second round backwards. The universal scalability law is fitted to the medians, with
intervals by resampling the rounds; with five numbers of workers or more, what it foretells from the smaller half of them
stands beside what was measured. It tells how much of the work is done one after the other, what workers cost each other, and how many of them pay.

Writes summary.md, results.json and scaling.png into a folder, and prints the first.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benches"))

import measuring  # noqa: E402
from measuring import Failed  # noqa: E402
from rivals.training import Training  # noqa: E402
from scaling_law.paths import PATHS, Measuring  # noqa: E402


def default_workers(cores):
    """1, 2, 3, 4, 6, 8, 12 ... and the cores."""
    return sorted({count for power in range(9) for count in (1 << power, 3 << power) if count < cores} | {cores})


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="benches/scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", nargs="+", type=int, default=default_workers(cores), metavar="N",
                        help="for so many workers (1, 2, 3, 4, 6, 8 ... and the cores)")
    parser.add_argument("--only", default="", metavar="TEXT", help="the paths whose name has it")
    parser.add_argument("--pin", action="store_true",
                        help="measure with each worker on a core of its own, too; not training, whose workers move")
    parser.add_argument("--rounds", type=int, help="how often everything runs (3)")
    parser.add_argument("--seconds", type=float, help="of one measurement (0.3)")
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR",
                        help="a build as it is (build/bench, brought up to date)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/scaling", metavar="FOLDER",
                        help="(build/scaling)")
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    options.rounds = (1 if options.quick else 3) if options.rounds is None else options.rounds
    options.seconds = (0.02 if options.quick else 0.3) if options.seconds is None else options.seconds
    options.workers = sorted(set(options.workers))
    options.paths = [path for path in PATHS if options.only in path.name]
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds: more than 0")
    if not 1 <= options.workers[0] <= options.workers[-1] <= 256:
        parser.error("--workers: numbers from 1 to 256")
    if not options.paths:
        parser.error(f"--only: no path has '{options.only}'; there are " + "; ".join(path.name for path in PATHS))
    return options


def measure(options, tools):
    """[{"path", "kind", "workers", "rate", "limit"}] of all rounds."""
    cases = [
        (path, kind, workers)
        for path in options.paths
        for kind in ("free", "pinned")[: 1 + options.pin]
        for workers in options.workers
        if kind == "free" or not path.name.startswith("training")
    ]
    found = []
    for number in range(options.rounds):
        for at, (path, kind, workers) in enumerate(cases if number % 2 == 0 else cases[::-1]):
            if sys.stderr.isatty():
                where = f"round {number + 1} of {options.rounds}: {at + 1}/{len(cases)} {path.name}, {workers} workers"
                print(f"\r\033[K{where}", end="", file=sys.stderr)
            rate, limit = path.measure(tools, workers, kind == "pinned")
            found.append({"path": path.name, "kind": kind, "workers": workers, "rate": rate, "limit": limit})
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return found


def main():
    options = parse_arguments()
    from scaling_law import page  # wants matplotlib, which --help does not

    if options.build is None:
        options.build = ROOT / "build/bench"
        measuring.build(options.build, ROOT, "all")
    options.build = options.build.resolve()
    if not (options.build / "benches/micro").exists():
        raise Failed(f"there is no {options.build}/benches/micro: build it, or leave --build out")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    environment = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": " ".join(["benches/scaling", *sys.argv[1:]]),
        "processor": f"{processor()}, {os.cpu_count()} cores, {cores} of them ours",
        "kernel": platform.release(),
        "load": f"{load:.2f} in the last minute",
        "rounds": options.rounds,
    }
    warnings = [
        line
        for wrong, line in (
            (load > 0.5, "the machine is busy with something else: these figures are not to be relied on"),
            (options.quick, "a quick run: these figures are not to be relied on"),
            (options.workers[-1] > cores, f"more workers than the {cores} cores take turns on them"),
        )
        if wrong
    ]
    with tempfile.TemporaryDirectory() as folder:
        training = Training(types.SimpleNamespace(build=options.build, mnist=None), {}, pathlib.Path(folder))
        tools = Measuring(options.build, training, options.seconds, 20 if options.quick else 400)
        found = measure(options, tools)
    curves = []
    for path in options.paths:
        for kind in page.KINDS:
            of_curve = [one for one in found if (one["path"], one["kind"]) == (path.name, kind)]
            if of_curve:
                curves.append(page.Curve(path, kind, of_curve))
    text = page.text_of(environment, warnings, curves)
    print(text, end="", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "summary.md").write_text(text)
    laws = [
        {"path": curve.path.name, "kind": curve.kind, **curve.law._asdict(), "pays_up_to": curve.law.pays_up_to()}
        for curve in curves
        if curve.law
    ]
    document = {"environment": environment, "warnings": warnings, "laws": laws, "rounds": found}
    (options.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    page.draw(curves, options.out / "scaling.png")
    print(f"see {options.out}", file=sys.stderr)
    return 0


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"scaling: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
