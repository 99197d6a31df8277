"""The tensors of a model, by their names in its state_dict()."""

from typing import Any, Iterable

import torch

Tensors = dict[str, torch.Tensor]


def own(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the model that was given to torch.compile, whose result has other names for its parameters."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, torch.nn.Module) else model


def is_on_gpu(p: torch.Tensor) -> bool:
    return p.device.type == "cuda"


def parameters(model: torch.nn.Module, may_be_on_gpu: bool = False) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters that are trained, by name; a parameter with several names has the first one.

    Raises TypeError if a parameter is not on the CPU (or, if allowed, one GPU), not float32 or not contiguous, or if
    there are none.
    """
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
    """Returns the buffers that state_dict() contains, such as the running means of batch normalisation."""
    kept = model.state_dict(keep_vars=True)
    return {name: b for name, b in model.named_buffers() if name in kept}


def state(model: torch.nn.Module) -> Tensors:
    """Returns all tensors of state_dict(), without copying them."""
    return {name: t.detach() for name, t in model.state_dict(keep_vars=True).items()}


_increment_version = getattr(torch.autograd.graph, "increment_version", None)  # since PyTorch 2.1


def note_writes(tensors: Iterable[torch.Tensor]) -> None:
    """Counts a write into each tensor, as an in-place operation does.

    Memory that the job has written is unknown to autograd. Without this, the backward pass of a graph that was built
    before the write would compute wrong gradients instead of raising an error.
    """
    for tensor in tensors:
        if tensor.is_inference():
            continue
        if _increment_version is not None:
            _increment_version(tensor)
        else:
            tensor.detach().as_strided((0,), (1,)).zero_()  # writes no element


def pointers(tensors: Iterable[Any]) -> list[int]:
    return [t.data_ptr() for t in tensors]
