"""Counts what a model's load_weights() writes, to find the parameters that it gave no values, or only in part."""

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Collection, Iterator, Mapping

import torch
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

_WRITES = {
    torch.ops.aten.copy_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.fill_.Tensor,
    torch.ops.aten.zero_.default,
}
_NAMED = 8  # parameters in a message


def _memory(tensor: torch.Tensor) -> int:
    storage: Any = getattr(tensor, "untyped_storage", tensor.storage)()  # PyTorch 1.13 has the latter only
    return int(storage._cdata)


def own_parameters(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Parameter]]:
    """Yields each layer's own parameters, with their names in the model; one that several layers have comes several times."""
    for prefix, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            yield layer, f"{prefix}.{name}" if prefix else name, parameter


class Counter(TorchDispatchMode):
    """Counts the elements that this thread writes to each storage by copies and fills, and does not write them.

    Args:
        writes: write them.
    """

    def __init__(self, writes: bool = False) -> None:
        super().__init__()
        self._writes = writes
        self._counts: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _WRITES:
            key = _memory(args[0])
            self._counts[key] = self._counts.get(key, 0) + args[0].numel()
            if not self._writes:
                return args[0]
        return function(*args, **(kwargs or {}))

    def elements(self, tensor: torch.Tensor) -> int:
        """How many elements of the tensor's storage have been written; one that was written twice counts twice."""
        return self._counts.get(_memory(tensor), 0)


@contextlib.contextmanager
def in_this_thread() -> Iterator[None]:
    """Makes this thread do at once what it gives to a pool of threads, where a counter would not count it."""
    thread, submit = threading.get_ident(), ThreadPoolExecutor.submit

    def do(pool: ThreadPoolExecutor, function: Any, /, *given: Any, **more: Any) -> "Future[Any]":
        if threading.get_ident() != thread:
            return submit(pool, function, *given, **more)
        done: "Future[Any]" = Future()
        try:
            done.set_result(function(*given, **more))
        except Exception as error:
            done.set_exception(error)
        return done

    setattr(ThreadPoolExecutor, "submit", do)
    try:
        yield
    finally:
        setattr(ThreadPoolExecutor, "submit", submit)


def lacks(
    model: torch.nn.Module, counter: Counter, loaded: Collection[str], tied: Mapping[str, str], is_quantized: bool
) -> str:
    """Returns the parameters that lack values, as a text for people; empty if there are none.

    Of quantized models this is only said of layers that have got nothing: their parameters may have padding, and scales
    that no checkpoint has.

    Args:
        model: has loaded.
        counter: has counted meanwhile.
        loaded: what the model's load_weights() says that it has loaded: it may set a parameter in other ways.
        tied: for the name of each parameter that of the first one that shares its memory.
        is_quantized: whether parameters have other elements than those of the checkpoint.
    """
    most: dict[str, tuple[int, int]] = {}  # by the first name: elements written, and elements in all
    layers: dict[torch.nn.Module, set[str]] = {}
    for layer, name, parameter in own_parameters(model):
        if isinstance(parameter, UninitializedParameter) or parameter.numel() == 0:
            continue
        elements = getattr(parameter, "weight_loader_numel", parameter.numel())  # vLLM's, without padding
        written = counter.elements(parameter)
        if written == 0 and name in loaded:
            written = elements
        name = tied.get(name, name)
        most[name] = max((written, elements), most.get(name, (0, elements)))
        layers.setdefault(layer, set()).add(name)
    wrong = {name for name, (written, elements) in most.items() if written < elements}
    if is_quantized:
        wrong = {name for names in layers.values() if not any(most[one][0] for one in names) for name in names}
    texts = [f"{name} ({written} of {elements} elements)" for name, (written, elements) in most.items() if name in wrong]
    return ", ".join(texts[:_NAMED]) + (f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")
