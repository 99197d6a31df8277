"""ps_shm.torch.Optimizer beside the optimizers of PyTorch: rules, schedulers, groups, buffers, state."""
import copy
import pickle
import threading
import time
import types

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch
from conftest import PATIENCE, wait_until
from models import small_model, train


@pytest.mark.parametrize("ours, theirs", [
    ({"optimizer": "sgd", "lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
    ({"optimizer": "momentum", "lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    ({"optimizer": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_one_worker_trains_as_the_optimizer_of_torch_does(job, ours, theirs, mode):
    plain = small_model()
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, mode=mode, **ours) as opt:
        expected, got = train(plain, theirs(plain.parameters()), 20), train(model, opt, 20)
        assert got == pytest.approx(expected, rel=1e-3)
        for a, b in zip(plain.state_dict().values(), model.state_dict().values()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
        assert opt.param_groups[0]["lr"] == pytest.approx(ours["lr"]) and opt.param_groups[0]["optimizer"] == ours["optimizer"]
        assert opt.global_step == 20 and not opt.finished and opt.staleness().max == 0


def test_the_names_and_values_are_those_of_the_state_dict(job):
    first, second = small_model(0), small_model(7)
    with ps_shm.torch.Optimizer(first, job, create=True, workers=2, lr=0.1):
        state = ps_shm.View(job).state()
        assert set(state) == set(first.state_dict())
        with ps_shm.torch.Optimizer(second, job, lr=0.1):
            for name, values in second.state_dict().items():
                np.testing.assert_array_equal(values.numpy(), first.state_dict()[name].numpy())
                np.testing.assert_array_equal(values.numpy(), state[name])


@pytest.mark.parametrize("layer", (torch.nn.Embedding, torch.nn.EmbeddingBag))
def test_a_trained_weight_that_forward_changes_is_refused(job, layer):
    model = torch.nn.Sequential(layer(8, 2, max_norm=1.0), torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="forward.. of '0' writes to its weight, since it has max_norm"):
        ps_shm.torch.Optimizer(model, job, create=True)
    ps_shm.torch.Elastic(model, job, create=True, alpha=0.5).close()
    local = torch.optim.SGD(model.parameters(), lr=0.1)
    ps_shm.torch.Optimizer(model, job, create=True, local=local, push_every=2).close()
    model[0].weight.requires_grad = False
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as optimizer:
        model[0].weight.requires_grad = True
        model(torch.tensor([[1, 2]]))[0].sum().backward()
        with pytest.raises(TypeError, match="max_norm"):
            optimizer.step()


def test_models_that_a_job_cannot_take_are_refused(job):
    with pytest.raises(TypeError, match="float64; pass the model in float32, bfloat16 or float16"):
        ps_shm.torch.Optimizer(small_model().double(), job, create=True)
    with pytest.raises(TypeError, match="float64; pass the model in float32, bfloat16 or float16"):
        ps_shm.torch.Elastic(small_model().double(), job, create=True, alpha=0.5)
    with pytest.raises(TypeError, match="on meta; pass the model on the CPU"):
        ps_shm.torch.Optimizer(torch.nn.Linear(2, 2, device="meta"), job, create=True)
    with pytest.raises(TypeError, match="no parameters"):
        ps_shm.torch.Optimizer(torch.nn.ReLU(), job, create=True)
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    tied[1].weight = torch.nn.Parameter(tied[0].weight.data)
    with pytest.raises(TypeError, match="'0.weight' and '1.weight' share memory; tie them as one Parameter"):
        ps_shm.torch.Optimizer(tied, job, create=True)
    memory = torch.zeros(10)
    tied[0].bias, tied[1].bias = torch.nn.Parameter(memory[:6]), torch.nn.Parameter(memory[4:])
    tied[1].weight = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(TypeError, match="'0.bias' and '1.bias' share memory"):
        ps_shm.torch.Optimizer(tied, job, create=True)
    tied[0].bias, tied[1].bias = torch.nn.Parameter(memory[:8:4]), torch.nn.Parameter(memory[1:3])  # between the elements
    ps_shm.torch.Optimizer(tied, job, create=True).close()
    with pytest.raises(ValueError, match="go together"):
        ps_shm.torch.Optimizer(small_model(), job, create=True, push_every=4)
    with pytest.raises(ValueError, match="an integer above 1"):
        ps_shm.torch.Optimizer(small_model(), job, create=True, push_every=1.5, local=torch.optim.SGD(small_model().parameters(), lr=0.1))


def test_schedulers_of_torch_act_on_the_job(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
        train(model, opt, 1)
        assert opt.worker.live["lr"] == 1
        scheduler.step()
        train(model, opt, 1)
        assert opt.worker.live["lr"] == 0.5
        with pytest.raises(ValueError, match="must support momentum"):  # sgd has none
            torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=13)


@pytest.mark.parametrize("make", [
    lambda opt: torch.optim.lr_scheduler.StepLR(opt, 3, 0.5),
    lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12),
    lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 11),  # the last step's rate is 0
    lambda opt: torch.optim.lr_scheduler.PolynomialLR(opt, 9),
    lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: epoch / 12),  # and here the first one's
    lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 1 / (1 + epoch)),
    lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=13, cycle_momentum=False),
    lambda opt: torch.optim.lr_scheduler.SequentialLR(
        opt, [torch.optim.lr_scheduler.LinearLR(opt), torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)], [4]),
    lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=1.0),
])
def test_schedulers_give_the_rates_that_they_give_an_optimizer_of_torch(job, make):
    plain, model = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, mode="sync") as opt:
        reference = torch.optim.SGD(plain.parameters(), lr=0.1)
        for m, optimizer in ((plain, reference), (model, opt)):
            scheduler = make(optimizer)
            for _ in range(12):
                loss = train(m, optimizer, 1)
                scheduler.step(loss) if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else scheduler.step()
        assert opt.param_groups[0]["lr"] == pytest.approx(reference.param_groups[0]["lr"], rel=1e-4)
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ours, theirs", [
    ({"optimizer": "momentum", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    ({"optimizer": "nesterov", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
    ({"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, lr=0.1)),
])
def test_schedulers_may_change_the_momentum(job, ours, theirs):
    plain, model = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, mode="sync", **ours) as opt:
        for m, optimizer in ((plain, theirs(plain.parameters())), (model, opt)):
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=13, base_momentum=0.5, max_momentum=0.8)
            for _ in range(12):
                train(m, optimizer, 1)
                scheduler.step()
        live = opt.worker.live["momentum" if ours["optimizer"] in ("momentum", "nesterov") else "beta1"]
        assert 0.75 < float(live) < 0.8  # of the last step, not quite back at the top
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("schedule", [torch.optim.lr_scheduler.ExponentialLR, lambda opt, f: torch.optim.lr_scheduler.LambdaLR(opt, lambda k: f * k)],
                         ids=["ExponentialLR", "from 0"])
def test_a_scheduler_changes_the_rates_of_its_own_model_alone(job, schedule):
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    with ps_shm.torch.Optimizer(models[0], job, create=True, prefix="generator.", lr=0.5) as first:
        with ps_shm.torch.Optimizer(models[1], job, create=True, prefix="discriminator.", lr=0.5) as second:
            scheduler = schedule(second, 0.5)
            for _ in range(4):
                for model, opt in zip(models, (first, second)):
                    before, wanted = model.weight.item(), opt.param_groups[0]["lr"]
                    model.weight.grad = torch.ones(1, 1)
                    opt.step()
                    assert before - model.weight.item() == pytest.approx(wanted, rel=1e-4, abs=1e-6)
                scheduler.step()
            assert [opt.param_groups[0]["lr"] == 0.5 for opt in (first, second)] == [True, False]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_groups_have_rates_and_weight_decay_of_their_own(job, mode):
    plain, model = small_model(), small_model()

    def groups(m):
        first, second, others = list(m[0].parameters()), [m[3].weight], [*m[1].parameters(), m[3].bias]
        return [{"params": first, "lr": 0.01, "weight_decay": 0.1}, {"params": second, "lr": 0.05, "weight_decay": 0.4},
                {"params": others, "weight_decay": 0.0}]

    def train_in_two_halves(m, opt):
        for _ in range(2):
            train(m, opt, 5)
            for group in opt.param_groups:
                group["lr"] *= 0.5

    with ps_shm.torch.Optimizer(model, job, create=True, mode=mode, optimizer="adamw", lr=0.02, params=groups(model)) as opt:
        assert [group["lr"] for group in opt.param_groups] == pytest.approx([0.01, 0.05, 0.02])
        assert [group["weight_decay"] for group in opt.param_groups] == pytest.approx([0.1, 0.4, 0])
        assert opt.worker.settings["weight_decay"] == pytest.approx(0.4)
        train_in_two_halves(plain, torch.optim.AdamW(groups(plain), lr=0.02, weight_decay=0))
        train_in_two_halves(model, opt)
        for a, b in zip(plain.state_dict().values(), model.state_dict().values()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
        assert opt.state_dict()["param_groups"][1]["lr"] == pytest.approx(0.0125)
        opt.param_groups[0]["betas"] = (0.5, 0.999)
        with pytest.raises(ps_shm.Error, match="differ in `beta1`: it is the job's, for all groups"):
            opt.step()


GROUPS_OF_THEIR_OWN = {
    "LambdaLR": lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, [lambda k: 1 / (1 + k), lambda k: k / 12]),  # one from 0
    "both from 0": lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, [lambda k: k / 12, lambda k: min(k / 3, 1)]),
    "OneCycleLR": lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, [0.2, 0.05], total_steps=13, cycle_momentum=False),
    "then alike": lambda opt: torch.optim.lr_scheduler.SequentialLR(opt, [
        torch.optim.lr_scheduler.LambdaLR(opt, [lambda k: 1 / (1 + k), lambda k: 1.0]), torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)], [5]),
}


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("rule, theirs", [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
@pytest.mark.parametrize("scheduler", GROUPS_OF_THEIR_OWN)
def test_groups_may_have_rates_and_decays_of_their_own_at_any_time(job, mode, rule, theirs, scheduler):
    plain, model = small_model(), small_model()
    groups = lambda m: [{"params": [*m[0].parameters(), *m[1].parameters()], "weight_decay": 0.0}, {"params": m[3].parameters(), "lr": 0.02}]
    with ps_shm.torch.Optimizer(model, job, create=True, mode=mode, optimizer=rule, lr=0.1, weight_decay=0.2, params=groups(model)) as opt:
        reference = theirs(groups(plain), lr=0.1, weight_decay=0.2)
        for m, optimizer in ((plain, reference), (model, opt)):
            follow = GROUPS_OF_THEIR_OWN[scheduler](optimizer)
            for step in range(12):
                optimizer.param_groups[0]["weight_decay"] = 0.01 * step  # as a schedule of the decay does
                train(m, optimizer, 1)
                follow.step()
        for ours, of_torch in zip(opt.param_groups, reference.param_groups):
            assert ours["lr"] == pytest.approx(of_torch["lr"], rel=1e-6) and ours["weight_decay"] == of_torch["weight_decay"]
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)


def test_a_group_may_have_no_rate_and_the_job_needs_none_if_all_have_one(job):
    model = small_model()
    params = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[3].parameters(), "lr": 0.0}]
    with ps_shm.torch.Optimizer(model, job, create=True, params=params) as opt:
        assert opt.worker.settings["lr"] == 0.5 and [group["lr"] for group in opt.param_groups] == [0.5, 0.0]
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        train(model, opt, 1)
        assert [n for n, p in model.named_parameters() if not torch.equal(p, before[n])] == ["0.weight"]
        opt.param_groups[1]["lr"] = 0.1
        train(model, opt, 1)
        assert [n for n, p in model.named_parameters() if torch.equal(p, before[n])] == ["1.weight", "1.bias"]  # of no group
        opt.param_groups[1]["weight_decay"] = 0.5
        with pytest.raises(ps_shm.Error, match="a group of parameters has weight_decay=0.5, and the job 0: create the job with one"):
            opt.step()
        opt.param_groups[1]["weight_decay"] = 0
        with pytest.raises(ps_shm.Error, match="groups of parameters are fixed"):
            opt.add_param_group({"params": model[1].parameters()})
    with pytest.raises(ValueError, match="a group has weight_decay=0.1, and the job weight_decay=0"):
        ps_shm.torch.Optimizer(model, job, create=True, weight_decay=0, params=[{"params": model.parameters(), "weight_decay": 0.1}])
    with pytest.raises(ValueError, match="a group has lr=-0.1, and the job lr=0.1"):
        ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, params=[{"params": model.parameters(), "lr": -0.1}])


@pytest.mark.parametrize("policy", ["chief", "mean", "local"])
def test_buffers_follow_their_policy(job, policy):
    models = [torch.nn.BatchNorm1d(2) for _ in range(2)]
    x = torch.arange(8.0).reshape(4, 2)
    with ps_shm.Server(job, workers=2):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r, buffers=policy) for r, m in enumerate(models)]
        for model, opt, factor in zip(models, opts, (1.0, 3.0)):
            opt.zero_grad()
            model(factor * x).sum().backward()
            opt.step()
        for opt in opts:
            opt.pull()
        means = [m.running_mean[0].item() for m in models]
        counts = [m.num_batches_tracked.item() for m in models]
        one = 0.1 * x[:, 0].mean().item()  # from the batch of the first worker
        if policy == "local":
            assert means == pytest.approx([one, 3 * one]) and counts == [1, 1]
        elif policy == "chief":
            assert means == pytest.approx([one] * 2) and counts == [1, 1]
        else:
            assert means == pytest.approx([(one + 3 * one) / 2] * 2)
            assert counts == [2, 2]
        models[1](x)  # which changes buffers that nobody has pushed since
        opts[1].pull()
        assert (models[1].running_mean.tolist() == models[0].running_mean.tolist()) == (policy != "local")
        for opt in opts:
            opt.close()


def test_a_buffer_that_forward_puts_another_tensor_into_is_shared(job):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            return self.linear(x)

    models = [Model(), Model()]
    with ps_shm.Server(job, workers=2):
        opts = [ps_shm.torch.Optimizer(model, job, rank=rank) for rank, model in enumerate(models)]
        for model, opt, factor in zip(models, opts, (1.0, 3.0)):
            model(torch.full((4, 2), factor)).sum().backward()
            opt.step()
        opts[0].pull()
        assert all(model.mean.tolist() == [0.5, 0.5] for model in models)
        models[0].mean = torch.zeros(3)
        with pytest.raises(ps_shm.Error, match="buffer 'mean' has become torch.float32 of shape \\(3,\\)"):
            opts[0].pull()
        models[0].mean = torch.zeros(2)
        for opt in opts:
            opt.close()


@pytest.mark.parametrize("expected", [1, 6])
def test_a_mean_is_over_the_workers_that_there_are_whatever_the_job_expected(job, expected):
    models = [torch.nn.BatchNorm1d(2) for _ in range(4)]
    with ps_shm.Server(job, workers=expected, lr=0.0):
        opts = [ps_shm.torch.Optimizer(model, job, rank=rank, buffers="mean") for rank, model in enumerate(models)]
        for model, opt in zip(models, opts):
            opt._membership._looked = -1.0  # it looks for the others now
            model(torch.full((4, 2), 4.0)).sum().backward()
            opt.step()
        opts[0].pull()
        assert models[0].running_mean.tolist() == pytest.approx([0.4, 0.4])
        for opt in opts:
            opt.close()


def test_local_steps_of_workers_that_the_job_did_not_expect_are_averaged(job):
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(3)]
    barrier = threading.Barrier(3)

    def run(rank):
        model = models[rank]
        local = torch.optim.SGD(model.parameters(), lr=1.0)
        with ps_shm.torch.Optimizer(model, job, rank=rank, push_every=2, local=local) as opt:
            barrier.wait(PATIENCE)
            begun[rank] = model.weight.item()
            for _ in range(2):
                opt.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                opt.step()

    begun = [0.0] * 3
    with ps_shm.Server(job, mode="sync", optimizer="add", workers=1):
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert models[0].weight.item() == pytest.approx(begun[0] - 2)


def local_sgd(job, rank=None):
    """A model of one weight, at 0, and its Optimizer, for which each two calls of step() are a difference of +1."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model.weight.grad = torch.full((1, 1), -0.5)
    local = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, ps_shm.torch.Optimizer(model, job, rank=rank, push_every=2, local=local)


@pytest.mark.parametrize("quorum", [1, 2])
def test_with_a_quorum_sgd_averages_the_differences_that_are_in_a_step(job, quorum):
    def run(rank):
        with local_sgd(job, rank)[1] as opt:
            for _ in range(20):
                opt.step()

    with ps_shm.Server(job, mode="sync", optimizer="sgd", lr=1.0, workers=3, quorum=quorum):
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        view = ps_shm.View(job)
        assert view.global_step >= 10 and view.values("weight").item() == view.global_step


# Their sum over a quorum, divided by the number of workers, was less than their mean.
def test_with_a_quorum_differences_are_not_added_up(job):
    with ps_shm.Server(job, mode="sync", optimizer="add", workers=2, quorum=1) as server:
        with pytest.raises(ps_shm.Error, match="quorum.*optimizer='sgd' and lr=1"):
            local_sgd(job)
        server.set(quorum=0)
        model, opt = local_sgd(job)
        with opt:
            opt.step()
            server.set(quorum=1)
            with pytest.raises(ps_shm.Error, match="quorum"):
                opt.step()
            server.set(quorum=0)
            opt.step()  # the step that was refused
            assert opt.global_step == 1 and model.weight.item() == 1


def test_the_means_of_a_first_step_in_sync_mode_are_over_those_that_it_waits_for(job):
    def run(rank):
        torch.nn.init.zeros_(models[rank].weight)
        local = torch.optim.SGD(models[rank].parameters(), lr=1.0)
        with ps_shm.torch.Optimizer(models[rank], job, rank=rank, push_every=2, local=local, buffers="mean") as opt:
            for _ in range(2):
                opt.zero_grad()
                (-models[rank].weight.sum()).backward()
                models[rank].seen += 1
                opt.step()

    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    for model in models:
        model.register_buffer("seen", torch.zeros(1))
    with ps_shm.Server(job, mode="sync", optimizer="add", workers=2):
        first = threading.Thread(target=run, args=(0,))
        first.start()
        wait_until(lambda: any(w.waiting_for for w in ps_shm.View(job).workers()), "the first one has pushed, and waits")
        run(1)
        first.join()
    assert [(model.weight.item(), model.seen.item()) for model in models] == [(2.0, 2.0)] * 2


def test_local_sgd_pushes_the_difference_of_several_steps(job):
    model, plain = small_model(), small_model()
    local = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    with ps_shm.torch.Optimizer(model, job, create=True, push_every=5, local=local, buffers="local") as opt:
        train(model, opt, 10)
        train(plain, reference, 10)
        assert opt.global_step == 2
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_elastic_averaging_moves_model_and_centre_towards_each_other(job):
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 0.0)
    with ps_shm.torch.Elastic(model, job, alpha=0.25, every=2, create=True) as elastic:
        with torch.no_grad():
            model.weight.fill_(8.0)
        assert not elastic.step()
        assert elastic.step()
        assert model.weight.tolist() == [[6, 6]]
        elastic.pull()
        assert model.weight.tolist() == [[2, 2]]
    for alpha, every in ((0.0, 1), (1.0, 1), (0.5, 0), (0.5, 1.5)):
        with pytest.raises(ValueError, match="alpha lies between 0 and 1, and every is at least 1"):
            ps_shm.torch.Elastic(model, job, alpha=alpha, every=every, create=True)


def test_a_subscriber_keeps_a_model_at_the_newest_weights(job):
    model, other = small_model(0), small_model(5)
    other[0].weight = torch.nn.Parameter(other[0].weight.data.t().contiguous().t())  # not contiguous
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, other) as subscriber:
        assert subscriber.update() is None
        assert publisher.publish(3) == 1
        assert subscriber.update(wait=True) == 1 and subscriber.step == 3
        for a, b in zip(model.state_dict().values(), other.state_dict().values()):
            assert torch.equal(a, b)
        assert subscriber.update() is None
        assert [reader.acknowledged for reader in publisher.readers()] == [1]


def test_a_tensor_that_was_tied_or_removed_is_not_published_as_it_was(job):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with ps_shm.torch.Publisher(job, model) as publisher:
        assert publisher.publish(1) == 1
        model[1].weight = model[0].weight
        with pytest.raises(ps_shm.Error, match="the model has no tensor '1.weight' of its own any more"):
            publisher.publish(2)
        assert publisher.generation == 1


@pytest.mark.parametrize("strict", [True, False])
def test_a_subscriber_does_not_say_that_a_model_is_new_whose_tensors_have_other_names(job, strict):
    model, other = small_model(0), small_model(5)
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, other, strict=strict) as subscriber:
        publisher.publish(1)
        other[0] = torch.nn.Sequential(other[0])
        with pytest.raises(ps_shm.Error, match="the model has no tensor '0.weight' of its own any more: make the Subscriber"):
            subscriber.update()
        assert subscriber.generation == 0 and publisher.readers()[0].acknowledged == 0


def test_what_is_unfrozen_behind_elastic_is_an_error(job):
    model = small_model()
    model[3].bias.requires_grad_(False)
    with ps_shm.torch.Elastic(model, job, create=True, alpha=0.5) as elastic:
        elastic.step()
        model[3].bias.requires_grad_(True)
        with pytest.raises(ps_shm.Error, match="'3.bias' was frozen when Elastic was made"):
            elastic.step()


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_checkpoint_of_torch_is_given_to_the_job(job, tmp_path, mode):
    model, other = small_model(), small_model(3)
    torch.save(other.state_dict(), tmp_path / "model.pt")
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, momentum=0.9, optimizer="momentum", mode=mode) as opt:
        train(model, opt, 3)
        assert all(slots["momentum_buffer"].any() for slots in opt.state_dict()["state"].values())
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
        opt.assign()
        for name, values in ps_shm.View(job).state().items():
            np.testing.assert_array_equal(values, other.state_dict()[name].numpy())
        saved = opt.state_dict()
        assert saved["param_groups"][0]["lr"] == pytest.approx(0.1)
        assert not any(slots["momentum_buffer"].any() for slots in saved["state"].values())


def test_adam_counts_the_steps_that_its_state_contains(job):
    model, plain = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam", lr=0.01) as opt:
        train(model, opt, 5)
        opt.assign()
        assert {slots["step"].item() for slots in opt.state_dict()["state"].values()} == {0}
        plain.load_state_dict(model.state_dict())
        theirs = torch.optim.Adam(plain.parameters(), lr=0.01)
        train(model, opt, 3)
        train(plain, theirs, 3)
        for ours, parameter in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(ours, parameter, rtol=1e-4, atol=1e-5)
        opt.assign(reset=False)  # of values that were only limited: no step
        train(model, opt, 1)
        train(plain, theirs, 1)
        for ours, parameter in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(ours, parameter, rtol=1e-4, atol=1e-5)


def train_by_schedule(model, optimizer, scheduler, steps):
    for _ in range(steps):
        train(model, optimizer, 1)
        if scheduler:
            scheduler.step()


@pytest.mark.parametrize("way", ["restore", "load_state_dict"])
@pytest.mark.parametrize("settings, slots, schedule", [
    ({"optimizer": "adam", "lr": 0.01}, {"exp_avg", "exp_avg_sq", "step"}, None),
    ({"optimizer": "momentum", "momentum": 0.9, "lr": 0.1, "mode": "sync", "ema": 0.9}, {"momentum_buffer", "ema"}, 4),
    ({"lr": 0.1, "mode": "sync"}, set(), 4),
    ({"optimizer": "rowwise_adagrad", "lr": 0.1, "layout": "inplace"}, {"n of row"}, None)])
def test_a_run_goes_on_from_a_checkpoint_of_torch_with_the_same_bits(job, tmp_path, settings, slots, schedule, way):
    straight, model, other = small_model(), small_model(), small_model(3)

    def scheduler_of(opt, last=-1):
        return torch.optim.lr_scheduler.StepLR(opt, schedule, 0.5, last_epoch=last) if schedule else None

    with ps_shm.torch.Optimizer(straight, job, create=True, **settings) as opt:
        train_by_schedule(straight, opt, scheduler_of(opt), 20)
    with ps_shm.torch.Optimizer(model, job, create=True, **settings) as opt:
        train_by_schedule(model, opt, scheduler_of(opt), 10)
        torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "kept.pt")
    kept = torch.load(tmp_path / "kept.pt")
    assert set(kept["opt"]["state"].get(0, {})) == slots
    other.load_state_dict(kept["model"])
    given = {"restore": kept["opt"]} if way == "restore" else {}
    with ps_shm.torch.Optimizer(other, job, create=True, **given, **settings) as opt:
        if way == "load_state_dict":
            opt.load_state_dict(kept["opt"])
        assert opt.global_step == 10 and opt.param_groups[0]["lr"] == pytest.approx(settings["lr"] * (0.25 if schedule else 1))
        scheduler = scheduler_of(opt)
        if scheduler:
            # the constructor has set that of the first group
            opt.param_groups[0]["lr"] = kept["opt"]["param_groups"][0]["lr"]
            scheduler.last_epoch = 10
        train_by_schedule(other, opt, scheduler, 10)
    for a, b in zip(straight.state_dict().values(), other.state_dict().values()):
        assert torch.equal(a, b)


def test_moments_are_loaded_by_who_makes_the_job(job):
    model, other = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, workers=2, optimizer="adam", lr=0.01) as opt:
        train(model, opt, 2)
        kept = opt.state_dict()
        with ps_shm.torch.Optimizer(other, job) as second:
            for one in (opt, second):
                with pytest.raises(ps_shm.Error, match="as restore"):
                    one.load_state_dict(kept)
            kept["state"] = {}
            kept["param_groups"][0]["lr"] = 0.5
            second.load_state_dict(kept)
            assert second.param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match="goes with create=True"):
        ps_shm.torch.Optimizer(model, job, restore=kept)
    with pytest.raises(TypeError, match="what state_dict"):
        ps_shm.torch.Optimizer(model, job, create=True, restore=model.state_dict())
    with pytest.raises(ps_shm.Error, match="by ps_shm.checkpoint"):
        ps_shm.torch.Optimizer(torch.nn.Sequential(ps_shm.torch.Embedding("t", 10, 4), model), job, create=True, restore=kept)
    with pytest.raises(ValueError, match="there are 2 groups of parameters, and the state has 1"):
        ps_shm.torch.Optimizer(model, job, create=True, restore=kept, params=[{"params": p} for p in list(model.parameters())[:2]])


def test_what_cannot_be_loaded_leaves_the_job_as_it_is(job):
    model = torch.nn.Sequential(ps_shm.torch.Embedding("table", 10, 8), torch.nn.Linear(8, 2))
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam") as opt:
        model(torch.tensor([3])).sum().backward()
        opt.step()
        kept = opt.state_dict()
        for other in (kept, torch.optim.Adam(model.parameters()).state_dict() | {"state": {0: {}}}):
            with pytest.raises(ps_shm.Error, match="by ps_shm.checkpoint"):
                opt.load_state_dict(other)
        for other in ({}, model.state_dict()):
            with pytest.raises(TypeError, match="what state_dict"):
                opt.load_state_dict(other)
        opt.step()
        assert opt.global_step == 2


def test_a_state_is_not_restored_over_another_model_of_the_process(job, tmp_path):
    models, kept = [torch.nn.Linear(3, 1) for _ in range(2)], []
    settings = {"create": True, "optimizer": "adam"}
    with ps_shm.torch.Optimizer(models[0], job, prefix="a.", **settings) as first:
        with ps_shm.torch.Optimizer(models[1], job, prefix="b.", **settings) as second:
            for model, opt in zip(models, (first, second)):
                model(torch.ones(1, 3)).sum().backward()
                opt.step()
                kept.append(opt.state_dict())
            weights = [model.weight.detach().clone() for model in models]
            for opt, state in zip((first, second), kept):
                with pytest.raises(ps_shm.Error, match="other objects of this process"):
                    opt.load_state_dict(state)
            assert all(torch.equal(model.weight, kept) for model, kept in zip(models, weights))
    with ps_shm.torch.Optimizer(models[0], job, prefix="a.", restore=kept[0], **settings) as first:
        for other in (kept[1], ps_shm.checkpoint.save(first.worker, tmp_path)):
            with pytest.raises(ps_shm.Error, match="other objects of this process"):
                ps_shm.torch.Optimizer(models[1], job, prefix="b.", restore=other, **settings)


def test_copies_of_models_work_or_say_why_not(job):
    model = torch.nn.Sequential(ps_shm.torch.Embedding("table", 10, 4, rule="sgd"), torch.nn.Linear(4, 1))
    assert pickle.loads(pickle.dumps(model))[0].num_embeddings == 10
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        average = torch.optim.swa_utils.AveragedModel(model)
        model(torch.tensor([3])).sum().backward()
        opt.step()
        average.update_parameters(model)
        assert torch.equal(average.module[0](torch.tensor([3])), model[0](torch.tensor([3])))
        assert average.module[0].variable is model[0].variable
        with pytest.raises(TypeError, match="state_dict"):
            pickle.dumps(model)
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="one process.*state_dict"):
                copied(opt)


def test_an_elastic_says_what_to_copy_instead_of_it(job):
    with ps_shm.torch.Elastic(small_model(), job, create=True, alpha=0.5) as elastic:
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="of Elastic are of one process.*state_dict"):
                copied(elastic)


def test_parameters_are_no_model(job):
    for cls in (ps_shm.torch.Optimizer, lambda *a, **k: ps_shm.torch.Elastic(*a, alpha=0.5, **k)):
        with pytest.raises(TypeError, match="pass the model itself.*generator"):
            cls(small_model().parameters(), job, create=True)


def test_a_subscriber_needs_a_model_like_the_published_one(job):
    model, smaller = small_model(0), small_model(5)[:3]
    with ps_shm.torch.Publisher(job, model) as publisher:
        publisher.publish()
        with pytest.raises(ValueError, match=r"has 3.bias, 3.weight, which the model lacks; .*strict=False"):
            ps_shm.torch.Subscriber(job, smaller)
        with ps_shm.torch.Subscriber(job, smaller, strict=False) as subscriber:
            subscriber.update()
            assert torch.equal(smaller[0].weight, model[0].weight)
        with pytest.raises(ValueError, match=r"lacks 4.bias, 4.weight of the model"):
            ps_shm.torch.Subscriber(job, torch.nn.Sequential(*model, torch.nn.Linear(2, 1)))


def test_a_subscriber_waits_for_the_next_publisher(job, monkeypatch):
    model, other = small_model(0), small_model(5)
    publisher = ps_shm.torch.Publisher(job, model)
    publisher.publish()
    with ps_shm.torch.Subscriber(job, other) as subscriber:
        subscriber.update()
        publisher.close()
        with pytest.raises(ps_shm.PublisherGone):
            subscriber.update(wait=True)
        with pytest.raises(ps_shm.PublisherGone):
            subscriber.update(wait=True, wait_for_publisher=0.02)
        found, waits = [], threading.Event()
        clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: (waits.set(), threading.Event().wait(s)))
        monkeypatch.setattr(ps_shm.torch._publication, "time", clock)
        reader = threading.Thread(target=lambda: found.append(subscriber.update(wait=True, wait_for_publisher=PATIENCE)))
        reader.start()
        wait_until(lambda: waits.is_set() or not reader.is_alive(), "it waits for a publisher")
        with ps_shm.torch.Publisher(job, model) as successor:
            successor.publish()
            reader.join()
        assert found == [2]


def test_only_buffers_that_have_changed_are_sent(job):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model.register_buffer("table", torch.ones(1000))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        updates = lambda: {v.name: v.updates for v in ps_shm.View(job).variables()}
        train_once = lambda: (opt.zero_grad(), model(torch.randn(4, 2)).sum().backward(), opt.step())
        before = updates()
        train_once()
        model.table.data[3] = 5.0  # autograd does not see it
        train_once()
        train_once()
        changed = {name: count - before[name] for name, count in updates().items()}
        assert (changed["table"], changed["1.num_batches_tracked"], changed["0.weight"]) == (1, 3, 3)


def test_groups_without_weight_decay_and_the_names_of_torch(job):
    plain, model = small_model(), small_model()

    def groups(m):
        decayed, others = [p for p in m.parameters() if p.ndim > 1], [p for p in m.parameters() if p.ndim < 2]
        return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]

    settings = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.3}
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="adamw", params=groups(model), **settings) as opt:
        train(plain, torch.optim.AdamW(groups(plain), **settings), 10), train(model, opt, 10)
        for a, b in zip(plain.state_dict().values(), model.state_dict().values()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
    with ps_shm.torch.Optimizer(model, job, create=True, momentum=0.9, nesterov=True, params=model[3].parameters()) as opt:
        assert opt.worker.settings["optimizer"] == "nesterov"
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        train(model, opt, 1)
        assert [n for n, p in model.named_parameters() if not torch.equal(p, before[n])] == ["3.weight", "3.bias"]
    for params, says in (([{"params": model.parameters(), "betas": (0.5, 0.9)}], "may have lr and weight_decay"),
                         ([torch.zeros(1)], "no parameter of the model")):
        with pytest.raises(ValueError, match=says):
            ps_shm.torch.Optimizer(model, job, create=True, params=params)
    with pytest.raises(ValueError, match="amsgrad"):
        ps_shm.torch.Optimizer(model, job, create=True, amsgrad=True)
