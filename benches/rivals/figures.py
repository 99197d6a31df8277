"""Measures one figure, whoever's it is: figure_of(key) gives {counter: value}."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import measuring
from measuring import Failed
from rivals import training

FOLDER = pathlib.Path(__file__).resolve().parent
VENV = FOLDER.parent.parent / "build/rivals-venv"
FROM_PYPI = ["torch", "tensorflow-cpu", "ray", "scikit-learn", "vowpalwabbit", "numpy"]
PACKAGES = {
    "mpi": ["openmpi-bin", "libopenmpi-dev"],
    "torch": ["python3-torch"],
    "redis": ["redis-server", "redis-tools"],
}


OTHERS = {"mpi", "torch", "tensorflow", "redis", "train", "shared"}  # kinds of figures that benches/micro does not measure


class Missing(Exception):
    """What would measure a figure is not there; the message says what."""


def find_python(module):
    """The first Python that has it, that of the rivals' own environment before others."""
    for python in (VENV / "bin/python", sys.executable, "/usr/bin/python3"):
        if os.access(python, os.X_OK):
            done = subprocess.run(
                [python, "-c", f"import {module}, numpy"],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
            if done.returncode == 0:
                return str(python)
    return None


class Figures:
    def __init__(self, options, folder):
        """The folder is for data and sockets, and is not removed."""
        self.options, self.folder = options, folder
        self.micro = self._find_micro(options.build / "benches")
        self.names = {}
        if self.micro:
            self.names = {measuring.plain_name(name): name for name in measuring.list_benchmarks(self.micro)}
        self.context = {}
        self.pythons = {module: find_python(module) for module in ("torch", "tensorflow", "ray")}
        self.programs = options.build / "rivals"
        self.training = training.Training(options, self.pythons, folder)

    @staticmethod
    def _find_micro(folder):
        return next((path for path in (folder / "micro", folder / "micro/micro") if path.is_file()), None)

    def lacks(self, key):
        """Whether this is a case of a micro that does not have it."""
        return key.split("/")[0] not in OTHERS and key not in self.names

    def figure_of(self, key):
        kind, *rest = key.split("/")
        sizes = dict(word.split(":") for word in rest if ":" in word)
        if kind == "mpi":
            return self._mpi(rest[0], rest[1], sizes)
        if kind == "redis":
            return self._redis(rest[0])
        if kind in ("torch", "tensorflow", "train"):
            if kind != "train" and not self.pythons[kind]:
                raise Missing(f"not installed: {kind}")
            if rest[0] not in ("add", "allreduce", "adam"):
                return self.training.measure(kind, rest[-1])
            return json.loads(
                measuring.run(
                    [self.pythons["torch"], FOLDER / "torch_tensor.py", rest[0], sizes["floats"], self.options.seconds], 120
                )
            )
        if kind == "shared":
            return self._shared(rest[0], 4 * int(sizes["floats"]))
        return self._micro(key)

    def _shared(self, module, size):
        """A model that Python programs share as a whole."""
        if not self.pythons[module]:
            raise Missing(f"not installed: {module}")
        arguments = [module, size, min(1, self.options.seconds)]
        return json.loads(measuring.run([self.pythons[module], FOLDER / "shared_model.py", *arguments], 180))

    def _micro(self, key):
        if key not in self.names:
            raise Missing(f"{self.micro.name} has no such case" if self.micro else "there is no benches/micro")
        more = ["--seconds=0.02"] * self.options.quick + ["--pin"] * (self.options.bind == "core")
        figures, context = measuring.run_benchmark(self.micro, self.names[key], 120, more)
        self.context = context or self.context
        return figures

    def _mpi(self, what, window, sizes):
        if not shutil.which("mpirun") or not shutil.which("mpicxx"):
            raise Missing("not installed: Open MPI")
        source = "window" if what in ("accumulate", "get") else "collective"
        program = self._built(f"mpi_{source}")
        arguments = [what, sizes.get("floats", "1"), str(self.options.seconds)]
        if source == "window":
            arguments.append(window)
        # Nothing leaves the machine: ranks find each other and exchange their messages in shared memory alone.
        command = [
            "mpirun",
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            self.options.bind,
            "--mca",
            "btl",
            "self,vader",
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "oob_tcp_if_include",
            "lo",
            "-np",
            sizes["processes"],
        ]
        figures = json.loads(measuring.run([*command, program, *arguments], 120))
        if figures.get("lost_%"):
            raise Failed(f"{what}: {figures['lost_%']:.3g} % of the updates were lost")
        return figures

    def _built(self, name):
        program, source = self.programs / name, FOLDER / f"{name}.cpp"
        newest = max(path.stat().st_mtime for path in (source, FOLDER / "mpi_timing.hpp"))
        if not program.exists() or program.stat().st_mtime < newest:
            self.programs.mkdir(exist_ok=True)
            measuring.run(
                ["mpicxx", "-std=c++20", "-O3", "-march=native", "-DOMPI_SKIP_MPICXX", source, "-o", program], 120
            )
        return program

    def _redis(self, what):
        """By Redis's own benchmark in C, two clients on a Unix socket."""
        if not shutil.which("redis-server") or not shutil.which("redis-benchmark"):
            raise Missing("not installed: Redis")
        clients, size = 2, 400_000
        with tempfile.TemporaryDirectory(prefix="redis-", dir=self.folder) as folder:
            socket = f"{folder}/socket"
            server = measuring.start(
                [
                    "redis-server",
                    "--port",
                    "0",
                    "--unixsocket",
                    socket,
                    "--dir",
                    folder,
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                end = time.monotonic() + 10
                while not os.path.exists(socket):
                    if server.poll() is not None or time.monotonic() > end:
                        raise Failed("redis-server does not start")
                    time.sleep(0.01)
                client = ["redis-benchmark", "-s", socket, "-c", clients, "--csv"]
                if what == "incrbyfloat":
                    out = measuring.run(
                        [*client, "-n", int(100_000 * self.options.seconds), "INCRBYFLOAT", "x", "1.0"], 60
                    )
                else:
                    number = int(8_000 * self.options.seconds)
                    # SET first, or there would be nothing to get.
                    out = measuring.run([*client, "-n", number, "-d", size, "-t", "set"], 60)
                    if what == "get":
                        out = measuring.run([*client, "-n", number, "-d", size, "-t", "get"], 60)
            finally:
                measuring.end(server)
        rate = float(re.findall(r'^"[^"]*","([\d.]+)"', out, re.MULTILINE)[-1])
        return {"seconds": clients / rate, "GB/s": rate * size * 1e-9}
