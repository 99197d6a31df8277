"""What is measured: modes, stragglers and models by their names on the command line, and the runs in their order."""
import dataclasses
import os
import pathlib
import random
import re

FASHION = "/usr/share/datasets/fashion-mnist"


class Unknown(Exception):
    """A name that names nothing; the text says what there is."""


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    label: str
    arguments: tuple
    first_steps: int  # of a calibration's first try: some hundredths of a second


def model(name):
    if name == "digits":
        return Model(
            name,
            "MLP on the embedded digits, batches of 32",
            ("--model", "mlp", "--data", "digits", "--lr", "0.01"),
            300,
        )
    if name == "linear":
        return Model(
            name,
            "linear model with 100 000 floats, batches of 1",
            ("--model", "softmax", "--data", "synthetic:10000x10", "--batch", "1", "--lr", "0.5"),
            200,
        )
    if name == "fashion-mnist":
        return Model(
            name,
            "MLP on Fashion-MNIST, batches of 100",
            ("--model", "mlp", "--data", "fashion-mnist", "--lr", "0.1"),
            20,
        )
    if pathlib.Path(name).is_dir():
        return Model(
            name,
            f"MLP on {pathlib.Path(name).name}, batches of 100",
            ("--model", "mlp", "--data", str(pathlib.Path(name).resolve()), "--lr", "0.1"),
            20,
        )
    raise Unknown(f"model '{name}': expected digits, linear, fashion-mnist or a folder with the files of MNIST")


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str
    family: str  # async, ssp, sync, backup
    bound: int = 0  # ssp: S; backup: how many gradients may be missing

    def arguments(self, workers):
        return {
            "async": ["--mode", "async"],
            "ssp": ["--mode", "ssp", "--staleness", str(self.bound)],
            "sync": ["--mode", "sync"],
            "backup": ["--mode", "sync", "--quorum", str(workers - self.bound)],
        }[self.family]

    def label(self, workers=None):
        gradients = f" ({workers} gradients a step)" if workers else ""
        quorum = f" (the first {workers - self.bound} of {workers} gradients)" if workers else ""
        return {
            "async": "async",
            "ssp": f"ssp, S = {self.bound}",
            "sync": "sync" + gradients,
            "backup": f"sync, {self.bound} backup" + quorum,
        }[self.family]

    def suits(self, workers):
        return self.family != "backup" or workers > self.bound

    def order(self):
        """Ascending staleness: sync first, async last."""
        return (["sync", "backup", "ssp", "async"].index(self.family), self.bound)


def mode(name):
    if name in ("async", "sync"):
        return Mode(name, name)
    found = re.fullmatch(r"(ssp|backup):(\d{1,6})", name)
    if not found or name == "backup:0":
        raise Unknown(f"mode '{name}': expected async, ssp:S, sync or backup:B (sync with B backup workers)")
    return Mode(name, found[1], int(found[2]))


@dataclasses.dataclass(frozen=True)
class Straggler:
    name: str
    label: str
    delay: str  # as --delay takes it, behind the rank
    of_all: bool = False

    def arguments(self, workers):
        if not self.delay:
            return []
        return ["--delay", f"{'all' if self.of_all else workers - 1}:{self.delay}"]


def straggler(name):
    if name == "none":
        return Straggler(name, "no straggler", "")
    if name == "random":
        return Straggler(name, "each step 10x slower with p = 0.1", "10x@0.1", True)
    if re.fullmatch(r"[1-9]\d*(\.\d+)?x(@0?\.\d+)?", name):
        return Straggler(name, f"one worker {name} slower", name)
    raise Unknown(f"straggler '{name}': expected none, 2x, 10x (or another factor) or random")


@dataclasses.dataclass(frozen=True)
class Run:
    model: Model
    workers: int
    mode: Mode
    straggler: Straggler
    seconds: float
    curve: int
    is_reference: bool = False

    def settings(self):
        """Everything that says what is run; two runs with the same are repetitions."""
        return {
            "model": self.model.name,
            "model_arguments": list(self.model.arguments),
            "workers": self.workers,
            "mode": self.mode.name,
            "straggler": self.straggler.name,
            "seconds": self.seconds,
            "curve": self.curve,
            "reference": self.is_reference,
        }

    def arguments(self, steps, seed):
        return [
            "--workers",
            str(self.workers),
            *self.mode.arguments(self.workers),
            *self.straggler.arguments(self.workers),
            *self.model.arguments,
            "--steps",
            str(steps),
            "--curve",
            str(self.curve),
            "--seed",
            str(seed),
            "--json",
        ]

    def title(self):
        what = (
            "reference" if self.is_reference else f"{self.workers} workers, {self.mode.label()}, {self.straggler.name}"
        )
        return f"{self.model.name}, {what}"


# What the options that are not given are, for each of --smoke, (nothing) and --full.
def presets(setting):
    cores = len(os.sched_getaffinity(0))
    usual = max(3, min(cores, 8))
    models = ["digits", "linear"]
    if setting == "smoke":
        return {
            "modes": ["async", "ssp:4", "sync", "backup:1"],
            "stragglers": ["none", "10x"],
            "models": ["digits"],
            "workers": [3],
            "repeats": 1,
            "seconds": 0.2,
            "curve": 20,
        }
    if setting == "short":
        return {
            "modes": ["async", "ssp:0", "ssp:4", "ssp:16", "sync", "backup:1"],
            "stragglers": ["none", "2x", "10x", "random"],
            "models": models,
            "workers": [usual],
            "repeats": 1,
            "seconds": 1.5,
            "curve": 40,
        }
    if pathlib.Path(FASHION).is_dir():
        models.append("fashion-mnist")
    return {
        "modes": ["async", "ssp:0", "ssp:1", "ssp:2", "ssp:4", "ssp:8", "ssp:16", "ssp:64", "sync", "backup:1"],
        "stragglers": ["none", "2x", "10x", "random"],
        "models": models,
        "workers": sorted({2, usual, min(2 * cores, 16)} - {1}),
        "repeats": 5,
        "seconds": 10.0,
        "curve": 100,
    }


def runs(models, workers, modes, stragglers, seconds, curve):
    """One repetition: each model's reference, and every combination. One worker alone, async, is plain SGD."""
    alone = Mode("async", "async")
    references = [Run(m, 1, alone, straggler("none"), seconds, curve, is_reference=True) for m in models]
    return references + [
        Run(m, n, mode_, s, seconds, curve)
        for m in models
        for n in workers
        for mode_ in modes
        for s in stragglers
        if mode_.suits(n)
    ]


def in_order(all_runs, repeats, seed):
    """(repetition, run): repetitions outermost, in each the runs at random, so that no setting has a quiet hour."""
    generator = random.Random(seed)
    for repetition in range(1, repeats + 1):
        shuffled = list(all_runs)
        generator.shuffle(shuffled)
        yield from ((repetition, run) for run in shuffled)
