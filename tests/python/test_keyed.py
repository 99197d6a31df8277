"""PyTorch models with tables by key: embeddings of any ids, and a storage for dynamicemb."""
import abc
import copy
import enum
import inspect
import pickle
import sys
import types
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch

FAR = -(1 << 62) + 5


def test_an_embedding_of_any_ids_trains_as_one_of_torch(job):
    embedding = ps_shm.torch.Embedding("items", 1000, 4, rule="sgd", deviation=0.5, keyed=True)
    model = torch.nn.Sequential(embedding, torch.nn.Flatten(), torch.nn.Linear(8, 1))
    plain = torch.nn.Sequential(torch.nn.Embedding(3, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))
    ids = torch.tensor([[FAR, 7], [FAR, 1 << 60]])
    places = torch.tensor([[0, 1], [0, 2]])
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        many = embedding(torch.arange(5000)).detach()
        assert abs(many.std() - 0.5) < 0.02 and embedding.table.statistics().rows == 0
        embedding.prefetch(ids)
        plain[0].weight.data = embedding(torch.tensor([FAR, 7, 1 << 60])).detach()
        plain[2].load_state_dict(model[2].state_dict())
        for m, given, optimizer in ((model, ids, opt), (plain, places, torch.optim.SGD(plain.parameters(), lr=0.1))):
            for _ in range(3):
                optimizer.zero_grad()
                m(given).pow(2).sum().backward()
                optimizer.step()
        torch.testing.assert_close(embedding(torch.tensor([FAR, 7, 1 << 60])).detach(), plain[0].weight.detach())
        assert embedding.table.statistics().rows == 3
        with torch.no_grad():
            assert not embedding(ids).requires_grad
        assert embedding(torch.empty(0, 2, dtype=torch.int64)).shape == (0, 2, 4)
        assert torch.equal(embedding(torch.tensor([7], dtype=torch.int32)), embedding(torch.tensor([7])))


def test_options_of_a_keyed_embedding(job):
    with ps_shm.Server(job, lr=0.1), ps_shm.Worker(job) as worker:
        refusing = ps_shm.torch.Embedding("refusing", 64, 2, keyed=True, evict="none", worker=worker)
        for ids in (torch.arange(100), torch.arange(100)):
            refusing(ids).sum().backward()
            refusing.push()
        assert (refusing.table.statistics().rows, refusing.table.statistics().refused) == (64, 72)
        admitting = ps_shm.torch.EmbeddingBag("admitting", 64, 2, keyed=True, evict="lfu", ttl=100.0, admit_after=2, worker=worker)
        rows = []
        while not rows or rows[-1] < 5:  # a key that is admitted may halve what has been counted of others
            admitting(torch.arange(5).reshape(1, 5)).sum().backward()
            admitting.push()
            rows.append(admitting.table.statistics().rows)
        assert rows[0] == 0 and rows[1] > 0
        assert "keyed=True, evict=lfu" in repr(admitting)
        spread = ps_shm.torch.Embedding("spread", 64, 2, keyed=True, deviation=0.5, worker=worker)(torch.arange(5000))
        assert spread.std().item() == pytest.approx(0.5, rel=0.03) and spread.abs().max() < 0.5 * 3**0.5 + 1e-6
        for cls in (ps_shm.torch.Embedding, ps_shm.torch.EmbeddingBag):
            half = cls(cls.__name__, 64, 8, keyed=True, rule="sgd", deviation=0, dtype=torch.bfloat16, worker=worker)
            rows = half(torch.arange(6).reshape(3, 2))
            assert rows.dtype == torch.float32
            rows.sum().backward()
            half.push()
            (info,) = (one for one in ps_shm.View(job).tables() if one.name == cls.__name__)
            assert info.dtype == "bfloat16" and info.statistics.rows == 6
            assert set(half.weight.flatten().tolist()) <= {-0.10009765625, -0.099609375, -0.050048828125, -0.0498046875}
        with pytest.raises(ps_shm.Error, match="use `table`"):
            admitting.variable
        with pytest.raises(ps_shm.Error, match="use `variable`"):
            ps_shm.torch.Embedding("plain", 64, 2, worker=worker).table
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(admitting)
        assert copy.deepcopy(admitting).table is admitting.table
    with pytest.raises(ps_shm.Error, match="of no job yet"):
        ps_shm.torch.Embedding("items", 64, 2, keyed=True)(torch.tensor([1]))
    for wrong in ({"evict": "none"}, {"ttl": 3.0}, {"admit_after": 2}):
        with pytest.raises(ValueError, match="need keyed=True"):
            ps_shm.torch.Embedding("items", 64, 2, **wrong)


def test_the_padding_id_of_a_keyed_embedding_has_no_row(job):
    with ps_shm.Server(job, lr=0.1), ps_shm.Worker(job) as worker:
        embedding = ps_shm.torch.Embedding("items", 64, 2, keyed=True, rule="sgd", padding_idx=-1, worker=worker)
        ids = torch.tensor([[-1, 5], [-1, -1]])
        rows = embedding(ids)
        assert not rows[ids == -1].any() and rows[0, 1].any()
        rows.sum().backward()
        embedding.push()
        assert embedding.state_dict()["ids"].tolist() == [5]
        bag = ps_shm.torch.EmbeddingBag("bags", 64, 2, keyed=True, mode="sum", padding_idx=-1, worker=worker)
        torch.testing.assert_close(bag(ids[:1]), bag(torch.tensor([[5]])))


def by_id(state, prefix=""):
    return {int(key): row.tolist() for key, row in zip(state[prefix + "ids"], state[prefix + "weight"])}


def test_the_state_of_a_keyed_embedding_is_its_rows_by_id(job):
    def model(name):
        return torch.nn.Sequential(ps_shm.torch.Embedding(name, 1000, 4, keyed=True, rule="sgd"), torch.nn.Linear(4, 1))
    first, second = model("first"), model("second")
    ids = torch.randint(-(1 << 62), 1 << 62, (50,))
    with ps_shm.torch.Optimizer(torch.nn.ModuleList([first, second]), job, create=True, lr=0.1) as opt:
        first(ids).sum().backward()
        second(torch.arange(10)).sum().backward()
        opt.step()
        state = first.state_dict()
        assert state["0.ids"].dtype == torch.int64 and sorted(by_id(state, "0.")) == sorted(ids.tolist())
        torch.testing.assert_close(first[0].weight, state["0.weight"])
        for key, row in list(by_id(state, "0.").items())[:3]:
            assert first[0](torch.tensor([key])).detach()[0].tolist() == row
        second.load_state_dict(state)  # the rows that it had are gone
        assert by_id(second.state_dict(), "0.") == by_id(state, "0.")
        with pytest.raises(RuntimeError, match="size mismatch for 0.weight"):
            second.load_state_dict({**state, "0.weight": torch.zeros(3, 4)})
        with pytest.raises(RuntimeError, match="Missing key.*0.ids"):
            second.load_state_dict({key: value for key, value in state.items() if key != "0.ids"})

        # Before there is a job, what is loaded is kept for attach(), if nobody has made rows before.
        third = ps_shm.torch.Embedding("third", 1000, 4, keyed=True, rule="sgd")
        assert third.state_dict()["weight"].shape == (0, 4)
        given = {"ids": torch.tensor([1, 2]), "weight": torch.ones(2, 4)}
        third.load_state_dict(given)
        given["weight"].zero_()
        assert by_id(third.state_dict()) == {1: [1] * 4, 2: [1] * 4}
        third.attach(opt.worker)
        assert by_id(third.state_dict()) == {1: [1] * 4, 2: [1] * 4}


def test_a_program_that_loads_its_rows_leaves_those_of_a_running_job_alone(job):
    def program(worker):
        embedding = ps_shm.torch.Embedding("items", 100, 4, keyed=True, rule="sgd")
        embedding.load_state_dict({"ids": torch.arange(50), "weight": torch.full((50, 4), 7.0)})
        embedding.attach(worker)
        return embedding

    with ps_shm.Server(job, lr=0.1, workers=2), ps_shm.Worker(job) as first, ps_shm.Worker(job) as second:
        embedding = program(first)
        assert by_id(embedding.state_dict()) == {key: [7.0] * 4 for key in range(50)}
        embedding.table.evict(np.arange(50))
        embedding(torch.tensor([3, 1000])).sum().backward()
        embedding.push()
        trained = by_id(embedding.state_dict())
        assert sorted(trained) == [3, 1000]
        assert by_id(program(second).state_dict()) == trained


def test_rows_that_find_no_room_are_said(job):
    given = {"ids": torch.arange(1000), "weight": torch.ones(1000, 4)}
    with ps_shm.Server(job, lr=0.1), ps_shm.Worker(job) as worker:
        for evict in ("none", "lru"):
            attached = ps_shm.torch.Embedding(f"a{evict}", 100, 4, keyed=True, evict=evict, worker=worker)
            with pytest.warns(UserWarning, match="9.. of the 1000 rows that were loaded found no room .* num_embeddings=100"):
                attached.load_state_dict(given)
            later = ps_shm.torch.Embedding(f"b{evict}", 100, 4, keyed=True, evict=evict)
            later.load_state_dict(given)
            with pytest.warns(UserWarning, match="9.. of the 1000 rows"):
                later.attach(worker)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attached.load_state_dict({"ids": torch.arange(50), "weight": torch.ones(50, 4)})


@pytest.mark.parametrize("keyed", [False, True])
def test_ids_that_are_no_integers_are_refused(job, keyed):
    with ps_shm.Server(job, lr=0.1), ps_shm.Worker(job) as worker:
        for cls in (ps_shm.torch.Embedding, ps_shm.torch.EmbeddingBag):
            embedding = cls(cls.__name__, 100, 4, keyed=keyed, worker=worker)
            for ids in (torch.tensor([[1.7]]), torch.tensor([[True]])):
                with pytest.raises(TypeError, match="ids is of torch.(float32|bool), and torch.int64 is needed"):
                    embedding(ids)


# What dynamicemb's own storage is called with (recsys-examples, July 2026).

class CopyMode(enum.Enum):
    EMBEDDING = "embedding"
    VALUE = "value"


class Storage(abc.ABC):
    """The abstract methods of dynamicemb.types.Storage, with the parameters that they have there."""

    for _name, _parameters in {
        "find": "unique_keys, table_ids, copy_mode, lfu_accumulated_frequency=None",
        "insert": "keys, table_ids, values, scores=None, preserve_existing=False",
        "dump": "table_id, meta_file_path, emb_key_path, embedding_file_path, score_file_path, opt_file_path, timestamp",
        "load": "table_id, meta_file_path, emb_file_path, embedding_file_path, score_file_path, opt_file_path, include_optim, "
                "timestamp",
        "export_keys_values": "device, batch_size=65536, table_id=0",
        "embedding_dim": "table_id", "value_dim": "table_id", "max_embedding_dim": "", "max_value_dim": "",
        "embedding_dtype": "", "embedding_dims": "", "all_dims_vec4": "", "init_optimizer_state": "",
    }.items():  # fmt: skip
        locals()[_name] = abc.abstractmethod(eval(f"lambda self, {_parameters}: None"))


class Optimizer:
    def __init__(self, kind="adam", factor=2):
        self.kind, self.factor, self.set = kind, factor, None

    def get_state_dim(self, dim):
        return self.factor * dim

    def get_initial_optim_states(self):
        return 0.25

    def get_opt_args(self):
        return {"opt_type": self.kind, "lr": 0.5}

    def set_opt_args(self, given):
        self.set = given


@pytest.fixture
def dynamicemb(monkeypatch):
    module = types.ModuleType("dynamicemb.types")
    module.Storage = Storage
    monkeypatch.setitem(sys.modules, "dynamicemb", types.ModuleType("dynamicemb"))
    monkeypatch.setitem(sys.modules, "dynamicemb.types", module)


def options(*dims, capacity=1000, dtype=torch.float32):
    return [SimpleNamespace(dim=dim, max_capacity=capacity, embedding_dtype=dtype) for dim in dims]


def test_a_storage_can_be_called_as_dynamicembs_own(worker, dynamicemb):
    made = ps_shm.torch.table_storage(worker, "items")
    assert not made.__abstractmethods__
    for name in Storage.__abstractmethods__:
        wanted, ours = (list(inspect.signature(getattr(of, name)).parameters.values()) for of in (Storage, made))
        assert [one.name for one in ours[: len(wanted)]] == [one.name for one in wanted], name
        for own, other in zip(ours, wanted):
            assert other.default is other.empty or own.default == other.default, (name, own)
        assert all(one.default is not one.empty for one in ours[len(wanted) :]), name


def test_a_storage_for_dynamicemb_finds_what_was_inserted(worker, dynamicemb):
    made = copy.deepcopy(ps_shm.torch.table_storage(worker, "items"))  # as dynamicemb copies its options
    assert issubclass(made, Storage)
    storage = made(options(4, 2), Optimizer())
    assert (storage.embedding_dim(1), storage.value_dim(1), storage.max_embedding_dim(), storage.max_value_dim()) == (2, 6, 4, 12)
    assert storage.embedding_dims().tolist() == [4, 2] and not storage.all_dims_vec4()
    assert storage.embedding_dtype() == torch.float32 and storage.init_optimizer_state() == 0.25
    keys, tables = torch.tensor([FAR, 5, 5]), torch.tensor([0, 0, 1])
    values = torch.arange(36, dtype=torch.float32).reshape(3, 12)  # padded
    storage.insert(keys, tables, values, torch.tensor([1, 2, 3]))
    asked, of = torch.tensor([5, 9, 5, FAR]), torch.tensor([1, 0, 0, 0])
    missing, missing_keys, places, missing_tables, missing_scores, founds, scores, rows = storage.find(
        asked, of, CopyMode.VALUE, torch.tensor([4, 5, 6, 7]))
    assert (missing, missing_keys.tolist(), places.tolist(), missing_tables.tolist()) == (1, [9], [1], [0])
    assert (missing_scores.tolist(), founds.tolist(), scores.tolist()) == ([5], [True, False, True, True], [4, 0, 6, 7])
    assert rows[3].tolist() == values[0].tolist() and rows[2].tolist() == values[1].tolist() and not rows[1].any()
    assert rows[0].tolist() == [24, 25, 0, 0, 28, 29, 30, 31, 0, 0, 0, 0]
    *_, missing_scores, _, _, rows = storage.find(asked, of, copy_mode=CopyMode.EMBEDDING)
    assert missing_scores is None and rows.shape == (4, 4) and rows[0].tolist() == [24, 25, 0, 0]
    storage.insert(torch.tensor([8]), torch.tensor([1]), torch.arange(6.0).reshape(1, 6), preserve_existing=True)  # not padded
    *_, rows = storage.find(torch.tensor([8]), torch.tensor([1]), CopyMode.VALUE)
    assert rows.tolist() == [[0, 1, 0, 0, 2, 3, 4, 5, 0, 0, 0, 0]]


@pytest.fixture(params=[torch.float32, torch.float64])
def default_type(request):
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_storage_for_dynamicemb_is_dumped_and_loaded(worker, dynamicemb, tmp_path, default_type):
    storage = ps_shm.torch.table_storage(worker, "items")(options(3), Optimizer())
    keys = torch.randint(-(1 << 62), 1 << 62, (100,))
    values = torch.randn(100, 9, dtype=torch.float32)
    storage.insert(keys, torch.zeros(100, dtype=torch.int64), values)
    batches = list(storage.export_keys_values(torch.device("cpu"), 30, 0))
    assert [len(batch[0]) for batch in batches] == [30, 30, 30, 10]
    found = {int(key): torch.cat([e, s]) for keys_, e_, s_, _ in batches for key, e, s in zip(keys_, e_, s_)}
    assert all(torch.equal(found[int(key)], row) for key, row in zip(keys, values))
    meta, key_file, row_file, score_file, state_file = (tmp_path / name for name in ("m.json", "k", "v", "s", "o"))
    storage.dump(0, meta, key_file, row_file, score_file, state_file, include_optim=True, include_meta=True, current_score=None,
                 timestamp=7)
    assert np.fromfile(key_file, np.int64).size == 100 and np.fromfile(score_file, np.int64).size == 100
    assert np.fromfile(row_file, np.float32).size == 300 and np.fromfile(state_file, np.float32).size == 600

    def loaded(name, optimizer, **more):
        other = ps_shm.torch.table_storage(worker, name)(options(3), optimizer)
        other.load(0, meta, key_file, row_file, score_file, state_file, timestamp=8, **more)
        return other.find(keys, torch.zeros(100, dtype=torch.int64), CopyMode.VALUE)[-1]
    optimizer = Optimizer()
    assert torch.equal(loaded("same", optimizer, include_optim=True), values) and optimizer.set["lr"] == 0.5
    for name, optimizer, more in (("sgd", Optimizer("sgd"), {"include_optim": True}), ("without", Optimizer(), {})):
        rows = loaded(name, optimizer, **more)
        assert torch.equal(rows[:, :3], values[:, :3]) and (rows[:, 3:] == 0.25).all() and optimizer.set is None
    with open(row_file, "ab") as file:
        file.truncate(12 * 50)
    with pytest.raises(ValueError, match="does not have a row for each key"):
        loaded("short", Optimizer())


def test_a_storage_for_dynamicemb_without_it_and_of_another_type(worker):
    made = ps_shm.torch.table_storage(worker, "items", evict="none")
    storage = made(options(2, capacity=64), Optimizer(factor=0))
    keys = torch.arange(100)
    storage.insert(keys, torch.zeros_like(keys), torch.ones(100, 2))
    assert storage.tables[0].statistics().refused == 36
    assert next(storage.export_keys_values(torch.device("cpu")))[2] is None
    with pytest.raises(ValueError, match="holds float32, not torch.float16"):
        made(options(2, dtype=torch.float16), Optimizer())
