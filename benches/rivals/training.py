"""Whole jobs: ours by launch_shm and worker_shm, PyTorch's by torch_train.py, TensorFlow's by tf_train.py, all on the same
IDX files."""

import json
import os
import pathlib
import random
import subprocess
import time

import measuring
from measuring import Failed

FOLDER = pathlib.Path(__file__).resolve().parent
IMAGES, TEST_IMAGES, PIXELS, CLASSES, BATCH = 60_000, 10_000, 784, 10, 100
MODES = {"async": ["--mode", "async"], "ssp": ["--mode", "ssp", "--staleness", "4"], "sync": ["--mode", "sync"]}


def write_idx(path, shape, values):
    path.write_bytes(bytes([0, 0, 8, len(shape)]) + b"".join(extent.to_bytes(4, "big") for extent in shape) + values)


def make_data(folder):
    """Random images of MNIST's shape, a fifth of whose pixels are not black."""
    folder.mkdir()
    draw = random.Random(1)
    grey = bytes(5 * (value - 205) if value > 205 else 0 for value in range(256))
    for name, count in (("train", IMAGES), ("t10k", TEST_IMAGES)):
        images = draw.randbytes(count * PIXELS).translate(grey)
        write_idx(folder / f"{name}-images-idx3-ubyte", (count, 28, 28), images)
        labels = bytes(value % CLASSES for value in draw.randbytes(count))
        write_idx(folder / f"{name}-labels-idx1-ubyte", (count,), labels)


def processor_seconds(pid):
    """That a live process has used so far; None when it is gone."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9
    except (OSError, ValueError, IndexError):
        pass
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def find_child(parent, name):
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            head, rest = stat.read_text().rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == parent and head.split("(", 1)[1] == name:
            return int(stat.parent.name)
    return None


class Training:
    def __init__(self, options, pythons, folder):
        self.options, self.pythons = options, pythons
        self.tools, self.own_data = options.build / "tools", folder / "images"
        self.rate = "0.1" if options.mnist else "0.01"
        self.number = 0

    @property
    def data(self):
        if self.options.mnist:
            return self.options.mnist
        if not self.own_data.exists():
            make_data(self.own_data)
        return self.own_data

    def measure(self, whose, what):
        if whose != "train":
            program = FOLDER / {"torch": "torch_train.py", "tensorflow": "tf_train.py"}[whose]
            arguments = [what, self.data, self.options.gradients, BATCH, self.rate]
            return json.loads(measuring.run([self.pythons[whose], program, *arguments], 300))
        if what.startswith("standalone"):
            return self.alone(2 if what.endswith("_twice") else 1, self.options.gradients)
        return self.job(what, 2, self.options.gradients)

    def _command(self, program, steps):
        return [
            self.tools / program,
            "--model",
            "mlp",
            "--data",
            self.data,
            "--batch",
            BATCH,
            "--optimizer",
            "sgd",
            "--lr",
            self.rate,
            "--steps",
            steps,
            "--json",
        ]

    def _start(self, *arguments, **options):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PS_SHM_")}
        return measuring.start([*arguments], env=environment, stderr=subprocess.DEVNULL, **options)

    def alone(self, processes, gradients):
        """Workers without a server, at the same time; `gradients` of all of them together."""
        started = [
            self._start(*self._command("worker_shm", gradients // processes), "--standalone")
            for _ in range(processes)
        ]
        try:
            found = [json.loads(measuring.finish(process, 300)) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    measuring.end(process)
        return {"gradients/s": sum(result["steps_per_second"] for result in found)}

    def job(self, mode, workers, gradients):
        """Workers of one job; `gradients` of all of them together."""
        self.number += 1
        job = f"speed-{os.getpid()}-{self.number}"
        per_step = workers if mode == "sync" else 1
        launched = self._start(
            *self._command("launch_shm", gradients // per_step),
            "--job",
            job,
            "--workers",
            workers,
            *MODES[mode],
        )
        try:
            used, seconds = self._watch_server(launched)
            result = json.loads(measuring.finish(launched, 60))
        except Failed:
            subprocess.run(
                [self.tools / "inspect_shm", "rm", "--job", job], capture_output=True, stdin=subprocess.DEVNULL
            )
            raise
        return {
            "gradients/s": per_step * result["steps_per_second"],
            "accuracy": result["test_accuracy"],
            "ps_%": 100 * used / seconds,
        }

    @staticmethod
    def _watch_server(launched):
        """Processor time of the ps from its start to its end, and how long that was."""
        begin, pid, used, seen = time.monotonic(), None, 0.0, 0.0
        while launched.poll() is None and time.monotonic() - begin < 300:
            pid = pid or find_child(launched.pid, "ps_shm")
            now = processor_seconds(pid) if pid else None
            if now is not None:
                used, seen = now, time.monotonic() - begin
            # stdout has one object, which a pipe holds; so nobody has to read it meanwhile.
            time.sleep(0.02)
        if launched.poll() is None:
            measuring.end(launched)
            raise Failed("launch_shm did not end within 300 s")
        if not seen:
            raise Failed("launch_shm has started no ps_shm that could be watched")
        return used, seen
