"""Embeddings of a job beside torch.nn.Embedding: their weight, rows, bags, clipping, names, and what they refuse."""
import copy
import pickle
import weakref

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import ps_shm
import ps_shm.torch
from models import Scaler, small_model


def pair(job_name="t", rows=20, **settings):
    """An embedding of PyTorch with a dense layer, and one of a job, with the same values."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Embedding(rows, 4, **settings), torch.nn.Linear(4, 1))
    ours = torch.nn.Sequential(ps_shm.torch.Embedding(job_name, rows, 4, rule="sgd", **settings), torch.nn.Linear(4, 1))
    ours.load_state_dict(plain.state_dict())
    return plain, ours


WRITES = {
    "fill_": lambda w: w.fill_(0.5),
    "init": lambda w: torch.nn.init.constant_(w, 0.5),
    "data": lambda w: w.data.fill_(0.5),
    "detach": lambda w: w.detach().mul_(0.5),
    "item": lambda w: w.__setitem__(0, 0.5),
    "row": lambda w: w[0].add_(1),
    "out": lambda w: torch.add(w, 1, out=w),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_to_the_weight_says_how_it_reaches_the_rows(job, write):
    _, model = pair()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1):
        with torch.no_grad(), pytest.raises(ps_shm.Error, match=r"would reach no row: use embedding.assign\(values\)"):
            WRITES[write](model[0].weight)
        with pytest.raises(AttributeError, match="assign"):
            model[0].weight = torch.nn.Parameter(torch.ones(20, 4))
        assert type(model[0].weight * 2) is torch.Tensor
        (model[0].weight + 1).add_(1)  # what is computed from it is another tensor


def test_rows_are_assigned_and_begin_by_an_initializer(job):
    embedding = ps_shm.torch.Embedding("t", 10, 4, initializer=lambda w: torch.nn.init.constant_(w, 0.5), padding_idx=3)
    assert embedding.weight.sum() == 9 * 4 * 0.5
    keyed = ps_shm.torch.Embedding("k", 100, 4, keyed=True)
    model = torch.nn.ModuleList([embedding, keyed, torch.nn.Linear(4, 1)])
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1):
        assert embedding.weight.sum() == 9 * 4 * 0.5
        embedding.assign(torch.full((10, 4), 2.0))
        embedding.assign(torch.ones(2, 4), [1, 2])
        assert embedding.weight[:3].tolist() == [[2] * 4, [1] * 4, [1] * 4]
        keyed.assign(torch.ones(1, 4), torch.tensor([-7]))
        assert keyed(torch.tensor([-7])).tolist() == [[1] * 4]
        for values, ids in ((torch.ones(3, 4), None), (torch.ones(2, 4), [1])):
            with pytest.raises(ValueError, match="assign"):
                embedding.assign(values, ids)
        with pytest.raises(ValueError, match="ids of the rows"):
            keyed.assign(torch.ones(1, 4))
    with pytest.raises(ValueError, match="initializer is for a whole table"):
        ps_shm.torch.Embedding("k", 100, 4, keyed=True, initializer=torch.nn.init.zeros_)


def test_rows_that_are_assigned_or_loaded_have_a_state_of_their_own_again(job):
    embedding = ps_shm.torch.Embedding("t", 10, 4, rule="adagrad")
    with ps_shm.torch.Optimizer(torch.nn.ModuleList([embedding, torch.nn.Linear(4, 1)]), job, create=True, lr=0.1) as opt:
        def moved():
            before = embedding.weight
            embedding(torch.tensor([1, 2])).sum().backward()
            opt.step()
            return (before - embedding.weight)[1:3, 0].tolist()

        first = moved()
        assert moved()[0] < 0.9 * first[0]
        embedding.assign(torch.zeros(1, 4), [1])
        one, other = moved()
        assert one == pytest.approx(first[0], rel=1e-4) and other < 0.9 * first[1]
        embedding.load_state_dict(embedding.state_dict())
        assert moved() == pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize("where", ["model", "groups"])
def test_clipping_by_pytorch_takes_the_gradients_of_the_rows(job, where):
    plain, model = pair(padding_idx=0)
    ids = torch.tensor([1, 2, 1, 0, 5])  # with a repeated one, and one without a gradient
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        reference = torch.optim.SGD(plain.parameters(), lr=1.0)
        norms = []
        for m, optimizer in ((plain, reference), (model, opt)):
            for _ in range(2):
                optimizer.zero_grad()
                m(ids).pow(2).sum().backward()
                (3 * m(ids[:2])).sum().backward()
                given = m.parameters() if where == "model" else [p for g in optimizer.param_groups for p in g["params"]]
                norms.append(float(torch.nn.utils.clip_grad_norm_(given, 0.01)))
                optimizer.step()
        assert norms[2:] == pytest.approx(norms[:2], rel=1e-5)
        torch.testing.assert_close(model[0].weight.clone(), plain[0].weight.detach(), rtol=0, atol=1e-6)
        torch.testing.assert_close(model[1].weight, plain[1].weight, rtol=0, atol=1e-6)


def test_zero_grad_and_requires_grad_of_the_model_reach_the_rows(job):
    _, model = pair()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        before = model[0].weight.clone()
        model(torch.tensor([1])).sum().backward()
        model.zero_grad()
        opt.step()
        assert torch.equal(model[0].weight, before)
        model.requires_grad_(False)
        assert not model[0](torch.tensor([1])).requires_grad
        model.requires_grad_(True)
        model(torch.tensor([1])).sum().backward()
        opt.step()
        assert not torch.equal(model[0].weight[1], before[1])


def test_a_copy_of_the_model_has_gradients_of_its_own(job):
    _, model = pair()
    model[0].requires_grad_(False)
    with pytest.raises(AttributeError):
        model[0].weight = torch.ones(2)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [n for n, _ in other.named_parameters()] == ["0.weight", "1.weight", "1.bias"]
        assert not other[0]._stand_in.requires_grad and other[0]._stand_in is not model[0]._stand_in
        assert set(other.state_dict()) == {"0.weight", "1.weight", "1.bias"} and torch.equal(other[0].weight, model[0].weight)


def test_two_embeddings_of_one_name_are_refused_unless_they_are_to_share(job):
    def one(name="t", **settings):
        return ps_shm.torch.Embedding(name, 20, 4, **settings)

    with pytest.raises(ps_shm.Error, match=r"embedding 't': Embedding\('t', 20, 4.* of this process has the table of that name.* share=True"):
        ps_shm.torch.Optimizer(torch.nn.ModuleList([one(), one(), torch.nn.Linear(2, 1)]), job, create=True)
    same = one()
    model = torch.nn.ModuleDict({"a": same, "b": same, "c": one(share=True), "d": torch.nn.Linear(2, 1)})
    with ps_shm.torch.Optimizer(model, job, create=True) as opt:
        model["c"].assign(torch.ones(20, 4))
        assert torch.equal(same.weight, torch.ones(20, 4))
        with pytest.raises(ps_shm.Error, match="share=True"):
            one().attach(opt.worker)
        copy.deepcopy(same).attach(opt.worker)  # a copy is of the same table


def test_an_embedding_has_a_rate_of_its_own(job):
    plain, model = pair()
    model[0]._lr = None
    slow = ps_shm.torch.Embedding("slow", 20, 4, rule="sgd", lr=torch.tensor(0.01))
    keyed = ps_shm.torch.Embedding("keyed", 100, 4, rule="sgd", keyed=True, lr=0.2, deviation=0.0)
    with ps_shm.torch.Optimizer(torch.nn.ModuleList([slow, keyed, model[1]]), job, create=True, lr=0.1) as opt:
        before = slow.weight.clone()
        for embedding in (slow, keyed):
            embedding(torch.tensor([3])).sum().backward()
        opt.step()
        assert torch.allclose(slow.weight[3], before[3] - 0.01) and torch.allclose(keyed(torch.tensor([3])), torch.tensor(-0.2))


class TwoGroups(torch.nn.Module):
    def __init__(self, keyed, embeddings=1):
        super().__init__()
        self.e = torch.nn.ModuleList([ps_shm.torch.Embedding(f"e{i}", 64, 1, rule="sgd", keyed=keyed) for i in range(embeddings)])
        self.a, self.b = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)

    def values(self):
        return torch.tensor([self.a.weight.item(), self.b.weight.item(), *(e([2]).item() for e in self.e)])

    def backward(self):
        (self.a.weight + self.b.weight + sum(e([2]) for e in self.e)).sum().backward()

    def changes(self, opt):
        """Of a step with gradients of 1: of each group's weight, and of a row of each embedding."""
        opt.zero_grad()
        before = self.values()
        self.backward()
        opt.step()
        return (before - self.values()).tolist()


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("of_rows", [0, 1, None], ids=["in the first group", "in the last group", "in none"])
@pytest.mark.parametrize("lr", [None, 0.5], ids=["", "the job has another rate"])
@pytest.mark.parametrize("schedule", [
    lambda k: 0.5**k, [lambda k: 0.5**k, lambda k: 0.25**k], [lambda k: 1.0, lambda k: float(k % 2)], [lambda k: k / 4, lambda k: 1.0]],
    ids=["alike", "two", "last from and to 0", "first from 0"])
def test_rows_have_the_rate_of_their_group(job, keyed, of_rows, lr, schedule):
    model = TwoGroups(keyed)
    groups = [{"params": list(part.parameters()), "lr": rate} for part, rate in zip((model.a, model.b), (0.1, 0.01))]
    if of_rows is not None:
        groups[of_rows]["params"] += model.e.parameters()
    with ps_shm.torch.Optimizer(model, job, create=True, params=groups, **({} if lr is None else {"lr": lr})) as opt:
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, schedule)
        for _ in range(4):
            wanted = [group["lr"] for group in opt.param_groups]
            assert model.changes(opt) == pytest.approx([*wanted, wanted[1 if of_rows is None else of_rows]], rel=1e-3, abs=1e-6)
            scheduler.step()


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_of_a_group_without_a_rate_wait_for_one(job, keyed):
    model = TwoGroups(keyed)
    groups = [{"params": model.a.parameters(), "lr": 0.1}, {"params": model.b.parameters(), "lr": 0.0}]
    with ps_shm.torch.Optimizer(model, job, create=True, params=groups) as opt:
        for rate in (0.0, 0.2, 0.0, 0.05):
            opt.param_groups[1]["lr"] = rate
            assert model.changes(opt) == pytest.approx([0.1, rate, rate], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("keyed", [False, True])
def test_embeddings_of_several_groups_have_rates_that_change_alike(job, keyed):
    model = TwoGroups(keyed, embeddings=2)
    groups = [{"params": [*part.parameters(), *e.parameters()], "lr": rate} for part, e, rate in zip((model.a, model.b), model.e, (0.1, 0.02))]
    with ps_shm.torch.Optimizer(model, job, create=True, params=groups) as opt:
        for factor in (1.0, 0.5, 0.0, 2.0):
            opt.param_groups[0]["lr"], opt.param_groups[1]["lr"] = 0.1 * factor, 0.02 * factor
            assert model.changes(opt) == pytest.approx([0.1 * factor, 0.02 * factor] * 2, rel=1e-3, abs=1e-6)
        opt.param_groups[1]["lr"] = 0.3
        with pytest.raises(ps_shm.Error, match="groups with an Embedding have changed by different factors; put them into one"):
            opt.step()


def test_an_embedding_begins_with_given_rows(job):
    rows = torch.arange(12.0).reshape(3, 4)
    frozen = ps_shm.torch.Embedding.from_pretrained("a", rows)
    trained = ps_shm.torch.EmbeddingBag.from_pretrained("b", rows, freeze=False, mode="sum")
    with ps_shm.torch.Optimizer(torch.nn.ModuleList([frozen, trained, torch.nn.Linear(2, 1)]), job, create=True):
        assert torch.equal(frozen([0, 2]), rows[[0, 2]]) and not frozen([1]).requires_grad
        assert torch.equal(trained([[0, 2]]), rows[[0, 2]].sum(0, keepdim=True)) and trained([[1]]).requires_grad


@pytest.mark.parametrize("keyed", [False, True])
def test_ids_are_lists_arrays_and_narrow_integers(job, keyed):
    embedding = ps_shm.torch.Embedding("t", 64, 4, keyed=keyed)
    with ps_shm.torch.Optimizer(torch.nn.ModuleList([embedding, torch.nn.Linear(2, 1)]), job, create=True):
        expected = embedding(torch.tensor([3, 9]))
        for ids in ([3, 9], np.array([3, 9], np.int32), torch.tensor([3, 9], dtype=torch.int32), np.array([3, 9], np.uint8)):
            assert torch.equal(embedding(ids), expected)
        with pytest.raises(TypeError, match="torch.int64 is needed"):
            embedding([0.5])


@pytest.mark.parametrize("wrong, says", [
    ({"max_norm": 1.0}, "max_norm=1.0: the rows of a table are not renormalised"), ({"sparse": True}, "leave it out"),
    ({"scale_grad_by_freq": True}, "are summed"), ({"colour": 1}, "no argument 'colour'")])
def test_what_an_embedding_does_not_have_is_refused_by_name(wrong, says):
    for kind in (ps_shm.torch.Embedding, ps_shm.torch.EmbeddingBag):
        with pytest.raises(TypeError, match=says):
            kind("t", 10, 4, **wrong)
    ps_shm.torch.Embedding("t", 10, 4, max_norm=None, sparse=False)


def test_a_sync_job_says_that_it_has_no_tables(job):
    with pytest.raises(ps_shm.Error, match="mode sync has no tables of rows.*torch.nn.Embedding"):
        ps_shm.torch.Optimizer(pair()[1], job, create=True, mode="sync")


def test_rows_begin_with_the_accumulator_of_fbgemm(job):
    embedding = ps_shm.torch.Embedding("t", 10, 4, initializer=torch.nn.init.zeros_)
    model = torch.nn.ModuleList([embedding, torch.nn.Linear(2, 1)])
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam", lr=0.25) as opt:
        (2 * embedding([3])).sum().backward()
        opt.step()
        assert torch.allclose(embedding.weight[3], torch.tensor(-0.25))  # the first step of Adagrad from 0


def test_embeddings_train_the_rows_that_a_batch_names(job):
    embedding = ps_shm.torch.Embedding("table", 1000, 4, rule="sgd", deviation=0.5)
    model = torch.nn.Sequential(embedding, torch.nn.Flatten(), torch.nn.Linear(8, 1))
    plain = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        table = embedding.variable
        assert abs(table.pull().std() - 0.5) < 0.05
        plain[0].weight.data = torch.from_numpy(table.pull())
        plain[2].load_state_dict(model[2].state_dict())
        ids = torch.tensor([[3, 999], [3, 5]])
        embedding.prefetch(ids)
        for m, optimizer in ((model, opt), (plain, torch.optim.SGD(plain.parameters(), lr=0.1))):
            for _ in range(3):
                optimizer.zero_grad()
                m(ids).pow(2).sum().backward()
                optimizer.step()
        np.testing.assert_allclose(table.pull(), plain[0].weight.detach().numpy(), atol=1e-5)
        with torch.no_grad():
            assert not model[0](ids).requires_grad
    with pytest.raises(ps_shm.Error, match="of no job yet"):
        ps_shm.torch.Embedding("table", 10, 4)(ids)


def test_rows_of_bfloat16_are_trained_saved_and_loaded(job, tmp_path):
    def made(name, **more):
        return ps_shm.torch.Embedding(name, 100, 6, rule="sgd", dtype=torch.bfloat16, padding_idx=0, **more)

    with ps_shm.Server(job, lr=0.25), ps_shm.Worker(job) as worker:
        half = made("half", worker=worker)
        view = ps_shm.View(job)
        assert [(v.name, v.dtype, v.layout) for v in view.variables()] == [("half", "bfloat16", "inplace")]
        first = half.weight
        assert first.dtype == torch.float32 and torch.equal(first, first.bfloat16().float()) and first[1:].abs().min() < 0.01
        ids = torch.tensor([[3, 5], [3, 0]])
        rows = half(ids)
        assert torch.equal(rows, first[ids])
        rows.sum().backward()
        half.push()
        moved = half.weight - first
        assert (moved[3] + 0.5).abs().max() < 2**-7 and (moved[5] + 0.25).abs().max() < 2**-8
        assert not moved[0].any() and not moved[6:].any()
        half.variable.add_rows(torch.tensor([7]), torch.full((1, 6), 8.0))
        half.variable.assign_rows(torch.tensor([8]), torch.full((1, 6), 1.01))
        assert (half.weight[7] - 8).abs().max() < 0.1 and set(half.weight[8].tolist()) == {1.0078125}
        saved = ps_shm.checkpoint.save(worker, tmp_path)
        loaded = made("loaded")
        loaded.load_state_dict(half.state_dict())
        loaded.attach(worker)
        assert torch.equal(loaded.weight, half.weight)
        loaded.load_state_dict({"weight": first})
        assert torch.equal(loaded.weight, first)
        numbers = worker.variable("numbers", 1.01, shape=(3,), dtype="bfloat16", layout="inplace", rule="add")
        assert numbers.pull(np.zeros(3, np.float32)).tolist() == [1.0078125] * 3
        with pytest.raises(ps_shm.Error, match="a view is of float32"):
            numbers.view()
        expected = half.weight
    with pytest.raises(ValueError, match="rows are of torch.float32 or torch.bfloat16, not torch.float16"):
        ps_shm.torch.Embedding("wrong", 10, 2, dtype=torch.float16)
    with ps_shm.Server(job + "-next", lr=0.25, restore=saved), ps_shm.Worker(job + "-next") as worker:
        assert torch.equal(made("half", worker=worker).weight, expected)


def test_zero_grad_drops_what_a_batch_gave_an_embedding(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd")
    with ps_shm.torch.Optimizer(torch.nn.Sequential(embedding, torch.nn.Linear(4, 1)), job, create=True, lr=0.1) as opt:
        before = embedding.variable.pull()
        embedding(torch.tensor([3])).sum().backward()
        kept = embedding(torch.tensor([5])).sum()  # its gradient is computed only after zero_grad()
        opt.zero_grad()
        kept.backward()
        opt.step()
        changed = (embedding.variable.pull() != before).any(1)
        assert changed.nonzero()[0].tolist() == [5]


def test_gradients_that_are_set_to_zero_make_no_row(job):
    keyed = ps_shm.torch.Embedding("table", 64, 4, keyed=True)
    with ps_shm.torch.Optimizer(torch.nn.Sequential(keyed, torch.nn.Linear(4, 1)), job, create=True, lr=0.1) as opt:
        keyed(torch.tensor([3])).sum().backward()
        opt.zero_grad(set_to_none=False)
        opt.step()
        assert keyed.table.statistics().made == 0


@pytest.mark.parametrize("way", ["sum of two tables", "two losses", "a parameter of the same shape", "a sum of rows"])
def test_gradients_of_rows_share_no_memory_with_others(job, way):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (ps_shm.torch.Embedding(name, 10, 4, rule="sgd") for name in "ab")
            self.place = torch.nn.Parameter(torch.zeros(1, 4))

    model, ids = Model(), torch.tensor([3])
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        before = model.a.weight[3]
        if way == "sum of two tables":
            ((model.a(ids) + model.b(ids)) * 8).sum().backward()
            scaler = Scaler(8.0)
            scaler.unscale_(opt)
            expected = -1
        elif way == "two losses":
            rows = model.a(ids)
            (rows * torch.ones(4)).sum().backward(retain_graph=True)
            (rows * 10).sum().backward()
            expected = -11
        elif way == "a parameter of the same shape":
            for factor in (1, 10):
                ((model.a(ids) + model.place) * factor).sum().backward()
            expected = -11
        else:
            (model.a(torch.tensor([3, 3])).sum(1) * 8).sum().backward()
            Scaler(8.0).unscale_(opt)
            expected = -2
        opt.step()
        assert torch.allclose(model.a.weight[3], before + expected)


def change_in_place(rows):
    rows += 1
    rows.mul_(2)
    rows[0, 0] = 0
    return torch.nn.Dropout(0.5, inplace=True).eval()(rows)


@pytest.mark.parametrize("change", [
    change_in_place,
    lambda rows: rows * torch.autograd.grad(rows.pow(3).sum(), rows, create_graph=True)[0],
    lambda rows: torch.utils.checkpoint.checkpoint(torch.tanh, rows, use_reentrant=False),
], ids=["in place", "by its gradient", "from a checkpoint"])
@pytest.mark.parametrize("keyed", [False, True])
def test_rows_are_used_as_those_of_an_embedding_of_torch(job, keyed, change):
    ours = ps_shm.torch.Embedding("table", 100, 4, rule="sgd", keyed=keyed, deviation=1.0)
    theirs, ids = torch.nn.Embedding(3, 4), torch.tensor([3, 9, 3])
    with ps_shm.torch.Optimizer(torch.nn.Sequential(ours, torch.nn.Linear(1, 1)), job, create=True, lr=0.5, optimizer="sgd") as opt:
        theirs.weight.data = ours(torch.tensor([3, 9, 5])).detach()
        plain = torch.optim.SGD(theirs.parameters(), lr=0.5)
        for embedding, given, optimizer in ((ours, ids, opt), (theirs, torch.tensor([0, 1, 0]), plain)):
            for _ in range(2):
                optimizer.zero_grad()
                change(embedding(given)).sum().backward()
                optimizer.step()
        torch.testing.assert_close(ours(torch.tensor([3, 9, 5])), theirs(torch.arange(3)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keyed", [False, True])
def test_gradients_that_are_only_asked_for_train_no_row(job, keyed):
    embedding = ps_shm.torch.Embedding("table", 100, 4, rule="sgd", keyed=keyed)
    head, ids = torch.nn.Linear(4, 1), torch.tensor([3])
    with ps_shm.torch.Optimizer(torch.nn.Sequential(embedding, head), job, create=True, lr=1.0) as opt:
        rows = embedding(ids)
        before = rows.detach().clone()
        (gradient,) = torch.autograd.grad(head(rows).sum(), rows)
        assert torch.equal(gradient, head.weight)
        torch.autograd.grad(head(embedding(ids)).sum(), head.weight)
        opt.step()
        assert torch.equal(embedding(ids), before)


def trains(model, opt):
    before = model[0].weight
    model(torch.tensor([3])).sum().backward()
    opt.step()
    return not torch.equal(model[0].weight, before)


def test_an_embedding_is_frozen_by_itself_and_trains_in_eval(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd")
    model = torch.nn.Sequential(embedding, torch.nn.Linear(4, 1))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        assert trains(model, opt)
        assert not (embedding.requires_grad_(False), trains(model, opt))[1]
        assert (embedding.requires_grad_(), trains(model, opt))[1]
        assert (model.eval(), trains(model, opt))[1]
        model(torch.tensor([3])).sum().backward()
        for p in opt.param_groups[0]["params"]:
            p.grad = None
        before = embedding.weight
        opt.step()
        assert torch.equal(embedding.weight, before)


def test_what_freezes_the_weight_of_an_embedding_freezes_its_table(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd")
    model = torch.nn.Sequential(embedding, torch.nn.Linear(4, 1))
    assert embedding.weight.requires_grad
    embedding.weight.requires_grad = False
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        assert not embedding.weight.requires_grad and not trains(model, opt)
        assert embedding.weight.requires_grad_().requires_grad and trains(model, opt)
        assert not (embedding.weight.requires_grad_(False), trains(model, opt))[1]
        view = embedding.weight.detach()
        view.requires_grad_()
        assert view.requires_grad and not embedding.weight.requires_grad


@pytest.mark.parametrize("write", [
    lambda weight: setattr(weight, "data", torch.ones(10, 4)), lambda weight: setattr(weight, "grad", torch.ones(10, 4)),
    lambda weight: next(iter(weight)).fill_(1), lambda weight: weight.unbind()[0].fill_(1), lambda weight: weight.chunk(2)[1].zero_(),
    lambda weight: torch._foreach_add_([weight], 1.0), lambda weight: weight.detach().numpy().fill(1), lambda weight: np.asarray(weight).fill(1)])
def test_no_write_to_the_weight_of_an_embedding_is_lost(write):
    embedding = ps_shm.torch.Embedding("table", 10, 4)
    with pytest.raises((ps_shm.Error, ValueError), match="is a copy of its table|read-only"):
        write(embedding.weight)


def test_the_weight_of_an_embedding_is_copied_as_a_plain_tensor(tmp_path):
    weight = ps_shm.torch.Embedding("table", 10, 4).weight
    torch.save(weight, tmp_path / "weight.pt")
    for made in (copy.deepcopy(weight), torch.load(tmp_path / "weight.pt"), weight + 0, weight.clone()):
        assert type(made) is torch.Tensor and torch.equal(made, weight) and made.fill_(1).all()
    for frozen in (False, True):
        made = copy.deepcopy(torch.nn.Embedding.from_pretrained(weight, freeze=frozen)).weight
        assert type(made) is torch.nn.Parameter and made.requires_grad is not frozen and torch.equal(made, weight)


@pytest.mark.parametrize("keyed", [False, True])
def test_gradients_are_of_the_ids_that_forward_had(job, keyed):
    embedding = ps_shm.torch.Embedding("table", 64, 4, rule="sgd", keyed=keyed)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(4, 1))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        every, buffer = torch.arange(8), torch.empty(2, dtype=torch.int64)
        before = embedding(every).detach()
        for ids in ([0, 1], [2, 3], [4, 5]):
            buffer.copy_(torch.tensor(ids))
            loss = model(buffer).sum()
            buffer.fill_(7)
            loss.backward()
        opt.step()
        changed = (embedding(every) != before).any(1)
        assert changed.tolist() == [True] * 6 + [False] * 2


@pytest.mark.parametrize("keyed", [False, True])
def test_a_table_is_not_begun_anew_without_a_word(job, keyed):
    embedding = ps_shm.torch.Embedding("table", 100, 4, rule="sgd", keyed=keyed)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(4, 1))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        model(torch.tensor([3])).sum().backward()
        opt.step()
        kept = model.state_dict()
        trained = embedding(torch.tensor([3]))
    with pytest.raises(ps_shm.Error, match="its table went with the job"):
        ps_shm.torch.Optimizer(model, job, create=True, lr=0.1)
    model.load_state_dict(kept)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1):
        assert torch.equal(embedding(torch.tensor([3])), trained)
    with ps_shm.Server(job), ps_shm.torch.Optimizer(copy.deepcopy(small_model()), job):
        model.load_state_dict(kept)
        with ps_shm.torch.Optimizer(model, job, prefix="x."):
            pass
        with ps_shm.torch.Optimizer(model, job, prefix="y."):  # the job still has it
            assert torch.equal(embedding(torch.tensor([3])), trained)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_of_pytorch_does_not_matter(job, dtype):
    model = torch.nn.Sequential(ps_shm.torch.Embedding("table", 10, 4), torch.nn.Linear(4, 2))
    model[1].weight = torch.nn.Parameter(torch.randn(4, 2).t())
    half = torch.nn.Linear(4, 2).bfloat16()
    torch.set_default_dtype(dtype)
    try:
        with ps_shm.torch.Optimizer(model, job, create=True) as opt:
            model(torch.tensor([1])).sum().backward()
            opt.step()
        with ps_shm.torch.Optimizer(half, job, create=True):
            pass
        with ps_shm.torch.Elastic(torch.nn.Linear(4, 2, dtype=torch.float32), job, create=True, alpha=0.5) as elastic:
            assert elastic.step()
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_with_a_table_goes_on_from_a_checkpoint(job, tmp_path):
    def one():
        torch.manual_seed(1)
        return torch.nn.Sequential(ps_shm.torch.Embedding("table", 100, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))

    def steps(model, opt, count):
        for _ in range(count):
            opt.zero_grad()
            model(torch.tensor([[3, 99], [3, 5]])).pow(2).sum().backward()
            opt.step()

    straight, model, other = one(), one(), one()
    with ps_shm.torch.Optimizer(straight, job, create=True, lr=0.1) as opt:
        steps(straight, opt, 8)
        expected = straight[0].variable.pull()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        steps(model, opt, 4)
        folder = ps_shm.checkpoint.save(opt.worker, tmp_path)
    with ps_shm.torch.Optimizer(other, job, create=True, lr=0.1, restore=folder) as opt:
        steps(other, opt, 4)
        np.testing.assert_array_equal(other[0].variable.pull(), expected)


def test_the_table_of_an_embedding_is_part_of_the_state_dict(job, tmp_path):
    def one():
        torch.manual_seed(0)
        return torch.nn.Sequential(ps_shm.torch.Embedding("table", 50, 4, rule="sgd"), torch.nn.Linear(4, 1))

    model, other = one(), one()
    first = model[0].weight
    assert first.std() > 0 and torch.equal(model.state_dict()["0.weight"], first)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        model(torch.tensor([3, 4])).sum().backward()
        opt.step()
        torch.save(model.state_dict(), tmp_path / "model.pt")
        trained = model[0].weight
        np.testing.assert_array_equal(trained.numpy(), model[0].variable.pull())
        assert (trained != first).any(1).nonzero().flatten().tolist() == [3, 4]
    with pytest.raises(ps_shm.Error, match="has left"):
        model.state_dict()  # the table has gone with the job
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert torch.equal(other[0].weight, trained)
    with ps_shm.torch.Optimizer(other, job, create=True, lr=0.1):
        assert torch.equal(other[0].weight, trained)
        other.load_state_dict({**other.state_dict(), "0.weight": first})
        assert torch.equal(other[0].weight, first)
        with pytest.raises(RuntimeError, match="Missing key.*0.weight"):
            other.load_state_dict({k: v for k, v in other.state_dict().items() if k != "0.weight"})
        with pytest.raises(RuntimeError, match="size mismatch for 0.weight"):
            other.load_state_dict({**other.state_dict(), "0.weight": torch.zeros(3, 4)})


def test_rows_that_no_backward_pass_follows_are_not_kept(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4)
    with ps_shm.Server(job), ps_shm.Worker(job) as worker:
        embedding.attach(worker)
        kept = weakref.ref(embedding(torch.tensor([1, 2])))
        assert kept() is None
        rows = embedding(torch.tensor([1, 2]))
        rows.sum().backward()
        kept = weakref.ref(rows)
        del rows
        embedding.drop()
        assert kept() is None


def test_an_id_below_zero_is_shown_as_it_was_given(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4)
    with ps_shm.Server(job), ps_shm.Worker(job) as worker:
        embedding.attach(worker)
        for dtype in (torch.int64, torch.int32):
            with pytest.raises(ps_shm.Error, match=r"id -1 \(number 1 of 2\) is out of range"):
                embedding(torch.tensor([3, -1], dtype=dtype))
        assert embedding(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 4)


@pytest.mark.parametrize("padding", [0, -10])
def test_the_padding_row_stays_zero(job, padding):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd", padding_idx=padding)
    with ps_shm.Server(job, lr=0.1), ps_shm.Worker(job) as worker:
        embedding.attach(worker)
        before = embedding.weight
        embedding(torch.tensor([[0, 5], [0, 0]])).sum().backward()
        embedding.push()
        assert not embedding.weight[0].any()
        assert (embedding.weight != before).any(1).nonzero().flatten().tolist() == [5]
        embedding(torch.tensor([0])).sum().backward()
        embedding.push()


def bag_pair(job_worker, mode, padding):
    bag = ps_shm.torch.EmbeddingBag("bags", 20, 3, mode=mode, rule="sgd", deviation=1.0, padding_idx=padding, worker=job_worker)
    plain = torch.nn.EmbeddingBag(20, 3, mode=mode, padding_idx=padding)
    plain.weight.data = bag.weight
    return bag, plain


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0])
def test_bags_are_those_of_torch(job, mode, padding):
    with ps_shm.Server(job, lr=0.1), ps_shm.Worker(job) as worker:
        bag, plain = bag_pair(worker, mode, padding)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        weights = {"per_sample_weights": torch.tensor([0.5, 2, 1, -1, 3, 1])} if mode == "sum" else {}
        for arguments, more in (((torch.tensor([[3, 0, 3], [19, 7, 0]]),), {}),
                                ((torch.tensor([3, 0, 3, 19, 7, 8]), torch.tensor([0, 2, 2])), weights)):  # one is empty
            results = []
            for module in (bag, plain):
                optimizer.zero_grad()
                results.append(module(*arguments, **more))
                results[-1].pow(2).sum().backward()
                bag.push() if module is bag else optimizer.step()
            torch.testing.assert_close(*results)
            torch.testing.assert_close(bag.weight, plain.weight.detach())
        with pytest.raises(ValueError, match="choose sum, mean or max"):
            ps_shm.torch.EmbeddingBag("bags", 20, 3, mode="median")


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_any_id_have_gradients(job, mode):
    bag = ps_shm.torch.EmbeddingBag("bags", 10, 4, mode=mode)
    with ps_shm.torch.Optimizer(torch.nn.Sequential(bag, torch.nn.Linear(4, 1)), job, create=True, lr=1.0) as opt:
        before, count = bag.weight, len(opt.param_groups[0]["params"])
        bags = bag(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
        bags.sum().backward()
        assert not bags.any() and len(opt.param_groups[0]["params"]) == count
        opt.step()
        assert torch.equal(bag.weight, before)


def test_bags_train_with_an_optimizer(job):
    bag = ps_shm.torch.EmbeddingBag("bags", 20, 3, mode="sum", rule="sgd", include_last_offset=True)
    model = torch.nn.Sequential(bag)
    with ps_shm.torch.Optimizer(torch.nn.ModuleList([model, torch.nn.Linear(1, 1)]), job, create=True, lr=0.1) as opt:
        before = bag.weight
        bag(torch.tensor([4, 4, 5]), torch.tensor([0, 2, 3])).sum().backward()
        opt.step()
        moved = torch.zeros(20, 3)
        moved[4], moved[5] = -0.2, -0.1
        torch.testing.assert_close(bag.weight - before, moved)


@pytest.mark.parametrize("unscales_first", [False, True])
def test_a_grad_scaler_unscales_the_gradients_of_rows_too(job, unscales_first):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if hasattr(torch.amp, "GradScaler") else Scaler(1024.0)
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd")
    model = torch.nn.Sequential(embedding, torch.nn.Linear(4, 1, bias=False))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        def step(factor):
            opt.zero_grad()
            scaler.scale((model(torch.tensor([3, 3])) * factor).sum()).backward()
            if unscales_first:
                scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()

        before, weights = embedding.weight, model[1].weight.detach().clone()
        step(1.0)
        torch.testing.assert_close(embedding.weight[3], before[3] - 0.1 * 2 * weights[0])
        assert len(opt.param_groups[0]["params"]) == 2  # the table, and the weight
        before, steps = embedding.weight, opt.global_step
        step(float("inf"))  # overflows: the step is skipped
        assert torch.equal(embedding.weight, before) and opt.global_step == steps
        opt.zero_grad()
        opt.step()
        assert torch.equal(embedding.weight, before)


def test_a_copy_of_an_embedding_shares_its_table_and_no_more(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd")
    embedding.scale = torch.nn.Parameter(torch.ones(1))
    with ps_shm.torch.Optimizer(torch.nn.Sequential(embedding, torch.nn.Linear(4, 1)), job, create=True, lr=1.0) as opt:
        made, called = copy.deepcopy(embedding), []
        made.register_forward_hook(lambda *_: called.append(made))
        embedding(torch.tensor([3]))
        assert not called and made.scale is not embedding.scale and torch.equal(made.scale, embedding.scale)
        before, count = made.weight, len(opt.param_groups[0]["params"])
        made(torch.tensor([3])).sum().backward()
        assert called == [made] and len(opt.param_groups[0]["params"]) == count
        opt.step()
        assert torch.equal(embedding.weight, before)
        made.push()
        assert torch.equal(embedding.weight[3], before[3] - 1)
