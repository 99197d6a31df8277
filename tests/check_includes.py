"""Includes point the way that docs/architecture.md says: its table names what each room may include."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])


def rooms_of(page):
    """Room -> what it may include besides itself: rooms, or single headers."""
    table = re.search(r"^\| room \| may include \|\n\|[-|]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE)[1]
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    return {room: re.findall(r"`([^`]+)`", may) for names, may in rows for room in re.findall(r"`([^`]+)`", names)}


def is_in(path, room):
    """A room is a folder, a header, or with a star all that begins so."""
    return path == room or path.startswith(room[:-1] if room.endswith("*") else room + "/")


def room_of(path):
    return max((room for room in rooms if is_in(path, room)), key=len, default=None)


rooms = rooms_of((source / "docs" / "architecture.md").read_text())
roots = {"include": "", "src": "", "kernels": "kernels/", "tools": "tools/"}  # folder -> what its paths begin with
files = {prefix + path.relative_to(source / root).as_posix(): path
         for root, prefix in roots.items() for path in sorted((source / root).rglob("*"))
         if path.suffix in (".hpp", ".cpp", ".cu", ".cuh")}
faults, includes = [], 0
for name, path in files.items():
    room = room_of(name)
    if room is None:
        faults.append(f"{path}: docs/architecture.md has no room for it")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{path}:{number}: {line}"
        if "<boost/interprocess" in line and not name.startswith("shm/open_file."):
            faults.append(f"{where}: only shm/open_file includes Boost.Interprocess")
        included = re.match(r'#include "([^"]+)"', line)
        if not included:
            continue
        includes += 1
        target = included[1] if included[1] in files else f"{name.split('/')[0]}/{included[1]}"
        if target not in files:
            faults.append(f"{where}: there is no such header")
        elif room_of(target) != room and not any(is_in(target, allowed) for allowed in rooms[room]):
            faults.append(f"{where}: room {room} may include {', '.join(rooms[room]) or 'nothing'}")
print("\n".join(faults) or f"{includes} includes point the right way")
sys.exit(bool(faults))
