"""Checks that each source of the library and the programs compiles by itself, and each header.

Builds that compile several sources together, or with a precompiled header, hide a missing include. This compiles each
alone, without generating code.

    check_sources.py ROOT COMPILER...
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unknown-warning-option",
         "-Wno-c99-extensions", "-Wno-pragma-once-outside-header",
         f'-DPS_SHM_DATA_DIR="{root}/tools/data"', "-DPS_SHM_ARCHIVE", *(f"-I{root / folder}" for folder in ("include", "src", "tools", "."))]
OF_CUDA = r"^#include <(cuda|cublas)"  # nvcc's headers are not on every machine; a build with it compiles these


def files(*patterns):
    return sorted(path for folder in ("include", "src", "tools") for pattern in patterns
                  for path in (root / folder).rglob(pattern))


def first_include(path):
    found = re.search(r'^#include (["<])(.*)[">]', path.read_text(), re.MULTILINE)
    return found[2] if found and found[1] == '"' else None


def compile_alone(path):
    return path, subprocess.run([*compiler, *FLAGS, "-x", "c++", str(path)], capture_output=True, text=True)


sources = [path for path in files("*.cpp") if not re.search(OF_CUDA, path.read_text(), re.MULTILINE)]
shown = {(folder / name).resolve() for source in sources if (name := first_include(source))
         for folder in (root / "include", root / "src", root / "tools")}  # by a source that includes it before all else
headers = [path for path in files("*.hpp") if path.resolve() not in shown
           and not re.search(OF_CUDA, path.read_text(), re.MULTILINE)]
faults = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for path, result in pool.map(compile_alone, [*sources, *headers]):
        if result.returncode != 0:
            faults += 1
            print(f"{path} does not compile by itself:\n{result.stderr.strip()}")
print(f"{len(sources)} sources and {len(headers)} headers, {faults} of which do not compile by themselves")
sys.exit(faults != 0)
