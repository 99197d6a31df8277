#!/usr/bin/env python3
"""Runs ninja for build() of tools/setup.sh, and reports how far it is.

    ninja -C FOLDER -n TARGET... | tools/ninja_progress.py FOLDER NAME LOG TARGET...
    tools/ninja_progress.py --table FOLDER... >tools/unit_seconds.txt

The first reads what ninja is about to do and does it, with ninja's output in LOG. A line on standard error such as
`[3/28] 37 s, 41 %: src hot 0` has the steps that are finished, the time, how much of the work is done, and what is
being compiled: on a terminal in place each second, elsewhere each ten seconds. A step counts for what it took last time
in this folder, or what tools/unit_seconds.txt says. At the end, however it ends, FOLDER.cpu gets a line with the CPU
seconds.
Nothing of this where nothing is compiled or linked, though ninja looks for the commit, which it does each time.
The second prints that table, of builds that have been made from nothing.
"""
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

TABLE = pathlib.Path(__file__).resolve().parent / "unit_seconds.txt"
STATUS = re.compile(r"\[(\d+)/(\d+)\] (.*)")
LEAST = 6.0  # seconds of a unit that the table has
COMPILED, OTHER = 3.0, 0.3  # of a unit, and of another step, of which nothing is known


def output_of(step):
    """The file that a line of ninja's says is made."""
    found = re.match(r"(?:Compiling|Linking) .*?(\S+)$|Generating (\S+)", step)
    return found and (found[1] or found[2])


def unit_name(output):
    """src hot 0, where that is src/libps_hot.a.p/meson-generated_ps_hot-unity0.cpp.o."""
    found = re.fullmatch(r"(?:(.+)/)?(?:lib)?([^/]+?)(?:\.a|\.so[.\d]*)?\.p/(?:meson-generated_)?([^/]+)\.o", output)
    if not found:
        return pathlib.PurePath(output).name
    folder, target, source = found.groups()
    unity = re.search(r"-unity(\d+)\.\w+$", source)
    return f"{folder or '.'} {target.removeprefix('ps_')} {unity[1] if unity else source.rsplit('.', 1)[0]}"


def seconds_before(folder):
    """{file: seconds} of what ninja has made in that folder."""
    try:
        lines = (folder / ".ninja_log").read_text().splitlines()[1:]
    except OSError:
        return {}
    entries = (line.split("\t") for line in lines)  # start, end, time of the output, its name, hash of the command
    return {entry[3]: (int(entry[1]) - int(entry[0])) / 1000 for entry in entries if len(entry) == 5}


def read_table():
    lines = (line.split("  ", 1) for line in TABLE.read_text().splitlines() if line and not line.startswith("#"))
    return {name: float(seconds) for seconds, name in lines}


def print_table(folders):
    units = {}
    for folder in folders:
        known = seconds_before(folder)
        cpu = pathlib.Path(f"{folder}.cpu")
        factor = sum(map(int, cpu.read_text().split())) / sum(known.values()) if cpu.exists() else 1
        units |= {unit_name(output): factor * seconds for output, seconds in known.items()
                  if output.endswith(".o") and factor * seconds >= LEAST}
    print("# CPU seconds of a unit, about: tools/ninja_progress.py --table prints them. They only weigh what is left.")
    for name, seconds in sorted(units.items(), key=lambda unit: (-unit[1], unit[0])):
        print(f"{seconds:.0f}  {name}")


def commands_of_children(parent):
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                yield (stat.parent / "cmdline").read_text(errors="replace").replace("\0", " ")
        except (OSError, ValueError):  # it has ended
            pass


class Progress:
    def __init__(self, folder, steps):
        self.began = time.monotonic()
        before, table = seconds_before(folder), read_table()
        self.weights = {}
        for output in filter(None, map(output_of, steps)):
            usual = COMPILED if output.endswith(".o") else OTHER
            self.weights[output] = before.get(output, table.get(unit_name(output), usual))
        self.total = sum(self.weights.values()) or 1.0
        self.planned = self.count = len(steps)
        self.done, self.finished = 0, set()
        self.since = {}  # when each unit that is being compiled was first seen
        self.has_begun = False

    def read(self, lines):
        for found in filter(None, map(STATUS.match, lines)):
            self.done, self.count = int(found[1]), int(found[2])
            self.finished.add(output_of(found[3]))
            self.has_begun |= not found[3].startswith("Generating")

    def look(self, process):
        now = time.monotonic()
        found = (re.search(r" -o (\S+\.o)\b", command) for command in commands_of_children(process))
        outputs = {one[1] for one in found if one}
        self.since = {output: self.since.get(output, now) for output in outputs}
        self.has_begun |= bool(outputs)

    def line(self):
        now = time.monotonic()
        work = sum(weight for output, weight in self.weights.items() if output in self.finished)
        work += sum(min(now - since, self.weights.get(output, COMPILED)) for output, since in self.since.items())
        total = self.total * self.count / max(1, self.planned)  # ninja leaves out what proves to be as it was
        names = [unit_name(output) for output in sorted(self.since, key=self.since.get)]
        units = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        share = min(99, int(100 * work / total))
        return f"[{self.done}/{self.count}] {now - self.began:.0f} s, {share} %{': ' if units else ''}{units}"


def tell(line, in_place=False):
    if in_place:
        try:
            columns = os.get_terminal_size(2).columns
        except OSError:
            columns = 80
        line = f"\r\033[K{line[:columns - 1]}"
    print(line, end="" if in_place else "\n", file=sys.stderr, flush=True)


def build(folder, name, log, targets):
    """Returns ninja's exit code."""
    steps = [found[3] for line in sys.stdin.read().splitlines() if (found := STATUS.match(line))]
    progress = Progress(folder, steps)
    on_terminal = sys.stderr.isatty()
    every = float(os.environ.get("PS_SHM_TEST_REPORT_SECONDS", 1 if on_terminal else 10))
    with open(log, "w+") as output, open(log) as written:
        ninja = subprocess.Popen(["ninja", "-C", folder, *targets], stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT, env={**os.environ, "NINJA_STATUS": "[%f/%t] "})
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            due, rest, has_told, code = progress.began + every, "", False, None
            while code is None:
                try:
                    code = ninja.wait(timeout=max(0.0, min(0.2, due - time.monotonic())))
                except subprocess.TimeoutExpired:
                    progress.look(ninja.pid)
                *lines, rest = (rest + written.read()).split("\n")
                progress.read(lines)
                if progress.has_begun and not has_told:
                    which = f" ({' '.join(map(os.path.basename, targets))})" if 0 < len(targets) < 5 else ""
                    tell(f"building {name}{which} ...")
                    has_told = True
                if code is None and time.monotonic() >= due:
                    tell(progress.line() if on_terminal else f"building {name}: {progress.line()}", on_terminal)
                    due = time.monotonic() + every
        finally:
            if ninja.poll() is None:
                ninja.terminate()
                ninja.wait()
            if on_terminal:
                tell("", in_place=True)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = round(used.ru_utime + used.ru_stime)
            if progress.has_begun:
                with open(f"{folder}.cpu", "a") as cpu:
                    print(seconds, file=cpu)
    if code != 0:  # what it prints of the steps that went well is of no use
        tell("\n".join(line for line in pathlib.Path(log).read_text().splitlines() if not STATUS.match(line)))
    elif progress.has_begun:
        tell(f"built {name} in {time.monotonic() - progress.began:.0f} s, with {seconds} s of CPU")
    return code


def main(arguments):
    if arguments == ["--help"]:
        return print(__doc__.strip())
    if arguments[:1] == ["--table"]:
        return print_table(map(pathlib.Path, arguments[1:]))
    folder, name, log, *targets = arguments
    try:
        return build(pathlib.Path(folder), name, log, targets)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
