#!/usr/bin/env python3
"""The corpora of the fuzz harnesses: one file each, with a line NAME BASE64 for every input.

    tests/fuzz/corpus.py unpack FILE FOLDER    makes the folder, with a file for each line
    tests/fuzz/corpus.py add FILE INPUT...     adds inputs, such as those that libFuzzer has found, under their SHA-1
"""
import base64
import hashlib
import pathlib
import shutil
import sys


def read(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: base64.b64decode(text) for name, _, text in (line.partition(" ") for line in lines)}


def main():
    command, path, *rest = sys.argv[1:]
    inputs = read(pathlib.Path(path))
    if command == "unpack":
        folder = pathlib.Path(rest[0])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in inputs.items():
            (folder / name).write_bytes(content)
    elif command == "add":
        for name in rest:
            content = pathlib.Path(name).read_bytes()
            if content not in inputs.values():
                inputs[hashlib.sha1(content).hexdigest()] = content
        lines = [f"{name} {base64.b64encode(content).decode()}".rstrip() for name, content in sorted(inputs.items())]
        pathlib.Path(path).write_text("\n".join(lines) + "\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
