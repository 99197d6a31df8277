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

    def has(self, mode_, straggler_):
        """Rows are updated in place: no sync, no staleness of each row; and they have no classes."""
        return self.name != "rows" or (mode_.family not in ("sync", "backup", "scale") and straggler_.sleeps != "own-data")


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
    digits = ("--model", "mlp", "--data", "digits")
    variants = {
        "digits-momentum": ("MLP on the embedded digits, momentum 0.9",
                            (*digits, "--optimizer", "momentum", "--momentum", "0.9", "--lr", "0.01")),
        "digits-adam": ("MLP on the embedded digits, Adam", (*digits, "--optimizer", "adam", "--lr", "0.001")),
        "logistic": ("logistic regression on the embedded digits",
                     ("--model", "softmax", "--data", "digits", "--lr", "0.1")),
        "rows": ("sparse logistic regression, rows in place",
                 ("--model", "logistic", "--data", "zipf:20000x20000", "--optimizer", "sgd", "--lr", "0.1")),
    }
    if name in variants:
        return Model(name, variants[name][0], variants[name][1], 300)
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
    raise Unknown(f"model '{name}': expected digits, {', '.join(variants)}, linear, fashion-mnist or a folder with the files of MNIST")


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str
    family: str  # async, clip, scale, drop, ssp, sync, backup
    bound: float = 0  # ssp: S; backup: how many gradients may be missing; clip: the norm; drop: R

    def arguments(self, workers):
        return {
            "async": ["--mode", "async"],
            "clip": ["--mode", "async", "--clip-norm", f"{self.bound:g}"],
            "scale": ["--mode", "async", "--lr-staleness"],
            "drop": ["--mode", "async", "--stale-limit", str(self.bound)],
            "ssp": ["--mode", "ssp", "--staleness", str(self.bound)],
            "sync": ["--mode", "sync"],
            "backup": ["--mode", "sync", "--quorum", str(workers - self.bound)],
        }[self.family]

    def label(self, workers=None):
        gradients = f" ({workers} gradients a step)" if workers else ""
        quorum = f" (the first {workers - self.bound} of {workers} gradients)" if workers else ""
        return {
            "async": "async",
            "clip": f"async, clip-norm {self.bound:g}",
            "scale": "async, lr-staleness",
            "drop": f"async, drop:{self.bound}",
            "ssp": f"ssp, S = {self.bound}",
            "sync": "sync" + gradients,
            "backup": f"sync, {self.bound} backup" + quorum,
        }[self.family]

    def suits(self, workers):
        return self.family != "backup" or workers > self.bound

    def order(self):
        """Ascending staleness: sync first, async last."""
        return (["sync", "backup", "ssp", "drop", "scale", "clip", "async"].index(self.family), self.bound)


def mode(name):
    if name in ("async", "sync", "scale"):
        return Mode(name, name)
    if found := re.fullmatch(r"clip:(\d+(\.\d+)?)", name):
        return Mode(name, "clip", float(found[1]))
    found = re.fullmatch(r"(ssp|backup|drop):(\d{1,6})", name)
    if not found or name in ("backup:0", "drop:0"):
        raise Unknown(
            f"mode '{name}': expected async, clip:X (clip-norm), scale (lr-staleness), drop:R (age limit), ssp:S, sync "
            "or backup:B (sync with B backup workers)"
        )
    return Mode(name, found[1], int(found[2]))


@dataclasses.dataclass(frozen=True)
class Straggler:
    name: str
    label: str
    delay: str  # as --delay takes it, behind the rank
    of_all: bool = False
    sleeps: str = ""  # workers that sleep in place of computing, so that delays and not cores decide; one of SLEEPS

    def arguments(self, workers):
        if self.sleeps == "spread":  # from 2 ms to 256 ms, by equal factors
            delays = [2 * 128 ** (rank / max(1, workers - 1)) for rank in range(workers)]
        elif self.sleeps:
            delays = [4] * (workers - 1) + [4 if self.sleeps == "1x" else 40]
        if self.sleeps:
            shards = ["--shard-data", "by-label"] if self.sleeps == "own-data" else []
            return [word for rank, ms in enumerate(delays) for word in ("--delay", f"{rank}:{ms:.3g}ms")] + shards
        if not self.delay:
            return []
        return ["--delay", f"{'all' if self.of_all else workers - 1}:{self.delay}"]


SLEEPS = {
    "1x": "equal workers",  # 4 ms
    "10x": "one worker 10x slower",  # 40 ms
    "spread": "widely different workers",  # 2 ms to 256 ms
    "own-data": "one worker 10x slower, own classes",
}


def straggler(name):
    if name.startswith("sleep-") and name[6:] in SLEEPS:
        return Straggler(name, SLEEPS[name[6:]], "", sleeps=name[6:])
    if name == "none":
        return Straggler(name, "no straggler", "")
    if name == "random":
        return Straggler(name, "each step 10x slower with p = 0.1", "10x@0.1", True)
    if re.fullmatch(r"[1-9]\d*(\.\d+)?x(@0?\.\d+)?", name):
        return Straggler(name, f"one worker {name} slower", name)
    raise Unknown(f"straggler '{name}': expected none, 2x, 10x (or another factor), random, or "
                  + ", ".join(f"sleep-{one}" for one in SLEEPS))


@dataclasses.dataclass(frozen=True)
class Run:
    model: Model
    workers: int
    mode: Mode
    straggler: Straggler
    seconds: float
    curve: int
    is_reference: bool = False
    rate: float | None = None  # the model's if there is none

    def settings(self):
        """Everything that says what is run; two runs with the same are repetitions."""
        return self.settings_of_speed() | ({} if self.rate is None else {"rate": self.rate})

    def settings_of_speed(self):
        """Of these, what its steps per second depend on."""
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
            *self.model_arguments(),
            "--steps",
            str(steps),
            "--curve",
            str(self.curve),
            "--seed",
            str(seed),
            "--json",
        ]

    def model_arguments(self):
        words = list(self.model.arguments)
        if self.rate is not None:
            words[words.index("--lr") + 1] = f"{self.rate:g}"
        return words

    def title(self):
        what = (
            "reference" if self.is_reference else f"{self.workers} workers, {self.mode.label()}, {self.straggler.name}"
        )
        what += "" if self.rate is None else f", rate {self.rate:g}"
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


def rates_of(texts):
    """The rates that --rates names: LO:HI is a grid of factors of 2."""
    rates = set()
    for text in texts:
        try:
            low, _, high = text.partition(":")
            low, high = float(low), float(high or low)
        except ValueError:
            low = high = 0
        if not 0 < low <= high < 1e6:
            raise Unknown(f"rate '{text}': expected a number above 0, or LO:HI")
        while low <= high * 1.001:
            rates.add(float(f"{low:.4g}"))
            low *= 2
    return sorted(rates)


def runs(models, workers, modes, stragglers, seconds, curve, rates=(None,)):
    """One repetition: each model's reference, and every combination. One worker alone, async, is plain SGD."""
    alone = Mode("async", "async")
    references = [Run(m, 1, alone, straggler("none"), seconds, curve, is_reference=True) for m in models]
    return references + [
        Run(m, n, mode_, s, seconds, curve, rate=rate)
        for m in models
        for n in workers
        for mode_ in modes
        for s in stragglers
        for rate in rates
        if mode_.suits(n) and m.has(mode_, s)
    ]


def in_order(all_runs, repeats, seed):
    """(repetition, run): repetitions outermost, in each the runs at random, so that no setting has a quiet hour."""
    generator = random.Random(seed)
    for repetition in range(1, repeats + 1):
        shuffled = list(all_runs)
        generator.shuffle(shuffled)
        yield from ((repetition, run) for run in shuffled)
