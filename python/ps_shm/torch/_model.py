"""A model's tensors by the names of its state_dict()."""

from typing import Any, Iterable

import torch

Tensors = dict[str, torch.Tensor]


def own(model: torch.nn.Module) -> torch.nn.Module:
    """What torch.compile was given: what it returns has the same parameters under other names."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, torch.nn.Module) else model


def is_on_gpu(p: torch.Tensor) -> bool:
    return p.device.type == "cuda"


def parameters(model: torch.nn.Module, may_be_on_gpu: bool = False) -> dict[str, torch.nn.Parameter]:
    """Those that are trained, by their names; one that has several names has the first. Raises TypeError for what a job
    cannot have."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise TypeError("the model has no parameters to train")
    first, device = next(iter(found.items()))[0], next(iter(found.values())).device
    for name, p in found.items():
        if p.device.type != "cpu" and not (may_be_on_gpu and is_on_gpu(p)):
            raise TypeError(f"parameter '{name}' is on {p.device}; pass the model on the CPU: model.cpu()")
        if p.device != device:
            raise TypeError(f"parameter '{name}' is on {p.device}, and '{first}' is on {device}; pass the model on one device")
        if p.dtype != torch.float32:
            raise TypeError(f"parameter '{name}' is of {p.dtype}; pass the model in float32: model.float()")
        if not p.is_contiguous():
            raise TypeError(f"parameter '{name}' is not contiguous; set p.data = p.data.contiguous() first")
    return found


def buffers(model: torch.nn.Module) -> Tensors:
    """Those that state_dict() has, such as the running means of a batch normalisation."""
    kept = model.state_dict(keep_vars=True)
    return {name: b for name, b in model.named_buffers() if name in kept}


def state(model: torch.nn.Module) -> Tensors:
    """All of state_dict(), where it lies."""
    return {name: t.detach() for name, t in model.state_dict(keep_vars=True).items()}


def pointers(tensors: Iterable[Any]) -> list[int]:
    return [t.data_ptr() for t in tensors]
