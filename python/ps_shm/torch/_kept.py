"""A job's optimizer in a checkpoint of torch's: what is kept of it, and how a job begins with that."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any, Union

import torch

from .. import Error, _core
from ._embedding import Embedding
from ._model import state


def moments(job: str, names: list[str], group: str) -> tuple[dict[int, dict[str, torch.Tensor]], dict[str, Any]]:
    """Of each parameter, by its number, the slots that the job's optimizer has for it; and what else restoring them needs."""
    slots = _core.optimizer_slots(job, names, group)
    found = {}
    for number, name in enumerate(names):
        of_parameter = {slot: torch.from_numpy(values) for slot, values in slots[name].items() if slot != "updates"}
        if of_parameter:
            found[number] = of_parameter
    return found, {
        "global_step": slots["global_step"],
        "names": names,
        "updates": [slots[name]["updates"] for name in names],
    }


@contextlib.contextmanager
def folder(restore: Union[str, dict[str, Any], None], model: torch.nn.Module) -> Iterator[Union[str, None]]:
    """A checkpoint's folder with that; one that is made here is there until the variables have begun."""
    if restore is None or isinstance(restore, str):
        yield restore
        return
    if "ps_shm" not in restore:
        raise TypeError("restore: pass what state_dict() of a ps_shm.torch.Optimizer gave, or the folder of a checkpoint")
    if any(isinstance(m, Embedding) for m in model.modules()):
        raise Error("state_dict() has no table of an Embedding; keep such a job by ps_shm.checkpoint, and pass its folder")
    about, slots = restore["ps_shm"], {}
    for number, name in enumerate(about["names"]):
        of_parameter = restore["state"].get(number, {})
        slots[name] = {"updates": about["updates"][number], **{n: t.cpu().contiguous() for n, t in of_parameter.items()}}
    with tempfile.TemporaryDirectory(prefix="ps_shm-") as place:
        yield _core.write_checkpoint(place, about["global_step"], {n: t.cpu() for n, t in sorted(state(model).items())}, slots)
