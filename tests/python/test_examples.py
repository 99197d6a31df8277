"""Each example and the measurement run and do what they describe; the type annotations are correct."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE

import ps_shm

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"


def run(name, *arguments):
    path = os.pathsep.join([os.environ["PS_SHM_TOOLS"], os.environ["PATH"]])
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *map(str, arguments)], env={**os.environ, "PATH": path},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_of_the_first_steps_prints_what_training_has_come_to(job):
    (text,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/start.md").read_text(), re.M | re.S)
    assert text.count('"example-py"') == 2
    done = subprocess.run([sys.executable, "-c", text.replace("example-py", job)], capture_output=True, text=True, timeout=PATIENCE)
    assert re.fullmatch(r"30 values, the first is [\d.e-]+ after 100 steps\n", done.stdout), done.stderr


def test_hogwild_trains_as_well_as_the_original_and_loses_nothing():
    line = r"examples/s, accuracy ([\d.]+), (-?\d+) of (\d+) updates lost"
    for processes in (2, 4) if os.environ.get("PS_SHM_TEST_FULL") else (2,):
        ours, lost, steps = re.search(line, run("mnist_hogwild.py", "--processes", processes)).groups()
        original = re.search(line, run("mnist_hogwild.py", "--processes", processes, "--original"))[1]
        assert (lost, steps) == ("0", str(processes * 5 * 90))
        assert float(ours) > 0.93 and float(ours) > float(original) - 0.03


def test_actors_never_see_mixed_weights_and_the_learner_learns_although_it_is_killed():
    out = run("actor_learner.py", "--actors", 4, "--games", 320, "--restarts", 2)
    line = r"^(\d+) steps a game after 320 games .*; 2 restarts of the learner; (\d+) updates of actors, none mixed$"
    length, updates = re.search(line, out, re.M).groups()
    assert int(length) > 50 and int(updates) > 30


def test_the_recommender_is_better_than_the_mean(tmp_path):
    error, mean = re.search(r"error ([\d.]+), of the mean ([\d.]+)", run("recommender.py", "--examples", 30000)).groups()
    assert float(error) < 0.8 * float(mean)
    (tmp_path / "u.data").write_text("".join(f"{u}\t{i}\t{1 + (u + i) % 5}\t0\n" for u in range(50) for i in range(40)))
    assert "200 rows" in run("recommender.py", "--ratings", tmp_path / "u.data", "--rows", 200, "--epochs", 1)


def test_three_ways_of_averaging_train():
    found = re.findall(r"^(sync|local SGD|EASGD) +accuracy ([\d.]+) after", run("local_sgd.py"), re.M)
    assert [way for way, _ in found] == ["sync", "local SGD", "EASGD"]
    assert all(float(accuracy) > 0.93 for _, accuracy in found), found


def test_logistic_regression_needs_numpy_alone():
    found = re.findall(r"worker \d: accuracy ([\d.]+), Staleness", run("logistic_regression.py"))
    assert len(found) == 2 and all(float(accuracy) > 0.95 for accuracy in found)


def test_jax_computes_the_gradients():
    pytest.importorskip("jax")
    found = re.findall(r"worker \d: accuracy ([\d.]+), Staleness", run("jax_regression.py"))
    assert len(found) == 2 and all(float(accuracy) > 0.95 for accuracy in found)


def test_an_actor_of_ray_that_is_killed_joins_again():
    pytest.importorskip("ray")
    out = run("ray_actors.py", "--steps", 300)
    rounds = [[float(a) for a in line.split()] for line in re.findall(r"^accuracy (.*)$", out, re.M)]
    assert len(rounds) == 2 and min(rounds[1]) > 0.95, out
    steps = re.search(r"^actor 0 was restarted; (\d+) steps$", out, re.M)[1]
    assert int(steps) >= 2 * 2 * 300


@pytest.mark.parametrize("name, settings", [("accelerate", ["momentum", "--lr", 0.05]), ("lightning", ["adam", "--lr", 0.003])])
def test_other_loops_train_with_two_workers(job, name, settings):
    pytest.importorskip(name)
    program = [sys.executable, EXAMPLES / f"{name}_digits.py"]
    if name == "accelerate":
        program = ["env", "-u", "RANK", "-u", "LOCAL_RANK", "-u", "WORLD_SIZE", "-u", "LOCAL_WORLD_SIZE", *program]
    launch = [os.path.join(os.environ["PS_SHM_TOOLS"], "launch_shm"), "--job", job, "--workers", 2, "--optimizer", *settings]
    done = subprocess.run([*map(str, launch), "--", *map(str, program)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"accuracy ([\d.]+)$", done.stdout, re.M)
    assert len(found) == 2 and all(float(accuracy) > 0.93 for accuracy in found), done.stdout


def test_the_measurement_measures():
    found = json.loads(run(ROOT / "benches" / "python.py", "--floats", 1000, "--json"))
    assert all(figure > 0 for figure in found["us_per_call"].values()) and len(found["us_per_call"]) == 8
    assert all(way["writes/s"] > 0 for name, way in found["weights"].items() if name != "floats")
    steps = json.loads(run(ROOT / "benches" / "python.py", "--steps", 20000, 40000, "--rules", "sgd", "adam", "--embeddings", 1000, "--batch", 4, "--json"))
    cases = [f"{floats} floats, {rule}" for floats in (20000, 40000) for rule in ("sgd", "adam")] + ["1000 rows, uniform", "1000 rows, skewed"]
    assert list(steps) == cases and all(figure > 0 for figures in steps.values() for figure in figures.values())
    assert all("ratio" in figures for figures in steps.values())


def test_ways_to_hand_weights_over_are_measured():
    found = json.loads(run(ROOT / "benches" / "publication", "--small", "--rounds", 1, "--readers", 1, 2, "--json"))
    assert len(found["readers"]["1"]) == len(found["readers"]["2"]) == 7
    assert all(figure > 0 for figures in found["readers"].values() for figure in figures.values())
    assert 2 <= found["alone"]["memory during an update, of the model"] < 2.2
    assert 1 <= found["alone"]["memory between updates, after `trim()`, of the model"] < 1.2


PROGRAM = """
import array
from typing import Optional

import numpy as np
import numpy.typing as npt
import torch

import ps_shm.torch

Floats = npt.NDArray[np.float32]


def use(worker: ps_shm.Worker, floats: Floats, tensor: torch.Tensor, ids: "npt.NDArray[np.int64]") -> Floats:
    w = worker.variable("w", floats, lr_scale=0.5)
    worker.variable("flat", array.array("f", [1.0]))
    worker.variable("filled", lambda out: out.fill(1.0), shape=(3,))
    made: "npt.NDArray[np.float32]" = w.pull()
    same: torch.Tensor = w.pull(tensor)
    w.push(2.0)
    w.push(same)
    w.push([1.0])  # type: ignore[arg-type]
    w.pull_rows(ids, floats).fill(0)
    bundle = worker.variables({"a": floats})
    both: dict[str, torch.Tensor] = bundle.pull({"a": tensor})
    bundle.push([None])
    bundle.push({"a": "no array"})  # type: ignore[dict-item]
    bundle.pull(bundle.pin(both)).given  # type: ignore[attr-defined]
    worker.set(lr=0.5, mode="ssp")
    worker.set(lr=[0.5])  # type: ignore[arg-type]
    loss: Optional[float] = ps_shm.torch.Optimizer(torch.nn.Linear(1, 1), worker, betas=(0.5, 0.9)).step(lambda: 0.5)
    print(made, loss)
    return w.pull(floats)
"""


def test_types_are_what_they_are_said_to_be(tmp_path):
    """Runs mypy in strict mode, except for PyTorch, much of which has no types."""
    (tmp_path / "program.py").write_text(PROGRAM)
    files = [os.path.dirname(ps_shm.__file__), *sorted(map(str, EXAMPLES.glob("*.py"))), str(tmp_path / "program.py")]
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "--implicit-reexport",
                           "--cache-dir", str(tmp_path), *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stdout
