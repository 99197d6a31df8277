"""Checks that each source of the library and the programs compiles by itself, and each header.

Builds that compile several sources together, or with a precompiled header, hide a missing include. This compiles each
alone, without generating code. A precompiled header is used only where it brings nothing that the file does not
include anyway: what the file includes first, which is its own header, includes it.

    check_sources.py ROOT COMPILER...
"""
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
FOLDERS = ("include", "src", "tools", ".")
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unknown-warning-option",
         "-Wno-c99-extensions", "-Wno-pragma-once-outside-header",
         f'-DPS_SHM_DATA_DIR="{root}/tools/data"', "-DPS_SHM_ARCHIVE", *(f"-I{root / folder}" for folder in FOLDERS)]
OF_CUDA = r"^#include <(cuda|cublas)"  # nvcc's headers are not on every machine; a build with it compiles these
MOST_PRECOMPILED = 12


def files(*patterns):
    return sorted(path for folder in ("include", "src", "tools") for pattern in patterns
                  for path in (root / folder).rglob(pattern)
                  if not re.search(OF_CUDA, path.read_text(), re.MULTILINE))


def includes(path):
    """What a file includes whatever is defined: paths of the project's headers, names of the others."""
    depth, found = 0, []
    for line in path.read_text().splitlines():
        depth += bool(re.match(r"#\s*if", line)) - bool(re.match(r"#\s*endif", line))
        if depth == 0 and (name := re.match(r'#include (["<])(.*)[">]', line)):
            places = [path.parent / name[2], *(root / folder / name[2] for folder in FOLDERS)] if name[1] == '"' else []
            found.append(next((place.resolve() for place in places if place.exists()), name[2]))
    return found


reached = {}


def reaches(path):
    """All that a header includes, and what that includes."""
    if path not in reached:
        reached[path] = set()  # also ends a circle
        for name in includes(path):
            reached[path] |= {name} | (reaches(name) if isinstance(name, pathlib.Path) else set())
    return reached[path]


def own_header(source):
    first = next(iter(includes(source)), None)
    return first if isinstance(first, pathlib.Path) else None


def choose_precompiled(units):
    """{unit: the header whose precompiled form it may use, if any}, for the headers that save most."""
    chosen, brings = {}, collections.defaultdict(int)
    candidates = {header: len(reaches(header)) + 1 for first in units.values() for header in reaches(first)
                  if isinstance(header, pathlib.Path)}
    for _ in range(MOST_PRECOMPILED):
        best = max(candidates, default=None, key=lambda header: sum(
            max(0, candidates[header] - brings[unit]) for unit, first in units.items() if header in reaches(first)))
        for unit, first in units.items():
            if best in reaches(first) and candidates[best] > brings[unit]:
                chosen[unit], brings[unit] = best, candidates[best]
    return chosen


def compile_alone(path, *more):
    return path, subprocess.run([*compiler, *FLAGS, *more, str(path)], capture_output=True, text=True)


sources = files("*.cpp")
shown = {own_header(source) for source in sources}  # by a source that includes it before all else
headers = [path for path in files("*.hpp") if path not in shown]
precompiled = choose_precompiled({**{source: own_header(source) or source for source in sources},
                                  **{header: header for header in headers}})
faults = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool, tempfile.TemporaryDirectory() as folder:
    made = {header: f"{folder}/{number}.pch" for number, header in enumerate(sorted(set(precompiled.values())))}
    # With what it has of templates instantiated, which each of its users would do anew. (An option of clang's.)
    once = ["-fpch-instantiate-templates"] if "clang" in compiler[0] else []
    jobs = [pool.submit(compile_alone, header, *once, "-x", "c++-header", "-o", made[header]) for header in made]
    concurrent.futures.wait(jobs)
    made = {job.result()[0]: made[job.result()[0]] for job in jobs if job.result()[1].returncode == 0}
    for path in [*sources, *headers]:
        use = made.get(precompiled.get(path))
        jobs.append(pool.submit(compile_alone, path, "-fsyntax-only", *(["-include-pch", use] if use else []), "-x", "c++"))
    for job in jobs:
        path, result = job.result()
        if result.returncode != 0:
            faults += 1
            print(f"{path} does not compile by itself:\n{result.stderr.strip()}")
print(f"{len(sources)} sources and {len(headers)} headers, {faults} of which do not compile by themselves")
sys.exit(faults != 0)
