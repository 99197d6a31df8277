"""Which slice of each tensor of a sharded model each process writes."""

import itertools
import math
from typing import Any, List, Optional, Sequence, Tuple

from ._model import Tensors

Block = Tuple[slice, ...]


def _share(extent: int, parts: int, number: int) -> Tuple[int, int]:
    """The indices from which and to which a part goes, as torch.chunk cuts."""
    size = -(-extent // parts)
    begin = min(number * size, extent)
    return begin, min(begin + size, extent)


def _cuts(mesh: Sequence[int], placements: Sequence[Any], at: int) -> bool:
    """Whether a dimension of the mesh cuts an axis of the tensor: into parts, or what the later dimensions have cut.

    The second kind is the _StridedShard of FSDP2 with tensor parallelism.
    """
    placement, kind = placements[at], type(placements[at]).__name__
    if kind != "_StridedShard":
        return kind == "Shard"
    later = [
        parts for parts, one in zip(mesh[at + 1 :], placements[at + 1 :]) if type(one).__name__ == "Shard" and one.dim == placement.dim
    ]
    return bool(placement.split_factor == math.prod(later))


def block(shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any], coordinate: Sequence[int]) -> Optional[Block]:
    """The part of a tensor that the process of this coordinate of a device mesh writes; None: it writes nothing.

    Of processes that have the same elements, the one of coordinate 0 writes them. Raises TypeError for placements other
    than Shard, Replicate and FSDP2's _StridedShard.
    """
    begins, ends = [0] * len(shape), list(shape)
    is_strided = [type(placement).__name__ == "_StridedShard" for placement in placements]
    for at in sorted(range(len(mesh)), key=is_strided.__getitem__):  # those that cut parts of others last
        placement, number = placements[at], coordinate[at]
        if type(placement).__name__ == "Replicate":
            if number != 0:
                return None
            continue
        if not _cuts(mesh, placements, at):
            raise TypeError(f"placement {placement} cannot be published")
        axis = placement.dim
        first, last = _share(ends[axis] - begins[axis], mesh[at], number)
        begins[axis], ends[axis] = begins[axis] + first, begins[axis] + last
    if any(begin == end for begin, end in zip(begins, ends)):
        return None
    return tuple(slice(begin, end) for begin, end in zip(begins, ends))


def slices(tensors: Tensors, writers: int) -> List[dict[str, Block]]:
    """For each process, by its global rank, the slices of the tensors that it writes.

    Tensors that are no DTensor are the same in all processes, and rank 0 writes them. Of a tensor without elements there is
    nothing to write. Raises TypeError, ValueError.
    """
    found: List[dict[str, Block]] = [{} for _ in range(writers)]
    for name, tensor in tensors.items():
        if 0 in tensor.shape:
            continue
        placements = getattr(tensor, "placements", None)
        if placements is None:
            found[0][name] = tuple(slice(0, extent) for extent in tensor.shape)
            continue
        mesh = tensor.device_mesh.mesh  # type: ignore[attr-defined]
        for coordinate in itertools.product(*map(range, mesh.shape)):
            rank = int(mesh[coordinate])
            if rank >= writers:
                raise ValueError(f"'{name}' has a part on rank {rank}; `writers` must be the number of all ranks, not {writers}")
            try:
                part = block(tensor.shape, mesh.shape, placements, coordinate)
            except TypeError as error:
                raise TypeError(
                    f"'{name}': {error}; only those of Shard, Replicate, FSDP2 and tensor parallelism can: use "
                    "tensor.redistribute() before, or give ps_shm.Publisher the slices of all writers"
                ) from None
            if part is not None:
                found[rank][name] = part
    return found


def local(tensor: Any) -> Any:
    """The part of a tensor that this process has, row-major on the CPU; all of it where it is no DTensor."""
    part = tensor.to_local() if getattr(tensor, "placements", None) is not None else tensor
    return part.detach().cpu().contiguous()
