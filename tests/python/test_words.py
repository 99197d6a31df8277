"""The words of the package: what names, types and settings may be given as, and what it says of those that do not exist."""
import inspect
import json
import os
import pathlib
import pickle
import re
import subprocess
import warnings

import numpy as np
import pytest

import ps_shm
from boxes import TOOLS
from conftest import PATIENCE


def test_a_name_that_does_not_exist_is_a_key_error_that_lists_those_that_do(worker, tmp_path):
    weights = worker.variables({"weights": np.ones(3, np.float32), "bias": np.ones(1, np.float32)})
    view = ps_shm.View(worker.job)
    found = ps_shm.checkpoint.load(ps_shm.checkpoint.save(worker.job, tmp_path))
    with view.snapshot() as snapshot, \
            ps_shm.Publisher(worker.job + "-p", {"weights": np.ones(3, np.float32)}) as publisher, \
            ps_shm.Subscriber(worker.job + "-p") as subscriber:
        publisher.publish({"weights": np.ones(3, np.float32)})
        generation = subscriber.read()
        for look_up in (lambda: view.values("weihgts"), lambda: snapshot.copy("weihgts", np.ones(3, np.float32)),
                        lambda: snapshot.is_point_in_time("weihgts"), lambda: found["weihgts"],
                        lambda: weights["weihgts"], lambda: generation["weihgts"],
                        lambda: worker.variable("weihgts", wait=0.001)):
            with pytest.raises(ps_shm.NotFound, match="weihgts.* weights.*; did you mean weights\\?$") as caught:
                look_up()
            assert isinstance(caught.value, KeyError) and isinstance(caught.value, ps_shm.Error)
            assert caught.value.code is ps_shm.ErrorCode.NOT_FOUND and "'weihgts'" in str(caught.value)
        del generation, look_up, caught
    for look_up, text in ((lambda: found.read("weights", slot="m"), "no slot 'm'; it has none"),
                          (lambda: found.read_table("items"), "no table 'items'; it has none"),
                          (lambda: view.table_rows("items"), "no table 'items': .* has none"),
                          (lambda: ps_shm.View(worker.job + "-no"), "there is no job"),
                          (lambda: ps_shm.checkpoint.load(tmp_path / "no"), "no")):
        with pytest.raises(ps_shm.Error, match=text):
            look_up()
    with pytest.raises(ps_shm.NotFound) as caught:
        view.values("no")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert copied.code is caught.value.code and str(copied) == str(caught.value)


def test_a_dtype_is_a_name_or_one_of_numpy_or_pytorch(worker):
    for i, dtype in enumerate(("int32", np.int32, np.dtype("int32"), np.dtype("int32").type)):
        assert worker.variable(f"n{i}", shape=2, dtype=dtype).pull().dtype == np.int32
    torch = pytest.importorskip("torch")
    assert worker.variable("h", shape=(2,), dtype=torch.bfloat16).dtype == "bfloat16"
    assert worker.table("t", 2, 64, dtype=torch.bfloat16).name == "t"
    for dtype, error, text in ((3.5, TypeError, "dtype is a float; pass a name"), ("float33", ValueError, "is none of"),
                               (np.complex64, ValueError, "'complex64' is none of")):
        with pytest.raises(error, match=text):
            worker.variable("w", shape=2, dtype=dtype)


def test_a_shape_is_a_number_or_several(worker):
    for i, (shape, expected) in enumerate(((3, (3,)), (np.int64(3), (3,)), ([2, 3], (2, 3)), ((), ()))):
        assert worker.variable(f"v{i}", shape=shape).pull().shape == expected
    for shape, error, text in ((2.5, TypeError, "variable 'w': the shape is a float; pass an int or a tuple of ints"),
                               ((2, "3"), TypeError, "an extent that is a str"), (-1, ValueError, "the extent -1"),
                               ("23", TypeError, "the shape is a str")):
        with pytest.raises(error, match=text):
            worker.variable("w", shape=shape)


def test_a_float64_array_as_the_first_values_of_a_variable_warns(worker):
    with pytest.warns(UserWarning, match="'w' is of float64, which takes no gradients; pass float32"):
        worker.variable("w", np.ones(3))
    with pytest.warns(UserWarning, match="'v' is of float64"):
        worker.variables({"v": np.ones(3)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker.variable("w2", np.ones(3), dtype="float64")
        worker.variable("w3", np.ones(3, np.float32))
        worker.variable("w4", np.arange(3))
        worker.variables({"v2": np.ones(3)}, rule="add")
        with pytest.raises(UserWarning):
            worker.variable("w5", np.ones(3))


def test_a_view_can_be_closed_and_used_in_with(worker):
    worker.variable("w", np.ones(3, np.float32))
    with ps_shm.View(worker.job) as view:
        snapshot = view.snapshot()
        assert view.values("w").tolist() == [1, 1, 1]
    for use in (lambda: view.global_step, lambda: view.values("w"), lambda: view.workers(), lambda: view.state()):
        with pytest.raises(ps_shm.Error, match=f"the view of job '{worker.job}' is closed") as caught:
            use()
        assert caught.value.code is ps_shm.ErrorCode.INVALID_STATE
    view.close()
    snapshot.release()
    with ps_shm.View(worker.job) as other, other.snapshot(wait=0):
        pass


def test_a_worker_knows_how_many_workers_there_are(job):
    with ps_shm.Server(job, workers=3), ps_shm.Worker(job) as worker:
        assert worker.workers == 3


def test_learning_rate_is_lr(job):
    with pytest.raises(TypeError, match="there is no setting 'learning_rate'; did you mean lr\\?; what there is: "):
        ps_shm.Server(job, learning_rate=0.1)


def fields_of(header, struct):
    """The names of the members of a struct in include/ps_shm."""
    text = (pathlib.Path(os.environ["PS_SHM_SOURCE"]) / "include/ps_shm" / header).read_text()
    body = re.sub(r"//.*", "", re.search(rf"struct {struct} {{\n(.*?)\n}};", text, re.S).group(1))
    return {re.split(r"[={]", member)[0].split()[-1] for member in body.split(";") if member.strip() and "(" not in member}


def parameters_of(call):
    """The names of the parameters of a function of the binding."""
    (signature, *_), = call.__nb_signature__
    return set(re.findall(r"(\w+):", signature[signature.index("(") : signature.rindex("->")]))


def test_each_setting_of_variables_and_tables_has_one_word(worker):
    of_table, of_variable = fields_of("table_spec.hpp", "TableSpec"), fields_of("variable_spec.hpp", "VariableSpec")
    assert {"admit_after", "evict", "ttl", "max_rows"} <= of_table and {"shape", "layout", "lr_scale"} <= of_variable
    assert parameters_of(ps_shm.Worker.table) == of_table
    assert parameters_of(ps_shm.Worker.variable) == of_variable | {"init", "wait"}
    worker.table("items", 3, 64)
    shown = subprocess.run([f"{os.environ['PS_SHM_TOOLS']}/inspect_shm", "vars", "--job", worker.job, "--json"],
                           capture_output=True, text=True, timeout=PATIENCE, check=True)
    (table,) = json.loads(shown.stdout)["tables"]
    facts = {"buckets", "hit_rate", "load", "parts", "row_bytes"} | fields_of("table_statistics.hpp", "TableStatistics")
    assert set(table) - facts <= of_table and (table["evict"], table["ttl"], table["admit_after"]) == ("lfu", 0, 1)
    options = re.findall(r"^\| `--([\w-]+).*\| --keyed:", (pathlib.Path(os.environ["PS_SHM_SOURCE"]) / "docs/options.md").read_text(), re.M)
    assert len(options) >= 4 and {option.replace("-", "_") for option in options} <= of_table
    torch = pytest.importorskip("ps_shm.torch")
    of_embedding = set(inspect.signature(torch.Embedding).parameters) | set(inspect.signature(torch.table_storage).parameters)
    assert of_embedding & of_table >= {"admit_after", "evict", "ttl"} and not of_embedding & {"admit", "ttl_seconds", "lr_scale"}


def test_a_view_and_the_inspector_show_the_same(job):
    with ps_shm.Server(job, workers=1), ps_shm.Worker(job) as worker:
        worker.variable("v", np.zeros((2, 3), np.float32), rule="adagrad").push(np.ones((2, 3), np.float32))
        worker.table("t", 4, 100).push(np.array([1, 2]), np.ones((2, 4), np.float32))
        worker.step()
        shown_by = lambda command: json.loads(subprocess.run([TOOLS / "inspect_shm", command, "--job", job, "--json"],
                                                             check=True, capture_output=True, text=True).stdout)
        shown, (info,) = shown_by("workers")["workers"][0], ps_shm.View(job).workers()
        assert shown.pop("training_loss") is None and info.loss == 0
        assert shown.pop("waiting_for") is None and info.waiting_for == ""
        assert 0 < shown.pop("seconds") < info.seconds
        staleness = shown.pop("staleness")
        assert staleness == {name: getattr(info.staleness, name) for name in staleness}
        assert shown == {name: getattr(info, name) for name in shown} and shown["owners"] == 1
        listed, view = shown_by("vars"), ps_shm.View(job)
        (shown,), (info,) = listed["variables"], view.variables()
        shown["shape"] = tuple(shown["shape"])
        del shown["parts"]
        assert shown == {name: getattr(info, name) for name in shown}
        (shown,), (info,) = listed["tables"], view.tables()
        del shown["hit_rate"]
        assert shown == {name: getattr(info if hasattr(info, name) else info.statistics, name)
                         for name in shown}
