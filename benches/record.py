#!/usr/bin/env python3
"""Keeps the figures of a run in benches/results, where the pages that show them are compared with it.

    benches/record.py NAME MACHINE COMMAND...    such as: benches/record.py speed "Zen 5" benches/speed --rounds 3

Runs the command, passes on what it prints, and writes the rows of its Markdown tables to benches/results/NAME.json, with
the command, the commit, the machine as docs/benchmarks.md names it, its processor, the load before, and the date.
tests/checks/check_figures.py finds the pages' figures that differ.
"""
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

from staleness import environment

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def cells_of(line):
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def rows_of(lines):
    """Yields (line number, {column: text}) of each row of the Markdown tables; the blank column is `case`."""
    columns, is_table = None, False
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            columns, is_table = None, False
        elif columns is None:
            columns = [name or "case" for name in cells_of(line)]
        elif not is_table and re.fullmatch(r"[|:\- ]+", line.strip()):
            is_table = True
        elif is_table:
            yield number, dict(zip(columns, cells_of(line)))


def document(command, machine, rows, **more):
    return {
        "command": command,
        "commit": environment.commit_of(RESULTS),
        "machine": machine,
        "processor": f"{environment.cpu_model()}, {len(os.sched_getaffinity(0))} cores",
        "load": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.date.today().isoformat(),
        **more,
        "rows": rows,
    }


def write(path, found):
    """One element of a list a line, so that a diff shows which figures have changed."""
    def text(value):
        if isinstance(value, list):
            return "[\n" + ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in value) + "\n  ]"
        return json.dumps(value, ensure_ascii=False)

    path.write_text("{\n" + ",\n".join(f"  {json.dumps(key)}: {text(value)}" for key, value in found.items()) + "\n}\n")


def main():
    if len(sys.argv) < 4 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 0 if sys.argv[1:2] in (["-h"], ["--help"]) else 2
    name, machine, *command = sys.argv[1:]
    kept = document(shlex.join(command), machine, [])
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    kept["rows"] = [row for _, row in rows_of(output)]
    if process.returncode not in (0, 1) or not kept["rows"]:  # 1: a target of benches/speed is not met
        print(f"record.py: {command[0]}: exit code {process.returncode}, {len(kept['rows'])} rows", file=sys.stderr)
        return 1
    write(RESULTS / f"{name}.json", kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
