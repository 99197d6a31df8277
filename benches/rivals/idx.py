"""Reads IDX files, MNIST's format, plain or packed by gzip."""

import gzip
import sys

import numpy


def read_idx(folder, name):
    for path, opened in ((folder / name, open), (folder / (name + ".gz"), gzip.open)):
        if path.exists():
            with opened(path, "rb") as file:
                data = file.read()
            axes = data[3]
            shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
            return numpy.frombuffer(data, dtype=numpy.uint8, offset=4 + 4 * axes).reshape(shape)
    sys.exit(f"there is no {folder / name}")
