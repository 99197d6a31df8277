"""Lets a build folder keep what was built in it when its checkout is copied.

    tools/build_record.py write SOURCE BUILD      after a build
    tools/build_record.py restore SOURCE BUILD    in the copy

ninja builds what is older than the files that it is made of. `cp -r` gives each file of the copy a new time, so that the
order of copying decides what looks older. The record, BUILD/record.json, has the time of each file, and hashes of the
sources. Files that are still the same get these times back; a source that is another one counts as changed now. The
record holds for the folder as that build has left it: it is refused where ninja has built something since.
"""
import hashlib
import json
import os
import pathlib
import sys


def files_below(folder, excluded=()):
    """Paths relative to the folder; neither links nor hidden folders."""
    for here, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in excluded and not name.startswith(".")]
        yield from (os.path.relpath(os.path.join(here, name), folder) for name in names
                    if not os.path.islink(os.path.join(here, name)))


def sources(source):
    return files_below(source, excluded=("build", "__pycache__"))


def digest(path):
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def built_by_ninja(build):
    """A hash of what ninja has built, and when. ninja reorders its log now and then, and drops older entries."""
    entries = {}
    for line in (build / ".ninja_log").read_text().splitlines()[1:]:
        fields = line.split("\t")  # start, end, time of the output, its name, hash of the command
        entries["".join(fields[3:4]) or line] = fields[2:]
    return hashlib.blake2b(json.dumps(entries, sort_keys=True).encode(), digest_size=16).hexdigest()


def write(source, build):
    record = {
        "log": built_by_ninja(build),
        "sources": {name: [digest(source / name), (source / name).stat().st_mtime_ns] for name in sources(source)},
        "built": {name: [(build / name).stat().st_size, (build / name).stat().st_mtime_ns] for name in files_below(build)},
    }
    new = build / "record.json.new"
    new.write_text(json.dumps(record))
    new.replace(build / "record.json")


def restore(source, build):
    record = json.loads((build / "record.json").read_text())
    if record["log"] != built_by_ninja(build):
        sys.exit("ninja has built something in it since tools/run has")
    for name in sources(source):
        known, nanoseconds = record["sources"].get(name, (None, None))
        if known is None or digest(source / name) != known:
            os.utime(source / name)
        else:
            os.utime(source / name, ns=(nanoseconds, nanoseconds))
    for name, (size, nanoseconds) in record["built"].items():
        path = build / name
        if path.is_file() and path.stat().st_size == size:
            os.utime(path, ns=(nanoseconds, nanoseconds))


if __name__ == "__main__":
    {"write": write, "restore": restore}[sys.argv[1]](*map(pathlib.Path, sys.argv[2:]))
