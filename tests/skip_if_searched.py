#!/usr/bin/env python3
"""Runs a search with a deterministic result, unless it has passed with the same content before.

    tests/skip_if_searched.py [--notes NOTES] FILE... -- COMMAND...

The content is that of the files, of the programs and scripts in the command, its words, and the variables that searches
go by. A FILE may be a folder, for all files below it, or a program on the PATH. What has passed is noted in the folder
PS_SHM_TEST_EXPLORED, which the build sets. With PS_SHM_TEST_FULL, or without that folder, the command runs in any case.

NOTES is a file of the repository with what has passed elsewhere, for searches that depend on nothing but the repository's
own files: a line for each, with the hash of the FILEs that lie beside NOTES, of the scripts, and of the command's other
words; comments of a model do not count. With PS_SHM_TEST_RECORD a search that passes is noted there, too.
"""
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time


def contents(word):
    """The bytes of a file, of all files of a folder, or of a program; empty for any other word."""
    path = pathlib.Path(shutil.which(word) or word)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            yield file.read_bytes()


def without_comments(file):
    """The bytes of a model without its comments; those of another file, which may have text that looks like a comment,
    unchanged."""
    return re.sub(rb"/\*.*?\*/", b"", file.read_bytes(), flags=re.DOTALL) if file.suffix == ".pml" else file.read_bytes()


def key_of(files, command):
    known = {name: value for name, value in os.environ.items()
             if name in ("CC", "CXX") or name.startswith("PS_SHM_") and name != "PS_SHM_TEST_EXPLORED"}
    key = hashlib.sha256(repr(sorted(known.items())).encode())
    for word in [__file__, *files, "--", *command, *os.environ.get("CC", "").split()[:1]]:
        for content in list(contents(word)) or [word.encode()]:  # the location of a file does not matter
            key.update(hashlib.sha256(content).digest())
    return key.hexdigest()


class Notes:
    """The lines HASH NAME DATE of a file of the repository."""

    def __init__(self, path, files, command):
        self.path = pathlib.Path(path).resolve()
        key, names = hashlib.sha256(), []
        for word in [*files, *command]:
            file = pathlib.Path(word)
            if file.is_file() and file.resolve().is_relative_to(self.path.parent):
                key.update(hashlib.sha256(without_comments(file)).digest())
                names.append(file.stem)
            elif word in command and not os.access(word, os.X_OK):
                key.update(word.encode())
        self.key, self.name = key.hexdigest()[:32], names[0]

    def lines(self):
        return self.path.read_text().splitlines() if self.path.exists() else []

    def found(self):
        """The date on which it passed, or None."""
        return next((line.split()[2] for line in self.lines() if line.split()[:1] == [self.key]), None)

    def add(self):
        with open(__file__) as lock:  # several searches may end at the same time
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = [line for line in self.lines() if line.split()[1:2] != [self.name]]
            self.path.write_text("\n".join(sorted([*lines, f"{self.key} {self.name} {time.strftime('%Y-%m-%d')}"])) + "\n")


def main():
    at = sys.argv.index("--")
    files, command = sys.argv[1:at], sys.argv[at + 1:]
    notes = Notes(files[1], files[2:], command) if files[0] == "--notes" else None
    files = files[2:] if notes else files
    if notes and notes.found() and not os.environ.get("PS_SHM_TEST_FULL") and not os.environ.get("PS_SHM_TEST_RECORD"):
        print(f"explored before, with the same content: {notes.path.name} says that it passed on {notes.found()}; "
              "PS_SHM_TEST_FULL=1 explores it anew")
        return 0
    folder = os.environ.get("PS_SHM_TEST_EXPLORED")
    passed = None
    if folder is not None and not os.environ.get("PS_SHM_TEST_FULL"):
        passed = pathlib.Path(folder) / key_of(files, command)
        if passed.exists():
            print(f"explored before, with the same content: {passed.read_text()}; PS_SHM_TEST_FULL=1 explores it anew")
            return 0
    begin = time.monotonic()
    code = subprocess.run(command).returncode
    if code == 0 and passed is not None:
        passed.parent.mkdir(parents=True, exist_ok=True)
        new = passed.with_suffix(f".{os.getpid()}")
        new.write_text(f"it passed on {time.strftime('%Y-%m-%d at %H:%M:%S')}, in {time.monotonic() - begin:.0f} s")
        new.replace(passed)
    if code == 0 and notes and os.environ.get("PS_SHM_TEST_RECORD"):
        notes.add()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
