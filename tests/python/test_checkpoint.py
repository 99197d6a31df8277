"""Checkpoints from Python: the files that the programs write and read."""
import os

import numpy as np
import pytest

import ps_shm
from ps_shm import checkpoint


def test_what_is_saved_is_loaded(worker, tmp_path):
    w = worker.variable("w", np.arange(6, dtype=np.float32).reshape(2, 3), rule="momentum")
    worker.variable("n", np.array([7], np.int64))
    w.push(np.ones((2, 3), np.float32))
    worker.step()
    folder = checkpoint.save(worker, tmp_path, loss=0.5)
    assert folder == str(tmp_path / "step-1")
    kept = checkpoint.load(folder)
    assert (kept.folder, kept.global_step, kept.loss, kept.examples) == (folder, 1, 0.5, [0])
    assert kept.settings["optimizer"] == "add"
    assert [(v.name, v.dtype, v.shape, v.updates, v.slots, v.is_point_in_time) for v in kept.variables] == [
        ("n", "int64", (1,), 0, [], True), ("w", "float32", (2, 3), 1, ["momentum"], True)]
    np.testing.assert_array_equal(kept["w"], w.pull())
    assert kept.read("w", slot="momentum").tolist() == [[1] * 3] * 2
    assert kept.state()["n"].tolist() == [7]
    out = np.empty((2, 3), np.float32)
    assert kept.read("w", out=out) is out and (out == kept["w"]).all()
    for wrong in (lambda: kept["v"], lambda: kept.read("w", slot="m")):
        with pytest.raises(KeyError):
            wrong()
    with pytest.raises(TypeError, match="float64"):
        kept.read("w", out=np.empty((2, 3)))


def test_the_newest_whole_one_is_found(worker, tmp_path, caplog):
    assert checkpoint.latest(tmp_path) is None
    worker.variable("w", np.ones(3, np.float32))
    first = checkpoint.save(worker.job, tmp_path)
    worker.step()
    second = checkpoint.save(worker, tmp_path)
    assert checkpoint.latest(tmp_path).folder == second
    path = os.path.join(second, "model.safetensors")
    damaged = bytearray(open(path, "rb").read())
    damaged[-1] ^= 1
    open(path, "wb").write(damaged)
    with pytest.raises(ps_shm.Error, match="not what was written"):
        checkpoint.load(second).verify()
    with pytest.raises(ps_shm.Error, match="not what was written"):
        ps_shm.Server(f"{worker.job}-restored", restore=second)
    assert checkpoint.latest(tmp_path).folder == first
    assert "skipped a checkpoint" in caplog.text
    with pytest.raises(ps_shm.Error, match="is not a valid checkpoint"):
        checkpoint.load(tmp_path)


def test_a_job_goes_on_from_one(job, tmp_path):
    def steps(worker, count):
        w = worker.variable("w", np.zeros(5000, np.float32))
        for _ in range(count):
            w.push(np.arange(5000, dtype=np.float32) - w.pull())
            worker.step()
        return w.pull()

    settings = {"mode": "sync", "optimizer": "adam", "lr": 0.1}
    with ps_shm.Server(job, **settings), ps_shm.Worker(job) as worker:
        expected = steps(worker, 20)
    with ps_shm.Server(job, **settings) as server, ps_shm.Worker(job) as worker:
        steps(worker, 10)
        folder = checkpoint.save(server, tmp_path)
    with ps_shm.Server(job, restore=folder, **settings), ps_shm.Worker(job) as worker:
        assert worker.global_step == 10
        np.testing.assert_array_equal(steps(worker, 10), expected)


def test_a_row_slot_has_a_number_for_each_row(worker, tmp_path):
    table = worker.variable("t", np.zeros((10, 4), np.float32), layout="inplace", rule="rowwise_adagrad")
    table.push_rows(np.array([3]), np.full((1, 4), 2, np.float32))
    kept = checkpoint.load(checkpoint.save(worker, tmp_path))
    slot = kept.variables[0].slots[-1]
    numbers = kept.read("t", slot=slot)
    assert numbers.shape == (10,) and numbers[3] == pytest.approx(4 + numbers[0])
