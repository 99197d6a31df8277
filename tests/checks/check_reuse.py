#!/usr/bin/env python3
"""Each file has a licence and a copyright holder (REUSE.toml), and LICENSES/ has the text of each licence.

`reuse lint` checks it completely, where it is installed in a version that knows REUSE.toml (pip install reuse).

    tests/checks/check_reuse.py ROOT
"""
import pathlib
import re
import shutil
import subprocess
import sys

FIRST_VERSION = 4  # of reuse, that reads REUSE.toml


def complaints(root):
    text = (root / "REUSE.toml").read_text()
    named = set(re.findall(r'^SPDX-License-Identifier = "([^"]+)"$', text, re.M))
    texts = {path.stem for path in (root / "LICENSES").glob("*.txt")}
    yield from (f"LICENSES/{licence}.txt is missing" for licence in sorted(named - texts))
    yield from (f"LICENSES/{licence}.txt: REUSE.toml names no such licence" for licence in sorted(texts - named))
    if (root / "LICENSE").read_text() != (root / "LICENSES" / "Apache-2.0.txt").read_text():
        yield "LICENSES/Apache-2.0.txt differs from LICENSE"
    for path in re.findall(r'^path = "([^"]+)"$', text, re.M):
        if not any(root.glob(path)):
            yield f"REUSE.toml: no file matches {path}"


def has_reuse():
    if not shutil.which("reuse"):
        return False
    said = subprocess.run(["reuse", "--version"], capture_output=True, text=True).stdout
    version = re.search(r"(\d+)\.\d", said)
    return version is not None and int(version[1]) >= FIRST_VERSION


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = list(complaints(root))
    if has_reuse() and (root / ".git").exists():  # without git, it would read the build folders
        done = subprocess.run(["reuse", "--root", root, "lint", "--lines"], capture_output=True, text=True)
        found += done.stdout.splitlines() if done.returncode else []
    print(*(found or ["each file has a licence and a holder"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
