"""Compares the library with that of the last release (the newest tag v*) by abidiff: programs linked to that one must
still run with this one, unless the soname differs. usage: check_abi.py SOURCE; exits with 77 if there is nothing to
compare with."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
NAME = "libps_shm.so"
OPTIONS = ["-Dbuildtype=debug", "-Dtools=false", "-Dtests=false", "-Dbenches=false", "-Dcuda=disabled", "-Dwerror=false"]


def run(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)


def skip(reason):
    print(f"skip: {reason}")
    sys.exit(77)


def soname(path):
    return re.search(r"SONAME\s+(\S+)", run("objdump", "-p", path, check=True).stdout)[1]


def build(sources, folder):
    """Builds the library of these sources, with the debug information from which abidiff reads types."""
    for command in (["meson", "setup", folder, sources, *OPTIONS], ["ninja", "-C", folder, f"src/{NAME}"]):
        done = run(*command)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return folder / "src" / NAME


described = run("git", "-C", source, "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD")
if described.returncode:
    skip("there is no release to compare with")
if not shutil.which("abidiff"):
    skip("there is no abidiff (Debian: abigail-tools)")
tag = described.stdout.strip()
with tempfile.TemporaryDirectory() as place:
    place = pathlib.Path(place)
    released = place / "released"
    released.mkdir()
    archive = subprocess.run(["git", "-C", source, "archive", tag], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", released], check=True, input=archive)
    before, now = build(released, place / "before"), build(source, place / "now")
    if soname(before) != soname(now):
        skip(f"{tag} is {soname(before)}, this is {soname(now)}: no program is promised to run with both")
    done = run("abidiff", "--headers-dir1", released / "include", "--headers-dir2", source / "include", "--no-added-syms", before, now)
    print(done.stdout + done.stderr)
    # Bit 8 is a missing symbol, bit 4 another change, such as of a structure; 1 and 2 are errors of abidiff itself.
    sys.exit(f"programs linked to {tag} do not run with this library" if done.returncode & 12 else done.returncode)
