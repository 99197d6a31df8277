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
    for name, holds in (("torch", None), ("numpy", None), ("ps_shm.torch", False)):  # a box may lack theirs, not ours
        done = programs.run([sys.executable, "-c", f"import {name}"], 120, env)
        if done.code != 0:
            return report.add("PyTorch", holds, f"{sys.executable} cannot import {name}: {done.last_line()}")
    done = programs.run([sys.executable, PROGRAM, "check", "cuda", QUICK_MIB if quick else MIB], 400, env)
    whole_lines = done.out.split("\n")[:-1]  # it may have been ended within the last one
    try:
        report.data["pytorch"] = json.loads(whole_lines[-1])
    except (IndexError, ValueError):
        return report.add("PyTorch", False, f"exit code {done.code}: {done.last_line()}")
    judge(report, report.data["pytorch"], f"exit code {done.code}: {programs.Done(done.code, '', done.err).last_line()}")


def judge(report, found, end=""):
    """end: how the program has ended, which was in the first part that is not there."""
    if "skipped" in found:
        return report.add("PyTorch", None, found["skipped"])
    missing = [part for part in ("training", "sums", "publication") if part not in found]

    def add(part, name, holds, detail):
        of = found.get(part, {"error": f"not finished: {end}" if [part] == missing[:1] else "not reached"})
        report.add(f"PyTorch {found['torch']}: {name}", "error" not in of and holds(of), of.get("error") or detail(of))

    add("training", "a job trains as torch.optim does", lambda of: of["apart"] < 1e-4 < of["moved"],
        lambda of: f"{of['apart']:.1e} apart after a way of {of['moved']:.1e}")
    add("sums", "no update of two processes is lost", lambda of: of["values"] == [of["expected"]],
        lambda of: f"{of['values']}, expected {of['expected']}")
    add("publication", "another process takes whole generations", lambda of: True,
        lambda of: f"{of['bytes'] / 1e9:.2f} GB, published with {of['publish_GB/s']:.1f} GB/s (the first in "
                   f"{of['first_publish_s']:.1f} s), taken with {of['take_GB/s']:.1f} GB/s")
