"""The tensors of a model, by their names in its state_dict()."""

from typing import Any, Collection, Iterable, Iterator, NamedTuple, Optional

import torch

from .. import Bundle, Error, Pinned
from ._settings import as_number

Tensors = dict[str, torch.Tensor]
TRAINED = (torch.float32, torch.bfloat16, torch.float16)  # what a parameter may be; its variable is of float32


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's values, row-major on the CPU: without a copy if they are."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return (tensor if tensor.layout == torch.strided else tensor.to_dense()).cpu().contiguous().resolve_neg()


def floats(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values in float32, row-major on the CPU: without a copy if they are. Those of half precision are exact."""
    is_strided = tensor.dtype is torch.float32 and tensor.layout is torch.strided and not tensor.is_neg()
    if is_strided and tensor.is_cpu and tensor.is_contiguous():  # type: ignore[attr-defined,unused-ignore]
        return tensor if not tensor.requires_grad else tensor.detach()  # at once: a step asks for all gradients
    return dense(tensor).float()


def own(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the model that was given to torch.compile, whose result has other names for its parameters.

    Raises TypeError if it is no model.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"pass the model itself, a torch.nn.Module, not a {type(model).__name__}: one object trains all parameters of a "
            "model, so it cannot be made for each of them, as optimizer_in_backward does"
        )
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, torch.nn.Module) else model


# Modules that hold another one under such a name: activation checkpointing and offloading, FSDP, torch.compile. The first
# two take it out of the names of state_dict(); a layer that is compiled by itself is still the same layer.
_WRAPPERS = frozenset(("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod"))


def plain_name(name: str) -> str:
    """Returns the name of a module or tensor as if no module were wrapped."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields the parameters with their plain names, each once."""
    return ((plain_name(name), p) for name, p in model.named_parameters())


def _named_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    return ((plain_name(name), module) for name, module in model.named_modules())


def is_on_gpu(p: torch.Tensor) -> bool:
    return p.device.type == "cuda"


def _require_trained(name: str, p: torch.Tensor) -> None:
    if p.dtype not in TRAINED:
        raise TypeError(f"parameter '{name}' is of {p.dtype}; pass the model in float32, bfloat16 or float16: model.float()")


def parameters(
    model: torch.nn.Module, may_be_on_gpu: bool = False, only: Optional[set[str]] = None
) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters that are trained, by name; a parameter with several names has the first one.

    `only`: the names of those that may be trained; None: all. Those without elements are left out. Raises TypeError if a
    parameter is not on the CPU (or, if allowed, one GPU) or none of TRAINED, or if there are none.
    """
    for name, p in named_parameters(model):
        if torch.nn.parameter.is_lazy(p):
            raise TypeError(f"parameter '{name}' is of a lazy module and has no shape yet: run a batch through the model first")
    found = {name: p for name, p in named_parameters(model) if p.requires_grad and p.numel() != 0}
    if only is not None:
        found = {name: p for name, p in found.items() if name in only}
    if not found:
        raise TypeError("the model has no parameters to train")
    first, device = next(iter(found.items()))[0], next(iter(found.values())).device
    for name, p in found.items():
        if p.device.type != "cpu" and not (may_be_on_gpu and is_on_gpu(p)):
            raise TypeError(f"parameter '{name}' is on {p.device}; pass the model on the CPU: model.cpu()")
        if p.device != device:
            raise TypeError(f"parameter '{name}' is on {p.device}, and '{first}' is on {device}; pass the model on one device")
        _require_trained(name, p)
    end, other = 0, ""
    for begin, name in sorted((p.data_ptr(), name) for name, p in found.items()):
        p = found[name]
        if begin != 0 and begin < end:
            raise TypeError(f"parameters '{other}' and '{name}' share memory; tie them as one Parameter: a.weight = b.weight")
        # Between the elements of one that is not contiguous there may be another one, as of a matrix's columns.
        own_end = begin + (p.numel() if p.is_contiguous() else 1) * p.element_size()
        if own_end > end:
            end, other = own_end, name
    return found


def refuse_renormalised(model: torch.nn.Module, trained: dict[str, torch.nn.Parameter]) -> None:
    """Raises TypeError if forward() changes one of these parameters: a pull would replace what it has changed."""
    for name, module in _named_modules(model):
        if getattr(module, "max_norm", None) is not None and any(p is getattr(module, "weight", None) for p in trained.values()):
            raise TypeError(
                f"forward() of '{name}' writes to its weight, since it has max_norm, and the next pull would undo that: leave "
                "max_norm out, and limit the weights by weight_decay; or use Elastic, or local= with push_every"
            )


class Group(NamedTuple):
    """A group of parameters, by name, and its settings; None: the job's."""

    parameters: dict[str, torch.nn.Parameter]
    lr: Optional[float] = None
    weight_decay: Optional[float] = None


def groups(model: torch.nn.Module, params: Optional[Iterable[Any]]) -> list[Group]:
    """Returns the groups in `params`, which has the form that the optimizers of PyTorch take. None: all in one group."""
    if params is None:
        return [Group(dict(named_parameters(model)))]
    names = {id(p): name for name, p in named_parameters(model)}
    found = []
    given: list[Any] = list(params)
    each: list[dict[str, Any]] = given if given and isinstance(given[0], dict) else [{"params": given}]
    for group in each:
        settings = {key: value for key, value in group.items() if key != "params"}
        if not set(settings) <= {"lr", "weight_decay"}:
            raise ValueError("params: a group may have lr and weight_decay; all other settings are the job's, for all parameters")
        of_group: list[Any] = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        of_group = [p[1] if isinstance(p, tuple) else p for p in of_group]  # as from named_parameters()
        if not all(id(p) in names for p in of_group):
            raise ValueError("params: a tensor among them is no parameter of the model")
        rate, decay = (as_number(settings.get(name)) for name in ("lr", "weight_decay"))
        found.append(Group({names[id(p)]: p for p in of_group}, rate, decay))
    return found


class Places:
    """Where a bundle's values are copied to: the tensors, or memory beside those that are not contiguous or not float32."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._pinned: Optional[Pinned] = None
        self._pointers: list[int] = []
        self._sizes: list[int] = []
        self._tensors: list[torch.Tensor] = []  # views of those that are pinned
        self._beside: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pull(self, tensors: Collection[torch.Tensor]) -> None:
        """Pulls the bundle's variables into the tensors, one for each variable in its order."""
        self._bundle.pull(self._pin(tensors))
        self._finish()

    def push(self, gradients: list[torch.Tensor], tensors: Collection[torch.Tensor]) -> None:
        """Pushes a gradient of each variable, of floats(), and begins a pull, which pull_rest() completes after the step."""
        pinned = self._pin(tensors)
        if [g.numel() for g in gradients] != self._sizes:
            raise ValueError("a gradient has another size than its parameter")
        self._bundle.push_at([g.data_ptr() for g in gradients], pinned)
        note_writes(self._tensors)

    def check(self, tensors: Collection[torch.Tensor]) -> None:
        """Raises TypeError if a tensor has become of a type that a job does not train."""
        self._pin(tensors)

    def pull_rest(self) -> None:
        """Pulls what others have changed since the push()."""
        assert self._pinned is not None
        if self._bundle.pull_changed(self._pinned) or self._beside:
            self._finish()

    def _pin(self, tensors: Collection[torch.Tensor]) -> Pinned:
        now = [t.data_ptr() for t in tensors]
        if self._pinned is None or now != self._pointers:  # a tensor has been given other memory
            for name, t in zip(self._bundle.names, tensors):
                _require_trained(name, t)
            self._tensors = [t.detach() for t in tensors]
            places = [
                t if t.is_contiguous() and t.dtype == torch.float32 else torch.empty(t.shape, dtype=torch.float32, device="cpu")
                for t in self._tensors
            ]
            self._beside = [(t, place) for t, place in zip(self._tensors, places) if t is not place]
            # As arrays: whether a tensor has moved is known here, and need not be looked for again.
            self._pinned, self._pointers = self._bundle.pin([place.numpy() for place in places]), now
            self._sizes = [t.numel() for t in places]
        return self._pinned

    def _finish(self) -> None:
        for tensor, place in self._beside:
            tensor.copy_(place)
        note_writes(self._tensors)


class TableParameter(torch.nn.Parameter):
    """Stands for the table of an embedding among a model's parameters. It has no elements, and `grad` is the rows' gradient.

    So what PyTorch does with gradients reaches those of the rows: clip_grad_norm_(), a GradScaler, zero_grad(), and
    requires_grad_(False) of a model.
    """

    given: list[tuple[torch.Tensor, torch.Tensor]]  # the ids and gradients of each backward pass since the last push
    padding: Optional[int]
    is_summed: bool  # whether there is one pair, without repeated ids

    def __new__(cls, padding: Optional[int]) -> "TableParameter":
        """Returns one without gradients. `padding`: an id whose row has none."""
        none = torch.empty(0, dtype=torch.float32, device="cpu")
        made: Any = torch.Tensor._make_subclass(cls, none, True)  # type: ignore[arg-type,unused-ignore]
        made.given, made.padding, made.is_summed = [], padding, False
        return made  # type: ignore[no-any-return]

    def take_rows(self) -> Optional[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the ids and the gradient of each, or None, and forgets them."""
        found = _joined(self.given, self.padding) if self.given else None
        self.grad = None
        return found if found is not None and found[0].numel() != 0 else None

    @property
    def grad(self) -> Optional[torch.Tensor]:  # type: ignore[override,unused-ignore]
        """The gradient of each row that has one, summed over repeated ids, or None. It may be changed in place."""
        if self.given and not (self.is_summed and len(self.given) == 1):
            ids, gradients = _joined(self.given, self.padding)
            unique, places = torch.unique(ids, return_inverse=True)
            summed = gradients.new_zeros(len(unique), gradients.shape[1])
            summed.index_add_(0, places.to(gradients.device), gradients)
            self.given[:] = [(unique, summed)]
            self.is_summed = True
        return self.given[0][1] if self.given else None

    @grad.setter
    def grad(self, value: Optional[torch.Tensor]) -> None:
        if value is None:
            self.given.clear()
            self.is_summed = False
            return
        now = self.grad
        if now is None or value.shape != now.shape:
            raise ValueError("grad of an embedding's table has a row for each id of the backward passes since the last push")
        self.given[:] = [(self.given[0][0], value.detach())]


def _joined(
    given: list[tuple[torch.Tensor, torch.Tensor]], padding: Optional[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    if len(given) == 1:
        ids, gradients = given[0][0].reshape(-1), given[0][1].reshape(-1, given[0][1].shape[-1])
    else:
        ids = torch.cat([ids.reshape(-1) for ids, _ in given])
        gradients = torch.cat([gradient.reshape(-1, gradient.shape[-1]) for _, gradient in given])
    if padding is not None:
        is_row = ids != padding
        ids, gradients = ids[is_row], gradients[is_row.to(gradients.device)]
    return ids, gradients


class BufferPlace(NamedTuple):
    """Where a module has a buffer, in which the tensor may be another one each time."""

    name: str  # in state_dict()
    module: torch.nn.Module
    local_name: str

    @property
    def tensor(self) -> torch.Tensor:
        found = self.module._buffers.get(self.local_name)
        if found is None:
            raise Error(f"the model has no buffer '{self.name}' any more: make the Optimizer when the model has its final parts")
        return found


def buffer_places(model: torch.nn.Module) -> list[BufferPlace]:
    """Returns the places of the buffers that state_dict() contains, such as the running means of batch normalisation."""
    ours = {name for name, t in state(model).items() if not isinstance(t, torch.nn.Parameter)}
    return [
        BufferPlace(full, module, name)
        for prefix, module in _named_modules(model)
        for name in module._buffers
        if (full := f"{prefix}.{name}" if prefix else name) in ours
    ]


def state(model: torch.nn.Module) -> Tensors:
    """Returns the parameters and buffers of state_dict() by name, each once and not copied.

    It does not call state_dict(), which copies the tables of Embedding modules.
    """
    found, seen = {}, set()
    for prefix, module in _named_modules(model):
        kept = {n: b for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set}
        for name, tensor in (*module._parameters.items(), *kept.items()):
            if tensor is not None and id(tensor) not in seen and not isinstance(tensor, TableParameter):
                seen.add(id(tensor))
                found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


_increment_version = getattr(torch.autograd.graph, "increment_version", None)  # since PyTorch 2.1


def _for_many() -> Any:
    """increment_version() if it takes many tensors, as in newer versions, or None."""
    try:
        _increment_version([torch.empty(0)])  # type: ignore[misc,unused-ignore]
    except (TypeError, AttributeError):
        return None
    return _increment_version


_increment_versions = _for_many()


def note_writes(tensors: Iterable[torch.Tensor]) -> None:
    """Counts a write into each tensor, as an in-place operation does.

    Memory that the job has written is unknown to autograd. Without this, the backward pass of a graph that was built
    before the write would compute wrong gradients instead of raising an error.
    """
    written = [tensor for tensor in tensors if not tensor.is_inference()]
    if _increment_versions is not None:
        _increment_versions(written)
        return
    for tensor in written:
        if _increment_version is not None:
            _increment_version(tensor)
        else:
            (tensor.detach() if tensor.requires_grad else tensor).as_strided((0,), (1,)).zero_()  # writes no element
