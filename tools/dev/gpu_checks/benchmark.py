"""The benchmark of the GPU and its link, section by section, and what it says of what the library relies on."""
import contextlib
import json
import pathlib
import tempfile
import time

import programs

SECTIONS = ("moves", "links", "waits", "tearing", "adds_with_processors", "registrations", "adds_of_two_processes", "death",
            "rows")  # what decides most comes first, should the time not suffice
SMALL_TABLE = "rows_of_small_table"  # beside rows, whose table is larger than what the GPU's translations reach
SMALL_TABLE_MIB = 200
SECTION_SECONDS = 130


def measure(report, build, quick):
    """Each section by a program of its own; it is in the report as soon as it is measured, or as far as it has come."""
    began = time.monotonic()
    runs = [(section, section, ("--quick",) if quick else ()) for section in SECTIONS]
    if not quick:
        runs.append((SMALL_TABLE, "rows", ("--table-mib", SMALL_TABLE_MIB)))
    failed = [f"{name}: {wrong}" for name, *rest in runs if (wrong := run_section(report, build, name, *rest))]
    found = report.data.get("benchmark", {})
    wrong = [*programs.errors_in(found), *failed]
    report.add("benchmark", not wrong, "; ".join(wrong) or f"{time.monotonic() - began:.0f} s")
    judge(report, found)


def run_section(report, build, name, section, options):
    """Returns what went wrong and does not stand in the report."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = programs.run([build / "benches" / "gpu", "--only", section, "--to", folder, *options], SECTION_SECONDS)
        except programs.Failed as error:
            return str(error)
        finally:  # also if a signal ends this program
            take(report, name, section, pathlib.Path(folder) / f"{section}.json")
    is_said = name in report.data.get("benchmark", {}) and not done.err.strip()
    return None if done.code == 0 or is_said else f"exit code {done.code}: {done.last_line()}"


def take(report, name, section, path):
    with contextlib.suppress(FileNotFoundError):  # what went wrong is said by its program
        written = json.loads(path.read_text())
        kept = {key: written[key] for key in ("facts", "context") if key in written}
        report.data.setdefault("benchmark", {}).update({**kept, name: written[section]})
        report.write()


def judge(report, found):
    """What the library relies on, against what was measured."""
    adds = found.get("adds_with_processors", {})
    if "one_by_one" in adds:
        bits = [gpu["host_atomics"]["float_add"] for gpu in found["facts"]["gpus"][:1]]
        native = isinstance(bits[0], int) and bool(bits[0] & 8)
        exact, verdict = adds["one_by_one"]["is_exact"], "native" if native else "not native"
        report.add("adds of GPU and CPUs", exact or not native,
                   f"lost {adds['one_by_one']['lost_share']:.3%}; the driver says they are {verdict}")
        report.add("adds of CPUs alone", adds["processors_alone"]["is_exact"],
                   f"lost {adds['processors_alone']['lost_share']:.3%}")
    torn = {name: seen for name, seen in found.get("tearing", {}).items() if isinstance(seen, dict) and "words" in seen}
    kernel = [seen for name, seen in torn.items() if name.startswith("kernel")]
    if kernel:
        count, words = (sum(seen[key] for seen in kernel) for key in ("torn_4_bytes", "words"))
        report.add("a kernel's reads of floats", count == 0, f"{count} torn of {words} words")
    warnings = [line for case in found.get("links", {}).get("cases", []) for line in case.get("warnings", [])]
    if "cases" in found.get("links", {}):
        report.add("shards are registered", not warnings, warnings[0] if warnings else "no warning")
    for name in ("rows", SMALL_TABLE):
        rows = found.get(name, {})
        if "cases" in rows:
            wrong = sum(not case["is_right"] for case in rows["cases"])
            report.add(f"{name.replace('_', ' ')} that a kernel pulls", wrong == 0 and not rows["warnings"],
                       (rows["warnings"] + [f"{wrong} of {len(rows['cases'])} pulls were not the processor's"])[0])
