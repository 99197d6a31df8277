"""Embeddings of a job beside torch.nn.Embedding: their weight, clipping, names, and what they refuse."""
import copy
import pickle

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch


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
