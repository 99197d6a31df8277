"""Checks that includes follow the table in docs/architecture.md, which lists what each module may include.

A public header belongs to the module that implements it: the one with a source of its name, or else the one of its
name. A file that includes the header includes that module. Headers that no module implements belong to `ps_shm`.

WALLS hold whatever the table says: the library includes nothing of the programs, and programs that do not train include
nothing of what trains, not through other headers, either.
"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])


def modules_of(page):
    """{module: the modules or headers that it may include besides itself}."""
    table = re.search(r"^\| module \| may include \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE)[1]
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    return {module: re.findall(r"`([^`]+)`", may) for names, may in rows for module in re.findall(r"`([^`]+)`", names)}


def is_in(path, module):
    """Whether a path belongs to a module: a folder, a header, or, with a star at its end, everything that starts with
    its name."""
    return path == module or path.startswith(module[:-1] if module.endswith("*") else module + "/")


def module_of(path):
    path = implemented_by.get(path, path)
    return max((module for module in modules if is_in(path, module)), key=len, default=None)


modules = modules_of((source / "docs" / "architecture.md").read_text())
roots = {"include": "", "src": "", "kernels": "kernels/", "tools": "tools/"}  # folder -> the prefix of its paths
files = {prefix + path.relative_to(source / root).as_posix(): path
         for root, prefix in roots.items() for path in sorted((source / root).rglob("*"))
         if path.suffix in (".hpp", ".cpp", ".cu", ".cuh")}
WALLS = {  # folder -> the folder of which its files include nothing, not through other headers, either
    "include": "tools", "src": "tools", "kernels": "tools",
    "tools/inspect_shm": "tools/train", "tools/ps_shm": "tools/train",
}
SETTINGS = ("bundle_spec", "errors", "job_config", "schedule", "version")  # values that all modules may include
IMPLEMENTED_ELSEWHERE = {"ps_shm/gpu.hpp": "device/", **{f"ps_shm/{name}.hpp": "ps_shm/" for name in SETTINGS}}
implemented_by = {}
for public in (name for name in files if name.startswith("ps_shm/")):
    stem = pathlib.Path(public).stem
    found = [name for name in files if re.fullmatch(rf"(?!ps_shm/|tools/)[a-z_/]+/{stem}\.cpp", name)
             and re.search(r"^#include (.*)", files[name].read_text(), re.MULTILINE)[1] == f'"{public}"']
    folder = f"{stem}/" if any(name.startswith(f"{stem}/") for name in files) else public
    implemented_by[public] = IMPLEMENTED_ELSEWHERE.get(public, found[0] if found else folder)
faults, includes, arrows, included_by = [], 0, {}, {}
for name, path in files.items():
    module = module_of(name)
    if module is None:
        faults.append(f"{path}: belongs to no module in docs/architecture.md")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{path}:{number}: {line}"
        if "<boost/interprocess" in line and not name.startswith("shm/base/open_file."):
            faults.append(f"{where}: only shm/base/open_file includes Boost.Interprocess")
        included = re.match(r'#include "([^"]+)"', line)
        if not included:
            continue
        includes += 1
        target = included[1] if included[1] in files else f"{name.split('/')[0]}/{included[1]}"
        if target not in files:
            faults.append(f"{where}: there is no such header")
            continue
        included_by.setdefault(path, set()).add(files[target])
        if module_of(target) != module:
            arrows.setdefault(module, set()).add(module_of(target))
            owned = implemented_by.get(target, target)
            if not any(is_in(target, allowed) and allowed != "ps_shm" or is_in(owned, allowed)
                       for allowed in modules[module]):
                faults.append(f"{where}: module {module} may include {', '.join(modules[module]) or 'nothing'}")


def reachable(start, arrows):
    found, open_ends = set(), [start]
    while open_ends:
        for target in arrows.get(open_ends.pop(), ()):
            if target not in found:
                found.add(target)
                open_ends.append(target)
    return found


faults += [f"module {module} includes itself through others" for module in arrows if module in reachable(module, arrows)]
for folder, beyond in WALLS.items():
    inside = [path for path in files.values() if path.is_relative_to(source / folder)]
    if not inside or not (source / beyond).is_dir():
        faults.append(f"{folder}, {beyond}: there is no such folder")
    for path in inside:
        faults += [f"{path}: includes {target}, and {folder} includes nothing of {beyond}"
                   for target in sorted(reachable(path, included_by)) if target.is_relative_to(source / beyond)]
print("\n".join(faults) or f"{includes} includes point the right way")
sys.exit(bool(faults))
