"""Running programs with a bound on their time, and reading what google-benchmark programs have measured."""

import collections
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

# Of an entry in google-benchmark's JSON, what is no counter.
_FIELDS = {
    "name",
    "family_index",
    "per_family_instance_index",
    "run_name",
    "run_type",
    "repetitions",
    "repetition_index",
    "threads",
    "iterations",
    "real_time",
    "cpu_time",
    "time_unit",
    "label",
    "error_occurred",
    "error_message",
    "aggregate_name",
    "aggregate_unit",
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# What google-benchmark adds to a registered name.
_SUFFIX = re.compile(
    r"(/(iterations:\d+|repeats:\d+|min_time:[\d.]+|min_warmup_time:[\d.]+|manual_time|real_time|" r"process_time))+$"
)


class Failed(Exception):
    """A program that could not be run, or ended otherwise than well; the message is one for people."""


def end(process):
    """Ends a process that was started as the leader of a session, and all that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def start(command, **options):
    options = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        **options,
    }
    try:
        return subprocess.Popen([str(word) for word in command], start_new_session=True, **options)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None


def finish(process, seconds):
    """Its stdout. Whatever happens, nothing of it goes on afterwards."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"{process.args[0]} did not end within {seconds:g} s") from None
    finally:
        if process.poll() is None:
            end(process)
    if process.returncode != 0:
        lines = [line.strip() for line in f"{out or ''}\n{err or ''}".splitlines() if line.strip()]
        # A build says what is wrong long before its end.
        said = next((line for line in lines if " error: " in line), lines[-1] if lines else "without a word")
        raise Failed(f"{' '.join(process.args)}: exit code {process.returncode}: {said}")
    return out


def run(command, seconds, **options):
    return finish(start(command, **options), seconds)


def build(folder, root, *programs):
    """Builds these programs in a build folder, which is set up if there is none, and says meanwhile how far it is."""
    if not (folder / "build.ninja").exists():
        run(["meson", "setup", folder, root, "-Dbuildtype=release", "-Dtests=false"], 300)
    plan = subprocess.run(["ninja", "-C", folder, "-n", *programs], capture_output=True, text=True,
                          env={**os.environ, "NINJA_STATUS": "[%f/%t] "})
    progress = [sys.executable, "-B", root / "tools/ninja_progress.py", folder, folder.name, f"{folder}.log", *programs]
    if subprocess.run(progress, input=plan.stdout, text=True).returncode != 0:
        raise Failed(f"the build of {folder} failed; {folder}.log has all of it")


def plain_name(name):
    return _SUFFIX.sub("", name)


def figures_of(document, where):
    """{name: {counter: [of each repetition]}} of google-benchmark's JSON; `seconds` is what one operation takes."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for entry in document.get("benchmarks", []):
        name = plain_name(entry.get("run_name", entry["name"]))
        if entry.get("run_type", "iteration") != "iteration":
            continue
        if entry.get("error_occurred"):
            raise Failed(f"{where}: {name}: {entry.get('error_message', 'failed')}")
        figures = {
            counter: value
            for counter, value in entry.items()
            if counter not in _FIELDS and isinstance(value, (int, float))
        }
        # A case that has a time of its own does so because real_time is all that it did.
        figures["seconds"] = entry["real_time"] * _SECONDS[entry["time_unit"]]
        for unit in [unit for unit in _SECONDS if unit in figures]:
            figures["seconds"] = figures.pop(unit) * _SECONDS[unit]
        for counter, value in figures.items():
            if math.isfinite(value):
                found[name][counter].append(value)
    return {name: dict(counters) for name, counters in found.items()}


def read_json(path):
    try:
        document = json.loads(pathlib.Path(path).read_text())
        found = figures_of(document, path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failed(f"{path} is no JSON of google-benchmark: {error}") from None
    if not found:
        raise Failed(f"{path} has no single repetitions: save it with --benchmark_report_aggregates_only=false")
    return found


def list_benchmarks(program, pattern=""):
    """The names of a google-benchmark program's cases that match, as it wants them in its filter."""
    out = run([program, "--benchmark_list_tests=true"], 60)
    return [line.strip() for line in out.splitlines() if line.strip() and re.search(pattern, plain_name(line.strip()))]


def run_benchmark(program, name, seconds, more=()):
    """One repetition of one case: ({counter: value}, the program's context)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figures.json"
        # Into a file: programs print lines of their own on stdout.
        run(
            [
                program,
                *more,
                f"--benchmark_filter=^{escaped(name)}$",
                "--benchmark_repetitions=1",
                "--benchmark_report_aggregates_only=false",
                f"--benchmark_out={path}",
                "--benchmark_out_format=json",
            ],
            seconds,
        )
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise Failed(f"{program}: {name}: no JSON: {error}") from None
    found = figures_of(document, program).get(plain_name(name))
    if not found:
        raise Failed(f"{program}: {name}: measured nothing")
    return {counter: values[0] for counter, values in found.items()}, document.get("context", {})


def escaped(name):
    """For google-benchmark's filter, an extended regular expression that does not know every escape of Python's."""
    return re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", name)


def shown(value, counter):
    """For people: three digits, and a unit where the counter's name has one."""
    if value is None:
        return ""
    if counter == "seconds":
        name = next((name for name in ("s", "ms", "us") if value >= _SECONDS[name]), "ns")
        return f"{value / _SECONDS[name]:.3g} {name}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    unit = counter.removeprefix("pull_").removeprefix("push_").removeprefix("read_") if counter.endswith("/s") else ""
    return f"{value:,.{digits}f} {'%' if '%' in counter else unit}".rstrip()
