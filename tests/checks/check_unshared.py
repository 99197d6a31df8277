"""Sources that are compiled once, for programs with and without fault points, know of none: no header that they include
depends on PS_SHM_FAULT_POINTS. Otherwise one program would have two definitions of a class or a function.

    check_unshared.py ROOT SOURCE...
"""
import pathlib
import re
import sys

root, sources = pathlib.Path(sys.argv[1]).resolve(), [pathlib.Path(name).resolve() for name in sys.argv[2:]]
depends = {path for folder in ("src", "include") for path in (root / folder).rglob("*.hpp")
           if re.search(r"^#.*PS_SHM_FAULT_POINTS", path.read_text(), re.MULTILINE)}


def included(path):
    for name in re.findall(r'^\s*#\s*include "(.*)"', path.read_text(), re.MULTILINE):
        places = [folder / name for folder in (path.parent, root / "src", root / "include", root)]
        if found := next((place.resolve() for place in places if place.exists()), None):
            yield found


wrong = []
for source in sources:
    way = {source: None}  # how each file is reached
    todo = [source]
    while todo:
        path = todo.pop()
        if path in depends:
            steps = []
            while path:
                steps.append(str(path.relative_to(root)))
                path = way[path]
            wrong.append(f"{' <- '.join(steps)}: list the source among cold_sources in src/meson.build")
            break
        for header in included(path):
            if header not in way:
                way[header] = path
                todo.append(header)
if not depends or not sources:
    wrong.append("there is nothing to check")
print("\n".join(wrong) or f"{len(sources)} sources, none of which has a fault point")
sys.exit(bool(wrong))
