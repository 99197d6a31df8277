"""Gradients of PyTorch models as they reach the job: dropped, replaced, missing, of any layout, and in half precision."""
import copy
import os
import threading

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch
from models import batch, half_model, small_model, train


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


def test_a_parameter_that_is_unfrozen_gets_the_rate_that_its_group_has_by_now(job):
    model = small_model()
    model[3].bias.requires_grad_(False)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, params=[{"params": model[0].parameters()}, {"params": model[3].parameters()}]) as opt:
        opt.param_groups[1]["lr"] = 0.02
        train(model, opt, 1)
        model[3].bias.requires_grad_(True)
        train(model, opt, 1)
        assert opt.worker.variable("3.bias").lr_scale == pytest.approx(0.2)


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


def test_unfreezing_keeps_local_steps_and_the_buffers_of_its_step(job):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    model[0].bias.requires_grad_(False)
    plain = copy.deepcopy(model)
    local = torch.optim.SGD(model.parameters(), lr=0.01)
    with ps_shm.torch.Optimizer(model, job, create=True, push_every=4, local=local) as opt:
        for m, optimizer in ((plain, torch.optim.SGD(plain.parameters(), lr=0.01)), (model, opt)):
            for i in range(8):
                m[0].bias.requires_grad_(i > 1)
                optimizer.zero_grad()
                m(torch.arange(12.0).reshape(4, 3).sin() + i).pow(2).sum().backward()
                optimizer.step()
        assert model[1].num_batches_tracked == 8
        for ours, theirs in zip(model.state_dict().values(), plain.state_dict().values()):
            torch.testing.assert_close(ours, theirs)
        job_values = ps_shm.View(job).state()
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(torch.from_numpy(job_values[name]).reshape(value.shape), value)


def test_unfreezing_may_be_tried_again_after_an_error(job, monkeypatch):
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        model.bias.requires_grad_(True)
        model(torch.ones(1, 3)).sum().backward()
        before = model.bias.detach().clone()

        def fails(*_, **__):
            raise ps_shm.Error("no room")

        with monkeypatch.context() as patched:
            patched.setattr(opt, "_bundle_of", fails)
            for _ in range(2):
                with pytest.raises(ps_shm.Error, match="no room"):
                    opt.step()
        opt.step()
        torch.testing.assert_close(model.bias.detach(), before - 1)


def test_frozen_parameters_have_what_the_checkpoint_has_of_them(job, tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        made = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        made[0].requires_grad_(False)
        return made

    model = make(0)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        for i in range(4):
            model[0].requires_grad_(i > 1)
            opt.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            opt.step()
        folder = ps_shm.checkpoint.save(opt.worker, tmp_path)
    again, joined = make(1), make(2)
    with ps_shm.torch.Optimizer(again, job, create=True, lr=0.1, restore=folder), ps_shm.torch.Optimizer(joined, job):
        for other in (again, joined):
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    wrong = make(3)
    wrong[0] = torch.nn.Linear(4, 2).requires_grad_(False)
    with pytest.raises(ps_shm.Error, match=r"another model: '0.weight' is \(2, 3\) there and \(2, 4\) here"):
        ps_shm.torch.Optimizer(wrong, job, create=True, lr=0.1, restore=folder)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frozen_parameters_of_half_precision_are_restored(job, tmp_path, dtype):
    model = small_model().to(dtype)
    model[0].requires_grad_(False)
    settings = {"create": True, "optimizer": "momentum", "momentum": 0.9, "lr": 0.1}
    with ps_shm.torch.Optimizer(model, job, **settings) as opt:
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.requires_grad else None
        opt.step()
        state, folder = opt.state_dict(), ps_shm.checkpoint.save(opt.worker, tmp_path)
    for kept in (state, folder):
        other = copy.deepcopy(model)
        with ps_shm.torch.Optimizer(other, job, restore=kept, **settings):
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_a_mean_of_buffers_takes_what_has_no_difference_from_the_chief(job):
    class Least(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.register_buffer("least", torch.full((2,), float("inf")))

        def forward(self, x):
            self.least = torch.minimum(self.least, x)
            return self.weight * x.sum()

    model = Least()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, buffers="mean") as opt:
        for x in (3.0, 1.0, 2.0):
            model(torch.full((2,), x)).backward()
            opt.step()
            assert torch.isfinite(model.least).all()
    assert model.least.tolist() == [1, 1]
