"""The Python package with the PyTorch of this Python, on its GPU: runs pytorch.py, and judges what that says."""
import json
import os
import pathlib
import sys

import programs

PROGRAM = pathlib.Path(__file__).with_name("pytorch.py")
MIB, QUICK_MIB = 1024, 64  # of the model that is published


def check(report, build, quick):
    packages = build / "python"
    if not packages.exists():
        return report.add("PyTorch", None, "the Python package is not built")
    env = {"PYTHONPATH": ":".join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))}
    for name in ("torch", "ps_shm"):
        done = programs.run([sys.executable, "-c", f"import {name}"], 120, env)
        if done.code != 0:
            return report.add("PyTorch", None, f"{sys.executable} cannot import {name}: {done.last_line()}")
    done = programs.run([sys.executable, PROGRAM, "check", "cuda", QUICK_MIB if quick else MIB], 400, env)
    try:
        report.data["pytorch"] = json.loads(done.out)
    except ValueError:
        return report.add("PyTorch", False, f"exit code {done.code}: {done.last_line()}")
    judge(report, report.data["pytorch"])


def judge(report, found):
    if "skipped" in found:
        return report.add("PyTorch", None, found["skipped"])

    def add(part, name, holds, detail):
        of = found[part]
        report.add(f"PyTorch {found['torch']}: {name}", "error" not in of and holds(of), of.get("error") or detail(of))

    add("training", "a job trains as torch.optim does", lambda of: of["apart"] < 1e-4 < of["moved"],
        lambda of: f"{of['apart']:.1e} apart after a way of {of['moved']:.1e}")
    add("sums", "no update of two processes is lost", lambda of: of["values"] == [of["expected"]],
        lambda of: f"{of['values']}, expected {of['expected']}")
    add("publication", "another process takes whole generations", lambda of: True,
        lambda of: f"{of['bytes'] / 1e9:.2f} GB, published with {of['publish_GB/s']:.1f} GB/s (the first in "
                   f"{of['first_publish_s']:.1f} s), taken with {of['take_GB/s']:.1f} GB/s")
