#!/usr/bin/env python3
"""Writes the handwritten digits as four IDX files, from scikit-learn's digits.csv.gz.

Usage: make_digits.py digits.csv.gz [OUTPUT_FOLDER]

The order is a Fisher-Yates shuffle driven by splitmix64, written out here so that the files come out the same bytes
under every Python version.
"""

import gzip
import pathlib
import struct
import sys

SEED = 1998
TRAIN_COUNT = 1437
SIDE = 8
MAX_PIXEL = 16
CLASSES = 10
MASK = (1 << 64) - 1


def splitmix64(seed):
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        yield mixed ^ (mixed >> 31)


def shuffle(items, seed):
    draws = splitmix64(seed)
    for last in range(len(items) - 1, 0, -1):
        bound = last + 1
        # Draws above the largest multiple of the bound are thrown away: no index is favoured.
        draw = next(d for d in draws if d < (1 << 64) // bound * bound)
        other = draw % bound
        items[last], items[other] = items[other], items[last]


def read_examples(path):
    examples = []
    with gzip.open(path, "rt", encoding="ascii") as lines:
        for number, line in enumerate(lines, 1):
            *pixels, label = (int(float(field)) for field in line.split(","))
            if len(pixels) != SIDE * SIDE or not all(0 <= p <= MAX_PIXEL for p in pixels):
                sys.exit(f"{path}: line {number}: expected {SIDE * SIDE} pixels of 0..{MAX_PIXEL}")
            if not 0 <= label < CLASSES:
                sys.exit(f"{path}: line {number}: label {label} is not in 0..{CLASSES - 1}")
            examples.append((bytes(pixels), label))
    return examples


def write_split(folder, name, examples):
    images = struct.pack(">IIII", 0x00000803, len(examples), SIDE, SIDE) + b"".join(pixels for pixels, _ in examples)
    labels = struct.pack(">II", 0x00000801, len(examples)) + bytes(label for _, label in examples)
    (folder / f"digits-{name}-images.idx3-ubyte").write_bytes(images)
    (folder / f"digits-{name}-labels.idx1-ubyte").write_bytes(labels)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: make_digits.py digits.csv.gz [OUTPUT_FOLDER]")
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else ".")
    examples = read_examples(sys.argv[1])
    if len(examples) != 1797:
        sys.exit(f"{sys.argv[1]}: {len(examples)} examples, expected 1797")
    shuffle(examples, SEED)
    write_split(folder, "train", examples[:TRAIN_COUNT])
    write_split(folder, "test", examples[TRAIN_COUNT:])


if __name__ == "__main__":
    main()
