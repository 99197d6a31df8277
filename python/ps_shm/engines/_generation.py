"""What the adapters have in common: the very generation that an update is about, and its tensors."""

from typing import TYPE_CHECKING, Iterator, Mapping

from .. import Generation

if TYPE_CHECKING:
    import torch


def checked(generation: Generation, wanted: int, name: str) -> Generation:
    """Returns the generation, or raises if it is not the one that all workers of an update are to take.

    Args:
        generation: what was read.
        wanted: the number that the trainer has named.
        name: of the publication.

    Raises:
        RuntimeError: it has another number.
    """
    if generation.number != wanted:
        raise RuntimeError(
            f"ps_shm: publication '{name}' has generation {generation.number}, not {wanted}: the trainer must not publish "
            "before an update is finished"
        )
    return generation


def blanks(specs: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yields a name and a tensor of zeros for each of Subscriber.tensors. They take no memory until they are read."""
    import torch

    for name, (dtype, shape) in specs.items():
        yield name, torch.zeros(shape, dtype=getattr(torch, dtype), device="cpu")


def weights(generation: Generation, copies: bool = False) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yields the name and the tensor of each weight: where it lies, read-only, or a copy of it."""
    from ..torch import tensors

    for name, tensor in tensors(generation).items():
        yield name, tensor.clone() if copies else tensor
