"""Arrays are used in place; an unsuitable argument is refused with a message that says what to pass."""
import array
import ctypes

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch
from ps_shm.torch import _model


@pytest.fixture
def w(worker):
    return worker.variable("w", np.zeros((3, 4), np.float32))


def test_numpy_arrays_are_pushed_and_pulled(w):
    delta = np.arange(12, dtype=np.float32).reshape(3, 4)
    w.push(delta)
    out = np.empty((3, 4), np.float32)
    assert w.pull(out) is out
    np.testing.assert_array_equal(out, delta)


def test_without_an_array_a_new_one_is_made(w):
    made = w.pull()
    assert made.shape == (3, 4) and made.dtype == np.float32 and made.flags.writeable


def test_tensors_memoryviews_and_flat_arrays_are_arrays_too(w):
    w.push(torch.ones(3, 4))
    w.push(memoryview(np.ones((3, 4), np.float32)))
    w.push(array.array("f", [1] * 12))
    out = torch.zeros(12)
    w.pull(out)
    assert out.tolist() == [3] * 12


@pytest.mark.parametrize("given, error, says", [
    (np.ones((3, 4)), TypeError, "is of float64, and float32 is needed; pass array.astype('float32')"),
    (np.ones((3, 4), np.int32), TypeError, "pass array.astype('float32')"),
    (np.ones((4, 3), np.float32).T, TypeError, "pass numpy.ascontiguousarray(array)"),
    (np.ones((3, 8), np.float32)[:, ::2], TypeError, "pass numpy.ascontiguousarray(array)"),
    (np.ones((3, 4), ">f4"), TypeError, "elements of format '>f'"),
    (np.ones((3, 4), np.complex64), TypeError, "no variable has"),
    (np.ones((4, 3), np.float32), ValueError, "has the shape (4, 3), and (3, 4) is needed"),
    (np.ones(11, np.float32), ValueError, "has the shape (11,), and (3, 4) is needed"),
    (np.ones((1, 3, 4), np.float32), ValueError, "has the shape (1, 3, 4)"),
    (torch.ones(3, 4, dtype=torch.float64), TypeError, "pass tensor.to(torch.float32)"),
    (torch.ones(3, 4, dtype=torch.bfloat16), TypeError, "is of bfloat16"),
    (torch.ones(4, 3).T, TypeError, "pass tensor.contiguous()"),
    (torch.ones(3, 4, requires_grad=True), TypeError, "pass tensor.detach()"),
    ([1.0] * 12, TypeError, "is a list; pass a NumPy array"),
    (np.ma.ones((3, 4), np.float32), TypeError, "is a masked array, whose mask would be lost"),
    (1.0, TypeError, "pass an array"),
    (None, TypeError, "is a NoneType; pass a NumPy array"),
], ids=str)
def test_what_does_not_fit_is_refused_and_changes_nothing(w, given, error, says):
    for call in (w.push, w.add, w.assign):
        with pytest.raises(error) as caught:
            call(given)
        assert says in str(caught.value) and "variable 'w'" in str(caught.value)
    assert not w.pull().any()


def test_nothing_is_pulled_into_a_read_only_array(w):
    out = np.zeros((3, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        w.pull(out)


def test_numbers_do_for_one_element(worker):
    c = worker.variable("c", 1.0, shape=())
    c.push(2)
    c.add(0.5)
    assert c.pull() == 3.5
    c.assign(7.0)
    assert c.pull().shape == () and c.pull() == 7


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
                                   "uint8", "bool"])
def test_variables_of_other_types_keep_their_values(worker, dtype):
    first = np.array([0, 1, 1, 0]).astype(dtype)
    v = worker.variable("v", first, dtype=dtype)
    assert v.dtype == dtype and v.pull().dtype == dtype
    np.testing.assert_array_equal(v.pull(), first)
    v.assign(first[::-1].copy())
    np.testing.assert_array_equal(v.pull(), first[::-1])
    with pytest.raises(TypeError, match="which no gradient is for"):
        v.push(first)


def test_bfloat16_travels_in_tensors(worker):
    v = worker.variable("v", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    out = torch.zeros(2, dtype=torch.bfloat16)
    v.pull(out)
    assert out.tolist() == [1.5, -2.0]
    with pytest.raises(TypeError, match="NumPy has no bfloat16; pass a tensor of torch.bfloat16 or an array of ml_dtypes.bfloat16"):
        v.pull()


def test_bfloat16_is_trained_by_float32_gradients_and_pulled_into_float32(worker):
    v = worker.variable("v", torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16), rule="add")
    v.push(np.array([0.5, 1, 2], np.float32))
    assert v.pull(np.empty(3, np.float32)).tolist() == [2, -1, 5]
    room = v.gradient()
    room[:] = [1, 1, 1]
    v.push(room)
    out = torch.zeros(3, dtype=torch.bfloat16)
    assert v.pull(out).tolist() == [3, 0, 6]
    with pytest.raises(TypeError, match="is of bfloat16, and float32 is needed"):
        v.push(out)
    with pytest.raises(TypeError, match="is of float32, and bfloat16 is needed"):
        v.assign(np.ones(3, np.float32))
    small = np.full(3, 2.0**-12, np.float32)
    for _ in range(4096):
        v.push(small)  # too small for a bfloat16 to add: on average it is not lost
    np.testing.assert_allclose(v.pull(np.empty(3, np.float32)), [4, 1, 7], atol=0.5)


def test_bfloat16_variables_have_the_optimizer_of_the_job(job):
    with ps_shm.Server(job, workers=1, optimizer="momentum", lr=0.5, momentum=0.5), ps_shm.Worker(job) as worker:
        bundle = worker.variables({"h": torch.ones(4, dtype=torch.bfloat16), "w": np.ones(4, np.float32)})
        found = {one.name: (one.dtype, one.rule, one.slots) for one in ps_shm.View(job).variables()}
        assert found == {"h": ("bfloat16", "momentum", ["momentum"]), "w": ("float32", "momentum", ["momentum"])}
        gradients = bundle.gradients()
        gradients["h"][:] = gradients["w"][:] = 1
        bundle.push(gradients)
        into = {"h": np.empty(4, np.float32), "w": np.empty(4, np.float32)}
        pinned = bundle.pin(into)
        bundle.pull(pinned)
        assert into["h"].tolist() == into["w"].tolist() == [0.5] * 4
        bundle.push(pinned)
        assert bundle.pull_changed(pinned) == [0, 1] and into["h"].tolist() == into["w"].tolist() == [0] * 4
        with pytest.raises(TypeError, match="assign of variable 'h': the array is of float32, and bfloat16 is needed"):
            bundle.assign(pinned)
        with pytest.raises(TypeError, match="of bfloat16, and all need to be of float32"):
            bundle.push(gradients, into=pinned)
        stored = bundle.pin({"h": torch.zeros(4, dtype=torch.bfloat16), "w": np.ones(4, np.float32)})
        bundle.assign(stored)
        with pytest.raises(TypeError, match="push of variable 'h': the array is of bfloat16, and float32 is needed"):
            bundle.push(stored)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_ml_dtypes_have_types_that_numpy_lacks(worker, name):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    first = np.array([[1.5, -2.0], [0.0, 3.0]], dtype)
    v = worker.variable("v", first)
    assert v.dtype == name and v.shape == (2, 2)
    out = np.zeros((2, 2), dtype)
    assert v.pull(out) is out
    np.testing.assert_array_equal(out.astype(np.float32), first.astype(np.float32))
    v.assign(first[::-1].copy())
    np.testing.assert_array_equal(v.pull(out).astype(np.float32), first[::-1].astype(np.float32))
    with pytest.raises(TypeError, match="not row-major"):
        v.assign(first.T)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        v.pull(out)
    with pytest.raises(TypeError, match=f"is of {name}, and float32 is needed; pass array.astype"):
        worker.variable("w", shape=(2, 2)).assign(first)


def test_the_room_for_a_gradient_stays_with_its_array(worker):
    v = worker.variable("v", np.zeros(8, np.float32))
    room = v.gradient()
    room[:] = 2
    v.push(room)
    assert v.pull().tolist() == [2] * 8
    again = v.gradient()
    assert again.__array_interface__["data"] == room.__array_interface__["data"]
    del v
    worker.leave()
    room[:] = 3  # the memory lives as long as the array


def test_a_view_shows_what_others_push(worker):
    v = worker.variable("v", shape=(8,), layout="inplace")
    seen = v.view()
    assert not seen.flags.writeable
    v.push(np.ones(8, np.float32))
    assert seen.tolist() == [1] * 8
    with pytest.raises(ps_shm.Error):
        worker.variable("versioned", shape=(8,), layout="versioned").view()


@pytest.mark.parametrize("ids", [np.array([5, 1, 5]), np.array([5, 1, 5], np.uint32), torch.tensor([5, 1, 5])], ids=str)
def test_rows_are_pulled_and_pushed_by_number(worker, ids):
    v = worker.variable("rows", shape=(10, 2), layout="inplace")
    v.prefetch_rows(ids)
    v.push_rows(ids, np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    assert v.pull_rows(ids).tolist() == [[6, 8], [3, 4], [6, 8]]
    v.assign_rows(np.array([1]), np.array([[9, 9]], np.float32))
    v.add_rows(np.array([1]), torch.ones(1, 2))
    assert v.pull_rows(np.array([[1], [0]])).tolist() == [[[10, 10]], [[0, 0]]]


def test_wrong_rows_are_refused(worker):
    v = worker.variable("rows", shape=(10, 2), layout="inplace")
    with pytest.raises(ps_shm.Error, match="10"):
        v.pull_rows(np.array([10]))
    with pytest.raises(ps_shm.Error):
        v.pull_rows(np.array([-1]))
    with pytest.raises(TypeError, match=r"astype\('int64'\)"):
        v.pull_rows(np.array([1.0]))
    with pytest.raises(ValueError, match=r"has the shape \(1, 3\), and \(1, 2\) is needed"):
        v.push_rows(np.array([1]), np.ones((1, 3), np.float32))


@pytest.mark.parametrize("move", [lambda x: x.share_memory_(), lambda x: x.resize_(2000), lambda x: x.storage().resize_(0)],
                         ids=["shared", "resized", "freed"])
def test_a_tensor_whose_memory_has_moved_is_pinned_anew(worker, move):
    moved, other = torch.zeros(1000), np.zeros(10, np.float32)
    bundle = worker.variables({"moved": moved, "other": other})
    pinned = bundle.pin([moved, other])
    bundle.pull(pinned)
    move(moved)
    for use in (lambda: bundle.pull(pinned), lambda: bundle.pull_changed(pinned), lambda: bundle.push(pinned),
                lambda: bundle.push([torch.zeros(1000), other], into=pinned)):
        with pytest.raises(ValueError, match="the memory of a tensor has moved since the arrays were pinned; pin them anew"):
            use()


def test_a_bundle_pushes_and_pulls_in_one_call(worker):
    first = {"a": np.ones(3, np.float32), "b": torch.zeros(2, 2)}
    bundle = worker.variables(first)
    assert bundle.names == ["a", "b"] and len(bundle) == 2
    bundle.push([np.ones(3, np.float32), torch.ones(2, 2)])
    assert {name: values.tolist() for name, values in bundle.pull(consistent=True).items()} == {
        "a": [2, 2, 2], "b": [[1, 1], [1, 1]]}
    pinned = bundle.pin(first)
    bundle.pull(pinned)
    assert first["a"].tolist() == [2, 2, 2] and first["b"].sum() == 4
    bundle.push(pinned)
    assert bundle["a"].pull().tolist() == [4, 4, 4]
    bundle.assign(first)
    assert bundle["a"].pull().tolist() == [2, 2, 2]


def test_a_bundle_wants_all_of_its_arrays(worker):
    bundle = worker.variables({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    with pytest.raises(ValueError, match="2 variables, and 1 arrays"):
        bundle.push({"a": np.ones(3, np.float32)})
    with pytest.raises(ValueError, match="'b' is not among"):
        bundle.push({"a": np.ones(3, np.float32), "c": np.ones(3, np.float32)})
    with pytest.raises(TypeError, match="variable 'b'"):
        bundle.pull([np.ones(3, np.float32), np.ones(2)])
    other = worker.variables({"a": np.ones(3, np.float32)})
    with pytest.raises(ValueError, match="another bundle"):
        other.push(bundle.pin([np.ones(3, np.float32), np.ones(2, np.float32)]))
    with pytest.raises(TypeError, match="writable=True"):
        bundle.pull(bundle.pin([np.ones(3, np.float32), np.ones(2, np.float32)], writable=False))


class Exported:
    """An array that has DLPack 1 only, as immutable arrays of other libraries do."""

    def __init__(self, values, is_read_only, major=1):
        class Tensor(ctypes.Structure):
            _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]

        class Versioned(ctypes.Structure):
            _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]

        self.values = values
        self.shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        tensor = Tensor(values.ctypes.data, (ctypes.c_int32 * 2)(1, 0), values.ndim, 2, 32, 1, self.shape, None, 0)
        self.versioned = Versioned(major, 0, None, None, int(is_read_only), tensor)

    def __dlpack__(self, *, max_version):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.versioned), b"dltensor_versioned", None)


def test_an_immutable_array_with_dlpack_is_not_written(w):
    values = np.ones((3, 4), np.float32)
    w.push(Exported(values, True))
    with pytest.raises(TypeError, match="out is read-only; pass an array that can be written"):
        w.pull(Exported(values, True))
    assert (values == 1).all()
    out = np.zeros((3, 4), np.float32)
    w.pull(Exported(out, False))
    assert (out == 1).all()
    with pytest.raises(TypeError, match="version 2 of DLPack"):
        w.push(Exported(values, False, major=2))


def test_a_bundle_leaves_variables_without_an_array_alone(worker):
    bundle = worker.variables({"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})
    bundle.push({"a": None, "b": np.ones(3, np.float32)})
    bundle.add([np.ones(2, np.float32), None])
    bundle.push([None, None])
    bundle.assign([None, np.full(3, 7, np.float32)])
    assert [values.tolist() for values in bundle.pull().values()] == [[1, 1], [7, 7, 7]]
    for call in (bundle.pull, bundle.pin):
        with pytest.raises(TypeError, match="the array is a NoneType"):
            call([None, np.zeros(3, np.float32)])


def test_a_bundle_may_be_of_variables_that_others_have_declared(worker):
    worker.variables({"a": np.ones(2, np.float32), "b": np.ones((3, 1), np.float32), "n": np.arange(2)})
    bundle = worker.variables(["n", "b"])
    assert bundle.names == ["n", "b"] and bundle.pull()["b"].shape == (3, 1)
    bundle.add([np.ones(2, np.int64), np.ones((3, 1), np.float32)])
    assert [values.tolist() for values in bundle.pull().values()] == [[1, 2], [[2], [2], [2]]]
    with pytest.raises(ValueError, match="a variable at least"):
        worker.variables(())
    with pytest.raises(ps_shm.Error, match="'c'"):
        worker.variables(["a", "c"], wait=0.01)
    with pytest.raises(TypeError):
        worker.variables("ab")


def test_a_push_may_begin_a_pull(worker):
    values = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}
    bundle = worker.variables(values)
    pinned = bundle.pin(values)
    bundle.push([np.ones(2, np.float32), np.ones(3, np.float32)], into=pinned)
    worker.variable("b").add(np.ones(3, np.float32))
    assert bundle.pull_changed(pinned) == [1]
    assert [v.tolist() for v in values.values()] == [[1, 1], [2, 2, 2]]
    with pytest.raises(ValueError, match="a gradient of each variable"):
        bundle.push([np.ones(2, np.float32), None], into=pinned)
    with pytest.raises(TypeError, match="writable=True"):
        bundle.push(list(values.values()), into=bundle.pin(list(values.values()), writable=False))
    with pytest.raises(ValueError, match="another bundle"):
        worker.variables({"a": values["a"]}).push([values["a"]], into=pinned)
    with pytest.raises(ps_shm.Error, match="declare it versioned"):
        table = worker.variables({"t": np.zeros(2, np.float32)}, layout="inplace")
        table.push([values["a"]], into=table.pin([values["a"]]))


def test_a_bundle_pulls_only_what_has_changed(worker):
    first = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32), "n": np.zeros(1, np.int64)}
    bundle = worker.variables(first)
    outs = bundle.pin([np.full_like(values, 9) for values in first.values()])
    assert bundle.pull_changed(outs) == [0, 1, 2]
    assert bundle.pull_changed(outs) == [2]  # of an integer there is no telling
    worker.variable("b").add(np.ones(3, np.float32))
    assert bundle.pull_changed(outs) == [1, 2]
    with pytest.raises(TypeError, match="writable=True"):
        bundle.pull_changed(bundle.pin(list(first.values()), writable=False))
    with pytest.raises(ValueError, match="another bundle"):
        worker.variables({"a": first["a"]}).pull_changed(outs)


def test_negated_views_keep_their_sign(worker, job):
    negated = torch._neg_view(torch.arange(1.0, 5.0))
    w = worker.variable("negated", negated)
    assert w.pull().tolist() == [-1, -2, -3, -4]
    w.assign(torch.zeros(4))
    w.add(negated)
    assert w.pull().tolist() == [-1, -2, -3, -4]
    with pytest.raises(TypeError, match=r"negated view; pass tensor.resolve_neg\(\)"):
        w.pull(torch._neg_view(torch.zeros(4)))
    bundle = worker.variables({"of_bundle": negated})
    with pytest.raises(TypeError, match="resolve_neg"):  # what is pinned is read later, where it lies
        bundle.pin([negated], writable=False)
    bundle.add([negated])
    assert bundle["of_bundle"].pull().tolist() == [-2, -4, -6, -8]
    with ps_shm.Publisher("negated" + job, {"w": negated}) as publisher, ps_shm.Subscriber("negated" + job) as subscriber:
        publisher.publish({"w": negated})
        assert subscriber.read()["w"].tolist() == [-1, -2, -3, -4]
        model = torch.nn.Module()
        model.register_buffer("w", negated)
        with ps_shm.torch.Publisher("model" + job, model) as of_model, ps_shm.Subscriber("model" + job) as reader:
            of_model.publish()
            assert reader.read()["w"].tolist() == [-1, -2, -3, -4]
    assert not _model.floats(negated).is_neg() and torch.equal(_model.floats(negated), negated)  # whose address is used


def test_names_of_variables_and_tensors_are_text(worker, job):
    array = np.zeros(2, np.float32)
    for call in (lambda: worker.variables({0: array}), lambda: ps_shm.Publisher(job + "p", {0: array}),
                 lambda: ps_shm.Publisher(job + "p", {"w": array}, slices=[{0: slice(0, 2)}])):
        with pytest.raises(TypeError, match=r"names are text, not int \(0\)"):
            call()
