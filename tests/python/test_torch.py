"""PyTorch models as workers."""
import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import weakref

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import ps_shm
import ps_shm.torch
from ps_shm.torch import _membership
from conftest import PATIENCE, read_line, segments, wait_until


def small_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def train(model, optimizer, steps, seed=1):
    x, y = batch(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


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


def test_gradients_that_the_user_has_dropped_or_replaced_are_pushed(job):
    model = torch.nn.Linear(3, 1, bias=False)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        before = model.weight.detach().clone()
        model.zero_grad(set_to_none=True)
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
        torch.testing.assert_close(model.weight.detach(), before - 1)
        model.weight.grad = None
        opt.step()
        torch.testing.assert_close(model.weight.detach(), before - 1)
        model.weight.data = model.weight.data.clone()  # at another address
        opt.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
        torch.testing.assert_close(model.weight.detach(), before - 2)


@pytest.mark.parametrize("write", ["step", "pull", "buffers", "elastic", "subscriber"])
def test_a_graph_built_before_a_write_by_the_job_is_refused_afterwards(job, write):
    """Its gradients would be wrong. The optimizers of torch make autograd refuse it, too."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    model.register_buffer("scale", torch.ones(1))

    def use(writer, change):
        x = torch.ones(1, 2, requires_grad=True)
        result = model(x * model.scale)
        change(writer)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()

    def change_buffer(opt):
        opt.worker.variable("scale").assign(np.zeros(1, np.float32))
        opt._buffers.pull()

    if write == "subscriber":
        with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, model) as subscriber:
            publisher.publish()
            use(subscriber, lambda s: s.update())
    elif write == "elastic":
        with ps_shm.torch.Elastic(model, job, alpha=0.5, create=True) as elastic:
            use(elastic, lambda e: e.pull())
    else:
        with ps_shm.torch.Optimizer(model, job, create=True, buffers="mean", lr=0.1) as opt:
            use(opt, {"step": lambda o: o.step(), "pull": lambda o: o.pull(), "buffers": change_buffer}[write])


def count_up(job, steps, queue):
    model = torch.nn.Linear(50, 10, bias=False)
    with ps_shm.torch.Optimizer(model, job, create=True, workers=3, lr=1.0) as opt:
        opt.worker.wait_for_workers()
        for _ in range(steps):
            opt.zero_grad()
            model(torch.full((1, 50), -1.0)).sum().backward()
            opt.step()
        opt.worker.barrier()
        opt.pull()
        queue.put((opt.worker.rank, model.weight.detach().numpy()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_whoever_comes_first_makes_the_job_and_no_update_is_lost(job, method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=count_up, args=(job, 200, queue)) for _ in range(3)]
    [p.start() for p in processes]
    results = dict(queue.get(timeout=PATIENCE) for _ in processes)
    [p.join() for p in processes]
    assert sorted(results) == [0, 1, 2]
    first = results[0] - 600
    for values in results.values():
        np.testing.assert_allclose(values - 600, first, atol=1e-3)
        assert np.abs(first).max() <= 1  # the initial values


inherited = None  # inherited by the forked workers of a DataLoader


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if inherited is not None:
            with pytest.raises(ps_shm.Error, match="a forked child makes its own"):
                inherited.step()
        return torch.full((4,), float(i)), i % 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_a_data_loader_leave_the_job_alone(job, monkeypatch, method):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.01) as opt:
        monkeypatch.setattr("test_torch.inherited", opt.worker)
        loader = torch.utils.data.DataLoader(Points(), batch_size=16, num_workers=2, multiprocessing_context=method)
        for x, y in 2 * [*loader]:
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        view = ps_shm.View(job)
        assert opt.global_step == 8 and [(w.state, w.pid) for w in view.workers()] == [("alive", os.getpid())]


def test_other_settings_than_the_jobs_are_refused(job):
    with ps_shm.Server(job, lr=0.1, workers=9):
        with pytest.raises(ps_shm.Error, match="began with `lr` 0.1, and 0.2 is given") as caught:
            ps_shm.torch.Optimizer(small_model(), job, lr=0.2)
        with pytest.raises(TypeError, match="no setting 'learning_rate'"):
            ps_shm.torch.Optimizer(small_model(), job, learning_rate=0.2)
        assert {w.state for w in ps_shm.View(job).workers()} == {"left"} and caught
    with pytest.raises(ps_shm.Error, match="`momentum`: optimizer sgd has none"):
        ps_shm.torch.Optimizer(small_model(), job, create=True, optimizer="sgd", momentum=0.9)


def test_a_constructor_that_fails_leaves(job):
    model = torch.nn.Sequential(ps_shm.torch.Embedding("table", 10, 4), torch.nn.Linear(4, 1))
    with ps_shm.Server(job, workers=2, mode="sync"):
        with pytest.raises(ps_shm.Error) as of_worker:
            ps_shm.torch.Optimizer(model, job)
        assert [w.state for w in ps_shm.View(job).workers()] == ["left"]
    with pytest.raises(ps_shm.Error) as of_maker:
        ps_shm.torch.Optimizer(model, job, create=True, workers=2, mode="sync")
    assert not segments(job)
    del of_worker, of_maker  # until here their tracebacks keep objects alive


def test_models_that_a_job_cannot_take_are_refused(job):
    with pytest.raises(TypeError, match="float64; pass the model in float32, bfloat16 or float16"):
        ps_shm.torch.Optimizer(small_model().double(), job, create=True)
    with pytest.raises(TypeError, match="float64; pass the model in float32, bfloat16 or float16"):
        ps_shm.torch.Elastic(small_model().double(), job, create=True, alpha=0.5)
    with pytest.raises(TypeError, match="on meta; pass the model on the CPU"):
        ps_shm.torch.Optimizer(torch.nn.Linear(2, 2, device="meta"), job, create=True)
    with pytest.raises(TypeError, match="no parameters"):
        ps_shm.torch.Optimizer(torch.nn.ReLU(), job, create=True)
    with pytest.raises(ValueError, match="go together"):
        ps_shm.torch.Optimizer(small_model(), job, create=True, push_every=4)


def half_model(dtype):
    """Parameters of that type, one of them not contiguous, and one of float32 between them."""

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Linear(4, 8).to(dtype)
            self.first.weight = torch.nn.Parameter(self.first.weight.detach().t().contiguous().t())
            self.norm = torch.nn.LayerNorm(8)
            self.last = torch.nn.Linear(8, 2).to(dtype)

        def forward(self, x):  # computes in float32: PyTorch 1.13 cannot multiply in float16 on the CPU
            linear = torch.nn.functional.linear
            hidden = self.norm(linear(x, self.first.weight.float(), self.first.bias.float()))
            return linear(hidden, self.last.weight.float(), self.last.bias.float())

    return Mixed()


class WithMasters:
    """An optimizer of PyTorch on float32 copies of the parameters."""

    def __init__(self, parameters, make):
        self.parameters = list(parameters)
        self.masters = [torch.nn.Parameter(p.detach().float().contiguous()) for p in self.parameters]
        self.inner = make(self.masters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        for p, master in zip(self.parameters, self.masters):
            master.grad = p.grad.float()
        self.inner.step()
        for p, master in zip(self.parameters, self.masters):
            p.detach().copy_(master)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_half_precision_have_masters_of_float32(job, dtype, mode):
    model, plain = half_model(dtype), half_model(dtype)
    theirs = WithMasters(plain.parameters(), lambda p: torch.optim.SGD(p, lr=1e-3))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1e-3, mode=mode) as opt:
        begin = {name: p.detach().clone() for name, p in model.named_parameters()}
        train(plain, theirs, 50)
        train(model, opt, 50)
        view = ps_shm.View(job)
        for (name, p), master in zip(model.named_parameters(), theirs.masters):
            values = torch.from_numpy(view.values(name))
            assert values.dtype == torch.float32 and p.dtype == (torch.float32 if "norm" in name else dtype)
            torch.testing.assert_close(values, master.detach(), rtol=2e-3, atol=2e-4)
            assert torch.equal(values.to(p.dtype), p.detach()) and (values != begin[name].float()).any()
        assert not model.first.weight.is_contiguous()
        with torch.no_grad():
            model.last.bias.fill_(3)
        opt.assign()
        assert (view.values("last.bias") == 3).all()


@pytest.mark.parametrize("has_new_weights", [False, True])
def test_masters_are_in_the_state_dict(job, has_new_weights):
    model = half_model(torch.bfloat16)
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam", lr=1e-3) as opt:
        train(model, opt, 5)
        kept, values = opt.state_dict(), ps_shm.View(job).state()
        assert torch.equal(kept["state"][0]["master"], torch.from_numpy(values["first.weight"])) and "master" not in kept["state"][2]
    again = half_model(torch.bfloat16)
    again.load_state_dict(model.state_dict())
    if has_new_weights:
        with torch.no_grad():
            again.last.weight.zero_()
    with ps_shm.torch.Optimizer(again, job, create=True, restore=kept, optimizer="adam", lr=1e-3):
        restored = ps_shm.View(job).state()
        for name, expected in values.items():
            is_new = has_new_weights and name == "last.weight"
            assert (restored[name] == (0 if is_new else expected)).all(), name


def test_models_of_half_precision_take_local_steps_and_average(job):
    model = half_model(torch.bfloat16)
    local = torch.optim.SGD(model.parameters(), lr=0.5)
    with ps_shm.torch.Optimizer(model, f"{job}-a", create=True, push_every=2, local=local) as opt:
        before = {name: p.detach().float().clone() for name, p in model.named_parameters()}
        train(model, opt, 2)
        values = ps_shm.View(f"{job}-a").state()
        assert all((values[name] != before[name].numpy()).any() for name in values)
        assert all(torch.equal(torch.from_numpy(values[name]).to(p.dtype), p.detach()) for name, p in model.named_parameters())
    model = half_model(torch.float16)
    with ps_shm.torch.Elastic(model, f"{job}-b", create=True, alpha=0.25) as elastic:
        centre = ps_shm.View(f"{job}-b").values("last.bias")
        with torch.no_grad():
            model.last.bias.add_(1)
        elastic.step()
        assert np.allclose(ps_shm.View(f"{job}-b").values("last.bias"), centre + 0.25, atol=1e-3)
        assert np.allclose(model.last.bias.detach().float(), centre + 0.75, atol=1e-3)
        elastic.pull()
        assert np.allclose(model.last.bias.detach().float(), centre + 0.25, atol=1e-3)


def test_schedulers_of_torch_act_on_the_job(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
        train(model, opt, 1)
        assert opt.worker.live["lr"] == "1"
        scheduler.step()
        train(model, opt, 1)
        assert opt.worker.live["lr"] == "0.5"
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
        assert opt.worker.settings["weight_decay"] == "0.4"
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


def test_who_leads_after_another_one_gives_the_factors_of_its_groups(job):
    models = [small_model(), small_model()]
    groups = lambda m: [{"params": m[0].parameters()}, {"params": m[3].parameters()}]
    with ps_shm.Server(job, workers=2, lr=0.1):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r, params=groups(m)) for r, m in enumerate(models)]
        factor = lambda: opts[1].worker.variable("3.weight").lr_scale
        opts[0].param_groups[1]["lr"] = 0.05
        train(models[0], opts[0], 1)
        assert factor() == 0.5
        opts[1].param_groups[1]["lr"] = 0.2  # not yet: another one leads
        train(models[1], opts[1], 1)
        assert factor() == 0.5
        opts[0].close()
        wait_until(lambda: train(models[1], opts[1], 1) and factor() == 2, "the second worker gives its factors")
        joined = small_model()
        with ps_shm.torch.Optimizer(joined, job, rank=0, params=groups(joined)) as again:
            assert [group["lr"] for group in again.param_groups] == pytest.approx([0.1, 0.2])
            train(joined, again, 1)  # its groups ask for what is in force
            assert factor() == 2
        opts[1].close()


def test_a_parameter_that_is_unfrozen_gets_the_rate_that_its_group_has_by_now(job):
    model = small_model()
    model[3].bias.requires_grad_(False)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, params=[{"params": model[0].parameters()}, {"params": model[3].parameters()}]) as opt:
        opt.param_groups[1]["lr"] = 0.02
        train(model, opt, 1)
        model[3].bias.requires_grad_(True)
        train(model, opt, 1)
        assert opt.worker.variable("3.bias").lr_scale == pytest.approx(0.2)


def test_a_group_may_have_no_rate_and_the_job_needs_none_if_all_have_one(job):
    model = small_model()
    params = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[3].parameters(), "lr": 0.0}]
    with ps_shm.torch.Optimizer(model, job, create=True, params=params) as opt:
        assert opt.worker.settings["lr"] == "0.5" and [group["lr"] for group in opt.param_groups] == [0.5, 0.0]
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


def test_a_mean_is_over_the_workers_that_there_are_whatever_the_job_expected(job):
    models = [torch.nn.BatchNorm1d(2) for _ in range(4)]
    with ps_shm.Server(job, workers=1, lr=0.0):
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


def test_an_embedding_is_frozen_by_itself_and_trains_in_eval(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd")
    model = torch.nn.Sequential(embedding, torch.nn.Linear(4, 1))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        def trains():
            before = embedding.weight
            model(torch.tensor([3])).sum().backward()
            opt.step()
            return not torch.equal(embedding.weight, before)

        assert trains()
        assert not (embedding.requires_grad_(False), trains())[1]
        assert (embedding.requires_grad_(), trains())[1]
        assert (model.eval(), trains())[1]
        model(torch.tensor([3])).sum().backward()
        for p in opt.param_groups[0]["params"]:
            p.grad = None
        before = embedding.weight
        opt.step()
        assert torch.equal(embedding.weight, before)


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


def test_a_subscriber_keeps_a_model_at_the_newest_weights(job):
    model, other = small_model(0), small_model(5)
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, other) as subscriber:
        assert subscriber.update() is None
        assert publisher.publish(3) == 1
        assert subscriber.update(wait=True) == 1 and subscriber.step == 3
        for a, b in zip(model.state_dict().values(), other.state_dict().values()):
            assert torch.equal(a, b)
        assert subscriber.update() is None


def test_a_checkpoint_of_torch_is_given_to_the_job(job, tmp_path):
    model, other = small_model(), small_model(3)
    torch.save(other.state_dict(), tmp_path / "model.pt")
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        train(model, opt, 3)
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
        opt.assign()
        for name, values in ps_shm.View(job).state().items():
            np.testing.assert_array_equal(values, other.state_dict()[name].numpy())
        saved = opt.state_dict()
        assert saved["param_groups"][0]["lr"] == pytest.approx(0.1)


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


def test_a_state_is_not_restored_over_another_model_of_the_process(job):
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
    with ps_shm.torch.Optimizer(models[0], job, prefix="a.", restore=kept[0], **settings):
        with pytest.raises(ps_shm.Error, match="other objects of this process"):
            ps_shm.torch.Optimizer(models[1], job, prefix="b.", restore=kept[1], **settings)


def test_a_process_that_only_joins_leaves_the_rate_as_it_is(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        train(model, opt, 1)
        kept = opt.state_dict()
    with ps_shm.Server(job, lr=0.1) as server:
        server.set(lr=0.001)
        with ps_shm.torch.Optimizer(model, job, create=True, rank=0, restore=kept) as opt:
            train(model, opt, 1)
            assert opt.param_groups[0]["lr"] == pytest.approx(0.001) and float(opt.worker.live["lr"]) == pytest.approx(0.001)


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


def test_autocast_computes_in_bfloat16_and_pushes_float32(job):
    model = torch.nn.Linear(4, 2)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        x, y = batch()
        losses = []
        for _ in range(20):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0]


def test_ctrl_c_in_a_step_is_made_up_for_by_the_next(job):
    models = [torch.nn.Linear(3, 1, bias=False) for _ in range(2)]
    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r) for r, m in enumerate(models)]
        before = models[0].weight.detach().clone()
        models[0](torch.ones(1, 3)).sum().backward()

        def interrupt_the_wait():
            view = ps_shm.View(job)
            wait_until(lambda: any(one.waiting_for for one in view.workers()), "it waits")
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt_the_wait).start()
        with pytest.raises(KeyboardInterrupt):
            opts[0].step()
        models[1](3 * torch.ones(1, 3)).sum().backward()
        other = threading.Thread(target=opts[1].step)
        other.start()
        opts[0].zero_grad()  # waits for the other worker
        other.join()
        opts[0].pull()
        torch.testing.assert_close(models[0].weight.detach(), before - 2)
        for opt in opts:
            opt.close()


def test_ctrl_c_just_behind_a_step_is_no_reason_for_another(job, monkeypatch):
    with ps_shm.torch.Optimizer(small_model(), job, create=True) as opt:
        step = opt.worker.step

        def step_and_interrupt():
            step()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(opt.worker, "step", step_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                opt.step()
        opt.step()
        assert opt.global_step == 2


def test_a_program_that_closes_nothing_leaves_nothing(job, start):
    text = """
import sys, torch, ps_shm.torch
opt = ps_shm.torch.Optimizer(torch.nn.Linear(20, 5), sys.argv[1], create=True)
opt.step()
"""
    assert start(text, job).finish_quietly() == (0, "", "")
    assert not segments(job)


MAIN = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # before there are other threads
import torch, ps_shm.torch
def main():
    opt = ps_shm.torch.Optimizer(torch.nn.Linear(4, 2), sys.argv[1], create=True, workers=2, lr=0.01)
    opt.worker.wait_for_workers()
    print("works", flush=True)
    for _ in range(int(sys.argv[2])):
        opt.step()
    if sys.argv[2] != "1":
        signal.sigwait({signal.SIGUSR1})
        opt.step()
main()
print("done", flush=True)
"""


def test_a_maker_whose_main_returns_without_close_waits_for_the_others(job, start):
    maker = start(MAIN, job, "1")
    wait_until(lambda: segments(job), "the job")
    other = start(MAIN, job, "3")
    assert [maker.line(), maker.line()] == ["works", "done"] and other.line() == "works"
    wait_until(lambda: len([w for w in ps_shm.View(job).workers() if w.state == "alive"]) == 1, "the maker's worker to leave")
    assert maker.process.poll() is None and ps_shm.View(job).served
    other.send(signal.SIGUSR1)
    assert other.finish()[:2] == (0, "done\n")
    assert maker.finish()[0] == 0
    assert not segments(job)


def test_the_maker_of_a_job_is_killed_and_the_others_go_on(job, start):
    text = """
import sys, torch, ps_shm.torch
model = torch.nn.Linear(20, 5)
opt = ps_shm.torch.Optimizer(model, sys.argv[1], create=True, workers=2, lr=0.01)
print("works")
while True:
    opt.zero_grad(); model(torch.ones(1, 20)).pow(2).sum().backward(); opt.step()
"""
    maker = start(text, job)
    assert maker.line() == "works"
    other = start(text, job)
    assert other.line() == "works"
    maker.send(signal.SIGKILL)
    maker.process.wait()
    view = ps_shm.View(job)
    before = view.global_step
    wait_until(lambda: view.global_step > before + 50, "the other one goes on")
    successor = start(text, job)  # takes the job over
    assert successor.line() == "works"
    wait_until(lambda: view.served, "there is a ps again")
    for program in (other, successor):
        program.send(signal.SIGINT)
        assert program.finish()[0] != 0


@pytest.mark.parametrize("settings, theirs", [
    ({"optimizer": "momentum", "momentum": 0.9, "l2": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)),
    ({"optimizer": "adamw", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1)),
])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_parameters_without_a_gradient_stay_and_unfrozen_ones_begin_to_train(job, settings, theirs, mode):
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

        def forward(self, x, both):
            return self.first(x) + self.second(x) if both else self.first(x)

    plain, model = Two(), Two()
    with ps_shm.torch.Optimizer(model, job, create=True, mode=mode, lr=0.1, **settings) as opt:
        for m, optimizer in ((plain, theirs(plain.parameters())), (model, opt)):
            m.first.bias.requires_grad_(False)
            for i in range(9):
                m.first.bias.requires_grad_(i > 5)
                optimizer.zero_grad(set_to_none=True)
                m(torch.ones(4, 3), i % 3 == 0).pow(2).sum().backward()
                optimizer.step()
        assert opt.global_step == 9
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(b, a)
        kept = opt.state_dict()
    other = Two()
    other.load_state_dict(model.state_dict())
    with ps_shm.torch.Optimizer(other, job, create=True, mode=mode, lr=0.1, restore=kept, **settings) as opt:
        for m, optimizer in ((model, None), (other, opt)):
            optimizer and optimizer.step()  # without any gradient
        for a, b in zip(model.parameters(), other.parameters()):
            assert torch.equal(a, b)


def test_a_parameter_that_is_frozen_from_the_start_trains_when_it_is_unfrozen(job):
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    for m in (model, other):
        m.bias.requires_grad_(False)
    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r) for r, m in enumerate((model, other))]
        assert set(ps_shm.View(job).state()) == {"weight"}
        for m in (model, other):
            m.bias.requires_grad_(True)
            m(torch.ones(1, 3)).sum().backward()
        begun = model.bias.detach().clone(), other.bias.detach().clone()
        thread = threading.Thread(target=opts[1].step)
        thread.start()
        opts[0].step()
        thread.join()
        torch.testing.assert_close(model.bias, other.bias)
        assert any(torch.allclose(model.bias, b - 1) for b in begun)  # the first values are those of one of them
        opts[0].zero_grad()
        assert all(p.grad is None for p in model.parameters())
        for opt in opts:
            opt.close()


def test_in_sync_mode_the_mean_is_over_those_that_have_a_gradient(job):
    models = [torch.nn.Linear(3, 1, bias=False) for _ in range(2)]
    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r) for r, m in enumerate(models)]
        before = models[0].weight.detach().clone()
        models[0](torch.ones(1, 3)).sum().backward()
        thread = threading.Thread(target=opts[1].step)  # contributes nothing
        thread.start()
        opts[0].step()
        thread.join()
        for m in models:
            torch.testing.assert_close(m.weight.detach(), before - 1)
        for opt in opts:
            opt.close()


def test_two_models_of_a_process_are_two_sets_of_variables(job):
    generator, discriminator = small_model(0), small_model(1)
    for mode in ("async", "sync"):
        a = ps_shm.torch.Optimizer(generator, job, create=True, prefix="g.", lr=0.1, mode=mode)
        b = ps_shm.torch.Optimizer(discriminator, job, create=True, prefix="d.", lr=0.1, mode=mode)
        train(generator, a, 2), train(discriminator, b, 3)
        assert not torch.equal(generator[0].weight, discriminator[0].weight)
        state = ps_shm.View(job).state()
        assert len(state) == len(generator.state_dict()) + len(discriminator.state_dict())
        np.testing.assert_array_equal(state["g.0.weight"], generator[0].weight.detach().numpy())
        np.testing.assert_array_equal(state["d.0.weight"], discriminator[0].weight.detach().numpy())
        a.close()  # the job goes on for the other one
        train(discriminator, b, 1)
        assert b.global_step == 6
        b.close()
        assert not segments(job)


@pytest.mark.parametrize("ends", ["with nothing", "in a step"])
def test_a_cell_that_runs_again_makes_the_job_again(job, ends):
    def run_cell():
        model = small_model()
        opt = ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, mode="sync", workers=1)
        train(model, opt, 3)
        if ends == "in a step":
            with pytest.raises(ZeroDivisionError):
                opt.step(lambda: 1 / 0)
        return model, opt

    first, opt = run_cell()
    again, second = run_cell()
    assert second.global_step == 3
    for a, b in zip(first.state_dict().values(), again.state_dict().values()):
        assert torch.equal(a, b)
    with pytest.raises(ps_shm.JobFinished, match="made again .*prefix="):
        opt.step()
    opt.close()
    train(again, second, 1)
    third = run_cell()[1]
    third.close()
    second.close()


@pytest.mark.parametrize("goes_first", [0, 1])
def test_the_worker_of_forgotten_objects_leaves_with_the_last_one(job, goes_first):
    def states():
        gc.collect()
        return [w.state for w in ps_shm.View(job).workers()]

    opts = [ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, workers=1, prefix=f"{k}.") for k in range(2)]
    del opts[goes_first]
    assert states() == ["alive"]
    opts[0].step()
    del opts[0]
    assert states() == ["left"]
    with ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, prefix="another.") as opt:
        opt.step()
        assert opt.worker.rank == 0 and opt.global_step == 1


def test_an_object_with_another_prefix_joins_where_one_was_forgotten_and_others_go_on(job):
    opt = ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, workers=1, prefix="a.")
    with ps_shm.Worker(job):
        del opt
        gc.collect()
        with ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, prefix="b.") as opt:
            opt.step()
            assert opt.worker.rank == 2 and ps_shm.View(job).state().keys() == {f"{m}.{n}" for m in "ab" for n in ("weight", "bias")}
    ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, prefix="a.").close()  # ends what the forgotten one serves


def test_objects_may_be_made_while_another_thread_looks_for_them(job):
    class Busy(_membership.Membership):
        def __init__(self):
            self.others = []

        @property
        def job(self):
            self.others.append(Busy())
            _membership._open[id(self.others[-1])] = self.others[-1]
            return None

    busy = Busy()
    try:
        _membership._open[id(busy)] = busy
        assert _membership._here(job) == []
    finally:
        for one in (busy, *busy.others):
            del _membership._open[id(one)]


def test_a_maker_does_not_wait_for_workers_of_its_own_process(job):
    model, other = small_model(0), small_model(1)
    maker = ps_shm.torch.Optimizer(model, job, create=True, workers=2, lr=0.1)
    second = ps_shm.torch.Optimizer(other, job, lr=0.1)
    loose = ps_shm.Worker(job)
    maker.close()
    train(other, second, 1)
    second.close()
    loose.leave()


def test_a_step_in_a_job_that_has_ended_says_so(job):
    model = small_model()
    server = ps_shm.Server(job, lr=0.1)
    opt = ps_shm.torch.Optimizer(model, job)
    elastic = ps_shm.torch.Elastic(small_model(), job, alpha=0.5, prefix="e.")
    train(model, opt, 1)
    server.close()
    for one in (opt, elastic):
        with pytest.raises(ps_shm.JobFinished, match="has ended"):
            one.step()
        one.close()


def test_steps_behind_the_last_one_are_no_error(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, steps=2, lr=0.1) as opt:
        train(model, opt, 3)
        assert opt.finished


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


def test_the_padding_row_stays_zero(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd", padding_idx=0)
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


class Scaler:
    """What torch.amp.GradScaler does, which has no CPU in older versions."""

    def __init__(self, scale):
        self.factor, self.is_finite, self.is_unscaled = scale, True, False

    def scale(self, loss):
        return loss * self.factor

    def unscale_(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self.is_finite = all(torch.isfinite(g).all() for g in gradients)
        [g.div_(self.factor) for g in gradients]
        self.is_unscaled = True

    def step(self, optimizer):
        if not self.is_unscaled:
            self.unscale_(optimizer)
        if self.is_finite:
            optimizer.step()
        self.is_unscaled = False

    def update(self):
        pass


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


def test_an_elastic_says_what_to_copy_instead_of_it(job):
    with ps_shm.torch.Elastic(small_model(), job, create=True, alpha=0.5) as elastic:
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="of Elastic are of one process.*state_dict"):
                copied(elastic)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_tied_parameters_are_one_variable(job, mode):
    def tied():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6, bias=False))
        model[1].weight = model[0].weight
        return model

    plain, model = tied(), tied()
    with ps_shm.torch.Optimizer(model, job, create=True, mode=mode, lr=0.1) as opt:
        assert [v.name for v in ps_shm.View(job).variables()] == ["0.weight"]
        for m, optimizer in ((plain, torch.optim.SGD(plain.parameters(), lr=0.1)), (model, opt)):
            for _ in range(3):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(m(torch.tensor([1, 2, 1])), torch.tensor([3, 4, 5])).backward()
                optimizer.step()
        assert model[1].weight is model[0].weight
        torch.testing.assert_close(model[0].weight, plain[0].weight)


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


def test_a_subscriber_waits_for_the_next_publisher(job):
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
        found = []
        reader = threading.Thread(target=lambda: found.append(subscriber.update(wait=True, wait_for_publisher=PATIENCE)))
        reader.start()
        with ps_shm.torch.Publisher(job, model) as successor:
            successor.publish()
            reader.join()
        assert found == [2]


class Odd(torch.nn.Module):
    """A model of tensors that are empty, not contiguous, or in another memory format, and of buffers of many types."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = torch.nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)
        self.turned = torch.nn.Parameter(torch.randn(4, 5).t())
        self.empty = torch.nn.Parameter(torch.empty(0, 3))
        self.words = torch.nn.Embedding(6, 3, sparse=True)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.register_buffer("halves", torch.ones(3, dtype=torch.float16))
        self.register_buffer("none", torch.empty(0))
        self.register_buffer("slanted", torch.randn(3, 2).t())

    def forward(self, x):
        return self.conv(x).sum() + self.turned.pow(2).sum() + self.empty.sum() + self.words(torch.tensor([1, 1, 4])).pow(2).sum()


@pytest.mark.parametrize("buffers", ["chief", "mean"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_tensors_of_any_layout_train_as_with_torch(job, buffers, set_to_none):
    plain, model = Odd(), Odd()
    x = torch.randn(1, 3, 4, 4)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, buffers=buffers) as opt:
        for m, optimizer in ((plain, torch.optim.SGD(plain.parameters(), lr=0.1)), (model, opt)):
            for _ in range(3):
                m.zero_grad(set_to_none=set_to_none)
                m(x).backward()
                m.mask[1], m.halves[2], m.slanted[0, 1] = False, 3.0, 7.0
                optimizer.step()
        other = Odd(1)
        with ps_shm.torch.Optimizer(other, job, buffers=buffers):
            for a, b, c in zip(plain.state_dict().values(), model.state_dict().values(), other.state_dict().values()):
                torch.testing.assert_close(b, a)
                assert torch.equal(c, b) and b.stride() == c.stride()
        kept = opt.state_dict()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, buffers=buffers, restore=kept):
        assert torch.equal(model.turned, other.turned)
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, Odd(2)) as subscriber:
        publisher.publish()
        subscriber.update()
        for a, b in zip(model.state_dict().values(), subscriber._model.state_dict().values()):
            assert torch.equal(a, b) and a.stride() == b.stride()


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


FOREVER = """
import sys, torch, ps_shm, ps_shm.torch
model = torch.nn.Linear(4, 2)
opt = ps_shm.torch.Optimizer(model, sys.argv[1], create=True, workers=2, lr=0.01)
print("works")
try:
    while True:
        opt.zero_grad(); model(torch.ones(1, 4)).pow(2).sum().backward(); opt.step()
except ps_shm.JobFinished:
    print("ended")
opt.close()
"""


def maker_and_other(job, start, end):
    """Two workers of a job. The one that has made it goes on with `end`, the other one trains until the job ends."""
    maker = start("""
import logging, sys, torch, ps_shm.torch
opt = ps_shm.torch.Optimizer(torch.nn.Linear(4, 2), sys.argv[1], create=True, workers=2, lr=0.01)
print("works")
opt.worker.wait_for_workers()
""" + end, job)
    assert maker.line() == "works"
    other = start(FOREVER, job)
    assert other.line() == "works"
    return maker, other


def wait_for_text(program, text):
    while text not in (line := read_line(program.process.stderr)):
        assert line


def test_an_error_of_the_maker_is_seen_before_it_waits_for_the_others(job, start):
    maker, other = maker_and_other(job, start, """
with opt:
    raise ValueError("what has failed")
""")
    wait_for_text(maker, "ValueError: what has failed")
    assert ps_shm.View(job).served  # while the maker waits
    maker.send()
    maker.finish()
    assert other.finish()[:2] == (0, "ended\n")
    assert not segments(job)


def test_ctrl_c_while_the_maker_waits_for_the_others_ends_the_job(job, start):
    maker, other = maker_and_other(job, start, "opt.close()")
    wait_for_text(maker, "waiting for the other workers")
    maker.send()
    assert "KeyboardInterrupt" in maker.finish()[2]
    assert other.finish()[:2] == (0, "ended\n")
    assert not segments(job)


def test_ctrl_c_while_an_error_of_the_maker_is_reported_ends_the_job(job, start):
    maker, other = maker_and_other(job, start, """
class Interrupted(logging.Handler):
    def emit(self, record):
        if record.levelno == logging.ERROR:  # the report, and no progress of a wait
            raise KeyboardInterrupt
logging.getLogger("ps_shm").addHandler(Interrupted())
with opt:
    raise ValueError("what has failed")
""")
    assert "KeyboardInterrupt" in maker.finish()[2]
    assert other.finish()[:2] == (0, "ended\n")
    assert not segments(job)


def test_a_daemon_thread_in_a_step_does_not_hold_up_the_end_of_a_program(job, start):
    text = """
import sys, threading, torch, ps_shm, ps_shm.torch
model = torch.nn.Linear(4, 2)
opt = ps_shm.torch.Optimizer(model, sys.argv[1], create=True, mode="sync", workers=2)
threading.Thread(target=opt.step, daemon=True).start()
view = ps_shm.View(sys.argv[1])
while not view.workers()[0].waiting_for: pass
"""
    assert start(text, job).finish_quietly() == (0, "", "")
    assert not segments(job)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_forked_child_may_compute_gradients(job, mode):
    model = torch.nn.Linear(4, 2)
    with ps_shm.torch.Optimizer(model, job, create=True, mode=mode, lr=0.1) as opt:
        model(torch.ones(1, 4)).sum().backward()
        opt.step()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            try:
                model(torch.ones(1, 4)).sum().backward()
                os._exit(0 if model.weight.grad.tolist() == [[2] * 4] * 2 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert model.weight.grad.tolist() == [[1] * 4] * 2


def test_the_lowest_living_rank_sets_the_rate_and_the_buffers(job):
    models = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)) for _ in range(2)]
    with ps_shm.Server(job, workers=2, lr=1.0):
        first, second = (ps_shm.torch.Optimizer(m, job, rank=r) for r, m in enumerate(models))

        def step(model, opt, lr):
            opt.param_groups[0]["lr"] = lr
            opt.zero_grad()
            model(torch.randn(4, 2)).sum().backward()
            opt.step()

        step(models[1], second, 0.5)
        assert second.worker.live["lr"] == "1"
        step(models[0], first, 0.25)
        assert second.worker.live["lr"] == "0.25"
        first.close()

        def is_set():
            step(models[1], second, 0.125)
            return second.worker.live["lr"] == "0.125"

        wait_until(is_set, "the second worker sets the rate")
        before = models[1][1].num_batches_tracked.item()
        step(models[1], second, 0.125)
        assert models[1][1].num_batches_tracked.item() == before + 1
        second.close()


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
