"""Settings in PyTorch's spelling, and the values that they have by default: docs/pytorch.md has the table."""

import math
from typing import Any

import torch

# What torch.optim has by default, under the job's names. `initial_accumulator` is also for the rows of embeddings.
_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
_DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 1e-3},
    "momentum": {"lr": 1e-3},
    "nesterov": {"lr": 1e-3},
    "adagrad": {"lr": 1e-2, "epsilon": 1e-10},
    "rmsprop": {"lr": 1e-2, "rho": 0.99, "epsilon": 1e-8},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 1e-2},
}
# The optimizer of PyTorch with the rule, and its names of the rule's slots; `has_step`: its state counts the updates.
_OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, str], bool]] = {
    "sgd": (torch.optim.SGD, {}, False),
    "momentum": (torch.optim.SGD, {"momentum": "momentum_buffer"}, False),
    "nesterov": (torch.optim.SGD, {"momentum": "momentum_buffer"}, False),
    "adagrad": (torch.optim.Adagrad, {"n": "sum"}, True),
    "rmsprop": (torch.optim.RMSprop, {"n": "square_avg"}, True),
    "adam": (torch.optim.Adam, {"m": "exp_avg", "v": "exp_avg_sq"}, True),
    "adamw": (torch.optim.AdamW, {"m": "exp_avg", "v": "exp_avg_sq"}, True),
}
_OWN_SLOTS = {"ftrl": {"n", "z"}, "rowwise_adagrad": {"n of row"}}
_OWN_NAMES = {"eps": "epsilon", "alpha": "rho", "initial_accumulator_value": "initial_accumulator"}
_WITHOUT_EFFECT = ("foreach", "fused", "capturable")  # how PyTorch computes the same
_REFUSED = {
    "dampening": "no optimizer of a job has it",
    "maximize": "minimise the negated loss",
    "amsgrad": "no optimizer of a job has it",
    "centered": "no optimizer of a job has it",
    "differentiable": "the job takes the step outside of autograd",
    "lr_decay": "use `lr_schedule`, or a scheduler of PyTorch",
    "momentum_decay": "no optimizer of a job has it",
}


def default_rule(settings: dict[str, Any]) -> str:
    """The update rule of a job that is created with these settings."""
    return str(settings.get("optimizer") or "sgd")


def defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """What a job that is created with these settings has by default. FBGEMM's accumulators begin at 0, too."""
    return {"initial_accumulator": 0.0, **_DEFAULTS.get(default_rule(settings), {})}


def as_number(value: Any) -> Any:
    """The number in a tensor or NumPy scalar; everything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else _only(value)


def _only(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def own_names(given: dict[str, Any]) -> dict[str, Any]:
    """The settings under the job's names, except for `weight_decay`, whose meaning is the rule's (for_rule()).

    Raises ValueError for settings of PyTorch that a job does not have, unless they have no effect, and for one that has two
    values under two names.
    """
    own: dict[str, Any] = {}

    def take(name: str, value: Any) -> None:
        if None not in (own.get(name), value) and own[name] != value:
            raise ValueError(f"{name} is given twice, as {own[name]} and as {value}: leave out one of its names")
        if value is not None or name not in own:
            own[name] = value

    for name, value in given.items():
        if name in _REFUSED:
            if value:
                raise ValueError(f"{name}={value}: {_REFUSED[name]}")
        elif name == "betas":
            if value is not None:
                for of_job, beta in zip(("beta1", "beta2"), value, strict=True):
                    take(of_job, as_number(beta))
        elif name == "learning_rate":
            raise TypeError("there is no setting 'learning_rate': it is `lr`")
        elif name not in (*_WITHOUT_EFFECT, "nesterov", "decoupled_weight_decay"):
            take(_OWN_NAMES.get(name, name), as_number(value))
    for flag, rule in (("nesterov", "nesterov"), ("decoupled_weight_decay", "adamw")):
        if given.get(flag):
            own["optimizer"] = rule
    return own


def require_momentum(settings: dict[str, Any]) -> None:
    """Raises ValueError if a job of momentum is to be created without one: PyTorch has no default for it."""
    rule = default_rule(settings)
    if rule in ("momentum", "nesterov") and settings.get("momentum") is None:
        raise ValueError(f"optimizer='{rule}' needs momentum=, such as momentum=0.9: torch.optim.SGD has no default for it")


def decay_of(rule: str) -> str:
    """The job's setting that is the `weight_decay` of PyTorch's optimizer: added to the gradient, or decoupled."""
    return "l2" if rule in _DEFAULTS and rule != "adamw" else "weight_decay"


def for_rule(settings: dict[str, Any], rule: str) -> dict[str, Any]:
    """The settings with `weight_decay` under the name by which a job of this rule has it. Raises ValueError."""
    decay = settings.get("weight_decay")
    if decay is None:
        return settings
    if rule == "ftrl":
        raise ValueError("weight_decay: optimizer ftrl has `l2` in its formula; use that")
    name = decay_of(rule)
    if name == "l2" and settings.get("l2") not in (None, decay):
        raise ValueError(f"weight_decay={decay} and l2={settings['l2']}: of optimizer {rule} they are the same; give one of them")
    return {**{key: value for key, value in settings.items() if key != "weight_decay"}, name: decay}


def slot_names(rule: str) -> dict[str, str]:
    """PyTorch's names of the slots that a rule has in state_dict(). Slots that are not among them keep their names."""
    return _OPTIMIZERS[rule][1] if rule in _OPTIMIZERS else {}


def has_step(rule: str) -> bool:
    """Whether PyTorch's optimizer keeps the number of updates as `step`."""
    return rule in _OPTIMIZERS and _OPTIMIZERS[rule][2]


def check_slots(state: dict[int, dict[str, Any]], rule: str) -> None:
    """Raises ValueError if a state is not of this rule."""
    names = {*slot_names(rule).values(), *_OWN_SLOTS.get(rule, ()), "step", "t", "ema", "master"}
    strange = sorted({name for slots in state.values() for name, values in slots.items() if values is not None} - names)
    if strange:
        raise ValueError(f"the state is of another update rule: the job's optimizer {rule} has no {', '.join(strange)}")


def group_of_torch(rule: str, said: dict[str, Any]) -> dict[str, Any]:
    """What PyTorch's optimizer has in a group of parameters, with the job's settings; empty if it has no such rule."""
    if rule not in _OPTIMIZERS:
        return {}
    group: dict[str, Any] = dict(_OPTIMIZERS[rule][0]([torch.zeros(1)], lr=1.0).defaults)  # type: ignore[call-arg]
    for name, key in (("eps", "epsilon"), ("alpha", "rho"), ("initial_accumulator_value", "initial_accumulator")):
        if name in group:
            group[name] = said[key]
    if "betas" in group:
        group["betas"] = (said["beta1"], said["beta2"])
    if rule in ("momentum", "nesterov"):
        group["momentum"], group["nesterov"] = said["momentum"], rule == "nesterov"
    return group


def fixed_settings(rule: str, said: dict[str, Any]) -> dict[str, Any]:
    """What a group of PyTorch's optimizer has that a job cannot change while it runs, with the job's values."""
    followed = {"lr", "weight_decay", *_WITHOUT_EFFECT} | ({"momentum"} if rule in ("momentum", "nesterov") else set())
    return {name: value for name, value in group_of_torch(rule, said).items() if name not in followed}


def refuse_others(group: dict[str, Any], fixed: dict[str, Any], what: str) -> None:
    """Raises ValueError if a group has another value of one of these settings. `what` has the group."""
    for name, here in fixed.items():
        there = group.get(name, here)
        if there is here:
            continue
        if name == "betas":
            name, there, here = "betas[1]", there[1], here[1]
        there = as_number(there)
        if there != here and not (isinstance(here, float) and math.isclose(there, here, rel_tol=1e-6)):
            why = _REFUSED.get(name, f"create the job with {name}={there}")
            raise ValueError(f"{what} has {name}={there}, and the job {here}: {why}")


def check_group(kept: dict[str, Any], rule: str, said: dict[str, Any]) -> None:
    """Raises ValueError if a group of PyTorch's optimizer has a setting that the job cannot take over."""
    refuse_others(kept, fixed_settings(rule, said), "the state")
    if (decay := kept.get("weight_decay")) and said[decay_of(rule)] == 0:  # of which that of a group is a multiple
        raise ValueError(f"the state has weight_decay={decay}, and the job 0.0: create the job with weight_decay={decay}")
