"""The update rules of a job beside those of torch.optim, by their defaults and in PyTorch's spelling."""
import math

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def batches(steps):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(32, 6, generator=generator) for _ in range(steps)]


def train(model, optimizer, steps=50, schedule=lambda: None):
    for x in batches(steps):
        optimizer.zero_grad()
        (model(x).pow(2).mean() + 0.1 * model(x).sum()).backward()
        optimizer.step()
        schedule()


def apart(one, other):
    """The largest difference of two elements, of those above 1 relative to them."""
    return max(((a - b).abs() / b.abs().clamp(min=1)).max().item() for a, b in zip(one.parameters(), other.parameters()))


RULES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}, {}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}, {"momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {}, {}),
    "rmsprop": (torch.optim.RMSprop, {}, {}),
    "adam": (torch.optim.Adam, {}, {}),
    "adamw": (torch.optim.AdamW, {}, {}),
}


@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.05}], ids=["default", "decayed"])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_that_of_torch_by_its_defaults(job, rule, decay):
    make, theirs, ours = RULES[rule]
    plain, model = net(), net()
    if "lr" in theirs:  # SGD of PyTorch before 2.2 has no default rate
        ours = {**ours, "lr": theirs["lr"]}
    train(plain, make(plain.parameters(), **theirs, **decay))
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer=rule, **ours, **decay) as opt:
        train(model, opt)
        assert opt.param_groups[0]["weight_decay"] == pytest.approx(decay.get("weight_decay", 0.01 if rule == "adamw" else 0))
    assert apart(plain, model) < 1e-5
    assert apart(plain, net()) > 1e-3


def test_a_joining_process_has_the_same_names_and_the_programs_keep_theirs(job):
    model = net()
    with ps_shm.torch.Optimizer(model, f"{job}-a", create=True, optimizer="adam", weight_decay=0.05, workers=2):
        with ps_shm.torch.Optimizer(net(), f"{job}-a", weight_decay=0.05) as second:
            assert second.worker.settings["l2"] == 0.05 and second.worker.settings["weight_decay"] == 0
        with pytest.raises(ps_shm.Error, match="`l2` 0.05, and 0.1 is given"):
            ps_shm.torch.Optimizer(net(), f"{job}-a", weight_decay=0.1)
    with ps_shm.Server(f"{job}-b", optimizer="adagrad", weight_decay=0.05):
        with ps_shm.torch.Optimizer(net(), f"{job}-b") as opt:
            said = opt.worker.settings
            assert (said["initial_accumulator"], said["weight_decay"], said["l2"], said["lr"]) == (0.1, 0.05, 0, 0.05)
    with pytest.raises(ValueError, match="the same; give one"):
        ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam", weight_decay=0.05, l2=0.1)
    with pytest.raises(ValueError, match="ftrl has `l2`"):
        ps_shm.torch.Optimizer(model, job, create=True, optimizer="ftrl", weight_decay=0.05)


def test_settings_in_the_spelling_of_torch(job):
    model = net()
    without_effect = {"foreach": True, "fused": False, "capturable": False, "differentiable": False, "maximize": False, "dampening": 0,
                      "amsgrad": False, "centered": False}
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="rmsprop", alpha=0.9, eps=np.float64(1e-6), lr=torch.tensor(0.25),
                                **without_effect) as opt:
        said = opt.worker.settings
        assert (said["rho"], said["epsilon"], said["lr"]) == (0.9, pytest.approx(1e-6), 0.25)
        opt.param_groups[0]["lr"] = torch.tensor(0.5)
        train(model, opt, 1)
        assert opt.worker.live["lr"] == 0.5
    for wrong, says in (({"dampening": 0.5}, "dampening=0.5: no optimizer"), ({"maximize": True}, "negated loss"),
                        ({"centered": True}, "centered"), ({"optimizer": "adam", "amsgrad": True}, "amsgrad"),
                        ({"optimizer": "momentum"}, "needs momentum=")):
        with pytest.raises(ValueError, match=says):
            ps_shm.torch.Optimizer(model, job, create=True, **wrong)
    with pytest.raises(TypeError, match="no setting 'beta'; did you mean beta1 or beta2"):
        ps_shm.torch.Optimizer(model, job, create=True, beta=0.9)


def schedulers():
    s = torch.optim.lr_scheduler
    return {
        "step": lambda opt: s.StepLR(opt, 3, 0.5),
        "exponential": lambda opt: s.ExponentialLR(opt, 0.9),
        "cosine": lambda opt: s.CosineAnnealingLR(opt, 12),
        "lambda": lambda opt: s.LambdaLR(opt, lambda epoch: (1 + epoch) / 300),
        "cyclic": lambda opt: s.CyclicLR(opt, 0.01, 0.1, 5, cycle_momentum=True, base_momentum=0.5),
        "by hand": lambda opt: opt,
    }


@pytest.mark.parametrize("layout", ["versioned", "single-writer"])
@pytest.mark.parametrize("name", schedulers())
def test_a_rate_takes_effect_in_the_step_for_which_it_was_set(job, name, layout):
    plain, model = net(), net()
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="momentum", momentum=0.9, lr=0.1, workers=1, layout=layout) as opt:
        for m, optimizer in ((plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)), (model, opt)):
            made = schedulers()[name](optimizer)

            def schedule():
                if made is optimizer:
                    optimizer.param_groups[0]["lr"] *= 0.8
                else:
                    made.step()

            train(m, optimizer, 30, schedule)
    assert apart(plain, model) < 1e-6


def test_a_rate_also_takes_effect_for_the_rows_of_the_same_step(job):
    plain = torch.nn.Embedding(10, 4)
    embedding = ps_shm.torch.Embedding("t", 10, 4, rule="sgd")
    embedding.assign(plain.weight.detach())
    head, same = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    same.load_state_dict(head.state_dict())
    with ps_shm.torch.Optimizer(torch.nn.Sequential(embedding, head), job, create=True, lr=0.1) as opt:
        reference = torch.optim.SGD([*plain.parameters(), *same.parameters()], lr=0.1)
        for rate in (0.1, 1.0, 0.0):
            for optimizer, model in ((reference, torch.nn.Sequential(plain, same)), (opt, torch.nn.Sequential(embedding, head))):
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                model(torch.tensor([1, 2, 1])).pow(2).sum().backward()
                optimizer.step()
        torch.testing.assert_close(embedding.weight.clone(), plain.weight.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["momentum", "adagrad", "rmsprop", "adam", "adamw"])
def test_state_goes_to_torch_and_back_bit_for_bit(job, rule):
    make, theirs, ours = RULES[rule]
    ours = {**ours, "lr": 0.01}
    theirs = {**theirs, "lr": 0.01}
    model, plain, other = net(), net(), net()
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer=rule, **ours) as opt:
        train(model, opt, 5)
        kept = opt.state_dict()
    plain.load_state_dict(model.state_dict())
    reference = make(plain.parameters(), **theirs)
    reference.load_state_dict(kept)
    loaded = reference.state_dict()
    assert {name for name in loaded["state"][0]} >= {name for name in kept["state"][0]}
    train(plain, reference, 5)
    went = reference.state_dict()
    other.load_state_dict(plain.state_dict())
    with ps_shm.torch.Optimizer(other, job, create=True, optimizer=rule, restore=went, **ours) as opt:
        back = opt.state_dict()["state"]
        for number, slots in back.items():
            for slot, values in slots.items():
                assert torch.equal(values, torch.as_tensor(went["state"][number][slot], dtype=torch.float32)), slot
        train(plain, reference, 5)
        train(other, opt, 5)
    assert apart(plain, other) < 1e-6


def test_a_state_of_another_rule_or_setting_is_refused(job):
    model = net()
    adam = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    train(model, adam, 1)
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="momentum", momentum=0.9) as opt:
        with pytest.raises(ValueError, match="another update rule: the job's optimizer momentum has no exp_avg, exp_avg_sq"):
            opt.load_state_dict(adam.state_dict())
        train(model, opt, 1)  # the job goes on
        kept = opt.state_dict()
    with pytest.raises(ValueError, match="adam has no momentum_buffer"):
        ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam", restore=kept)
    with pytest.raises(ValueError, match="has eps=0.001, and the job 1e-08"):
        ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam", restore=adam.state_dict())
    with pytest.raises(ValueError, match="4 parameters, and 2 are trained"):
        ps_shm.torch.Optimizer(torch.nn.Linear(2, 2), job, create=True, optimizer="adam", restore=adam.state_dict())


def test_a_model_that_becomes_double_is_refused(job):
    model = net()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        model.double()
        with pytest.raises(TypeError, match="'0.weight' is of torch.float64; .* model.float()"):
            opt.step()
        model.float()
        train(model, opt, 1)


@pytest.mark.parametrize("rule, given", [
    ("rmsprop", {"eps": 1e-3, "epsilon": 1e-4}), ("rmsprop", {"rho": 0.5, "alpha": 0.9}), ("adam", {"betas": (0.5, 0.9), "beta2": 0.99}),
    ("adam", {"beta1": 0.6, "betas": (0.5, 0.9)}), ("adagrad", {"initial_accumulator": 1.0, "initial_accumulator_value": 0.5})])
def test_a_setting_with_two_names_has_one_value(job, rule, given):
    with pytest.raises(ValueError, match="is given twice, as .* and as .*: leave out one of its names"):
        ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, optimizer=rule, **given)
    same = {"eps": 1e-3, "epsilon": 1e-3, "betas": None, "beta1": 0.5}
    with ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, optimizer="adam", **same) as opt:
        assert opt.param_groups[0]["betas"] == pytest.approx((0.5, 0.999)) and float(opt.worker.settings["epsilon"]) == pytest.approx(1e-3)


@pytest.mark.parametrize("rule, wrong", [
    ("adam", {"betas": (0.9, 0.5)}), ("adam", {"eps": 0.5}), ("adam", {"amsgrad": True}), ("rmsprop", {"alpha": 0.5}),
    ("sgd", {"momentum": 0.5}), ("sgd", {"maximize": True}), ("momentum", {"nesterov": True}), ("momentum", {"dampening": 0.5})])
def test_what_a_group_is_given_later_and_a_job_cannot_change_is_refused(job, rule, wrong):
    model, settings = torch.nn.Linear(2, 1), {"momentum": 0.9} if rule == "momentum" else {}
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer=rule, lr=0.1, **settings) as opt:
        kept = opt.state_dict()["param_groups"][0]
        opt.param_groups[0].update({key: value for key, value in kept.items() if key != "params"}, lr=0.05)
        (name, value), before = next(iter(wrong.items())), model.weight.clone()
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
        assert not torch.equal(model.weight, before)
        opt.param_groups[0].update(wrong)
        says = f"a group of parameters has {name}.*{value[1] if name == 'betas' else value}, and the job"
        with pytest.raises(ValueError, match=says):
            opt.step()


def test_groups_from_named_parameters(job):
    model = net()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, params=model.named_parameters()) as opt:
        assert len(opt.param_groups) == 1 and len(opt.param_groups[0]["params"]) == 4


@pytest.mark.parametrize("wrong, says", [
    (lambda job: ps_shm.torch.Optimizer(torch.nn.LazyLinear(3), job, create=True), "run a batch through the model first"),
    (lambda job: ps_shm.torch.Optimizer([torch.nn.Parameter(torch.ones(2))], job, create=True), "optimizer_in_backward|pass the model"),
])
def test_models_that_are_not_ready_are_refused(job, wrong, says):
    with pytest.raises(TypeError, match=says):
        wrong(job)
    assert math.isfinite(1)


@pytest.mark.parametrize("change", [lambda grad: torch.ones(1), lambda grad: grad.t().contiguous().t(), lambda grad: grad.to_sparse(),
                                    lambda grad: grad[:1].expand_as(grad), torch._neg_view],
                         ids=["short", "transposed", "sparse", "expanded", "negated"])
def test_a_gradient_is_taken_from_its_memory_only_where_that_has_its_values(job, change):
    plain, model = torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(3, 2, bias=False)
    model.load_state_dict(plain.state_dict())
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        grad = change(torch.arange(6.0).reshape(2, 3))
        if grad.numel() == 1:
            model.weight.grad = torch.zeros(2, 3)
            model.weight.grad.data = grad  # PyTorch checks no size here
            with pytest.raises(ValueError, match="another size than its parameter"):
                opt.step()
            return
        model.weight.grad = grad
        opt.step()
        torch.testing.assert_close(model.weight.detach(), plain.weight.detach() - grad.to_dense(), rtol=0, atol=1e-6)
