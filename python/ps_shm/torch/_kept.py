"""Saves the state of a job's optimizer in a state_dict(), and begins a job with such a state."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any, Union

import torch

from .. import Error, _core
from ._embedding import Embedding
from ._model import dense, state
from ._settings import check_slots, has_step, slot_names


def moments(
    job: str, rule: str, numbers: dict[str, int], halves: set[str], prefix: str, group: str
) -> tuple[dict[int, dict[str, torch.Tensor]], dict[str, Any]]:
    """Returns the optimizer slots of each parameter, by its number, and what else is needed to restore them.

    The slots have PyTorch's names.

    The names in `halves` are parameters of half precision: they have the job's values, too, as `master`. All of it is a
    snapshot: it is from one moment.
    """
    masters = [prefix + name for name in numbers if name in halves]
    slots = _core.optimizer_slots(job, [prefix + name for name in numbers], masters, group)
    found, names = {}, slot_names(rule)
    for name, number in numbers.items():
        of_variable = slots[prefix + name]
        of_parameter = {
            names.get(slot, slot): torch.from_numpy(values) for slot, values in of_variable.items() if slot != "updates"
        }
        if of_parameter and has_step(rule):
            of_parameter["step"] = torch.tensor(float(of_variable["updates"]))
        if of_parameter:
            found[number] = of_parameter
    return found, {
        "global_step": slots["global_step"],
        "numbers": numbers,
        "updates": {name: slots[prefix + name]["updates"] for name in numbers},
    }


def completed(state_dict: dict[str, Any], numbers: dict[str, int], rule: str) -> dict[str, Any]:
    """Returns the state_dict() of an optimizer of PyTorch with what is needed to restore it; one of ours as it is.

    `numbers`: those of the parameters by name. Raises TypeError if it is neither, ValueError if it is not of this rule or
    of as many parameters.
    """
    if "ps_shm" not in state_dict and not ("state" in state_dict and "param_groups" in state_dict):
        raise TypeError(
            "restore: pass what state_dict() of a ps_shm.torch.Optimizer or an optimizer of PyTorch gave, or the folder of a "
            "checkpoint"
        )
    state = state_dict["state"]
    check_slots(state, rule)
    if "ps_shm" in state_dict:
        return state_dict
    count = sum(len(group["params"]) for group in state_dict["param_groups"])
    if count != len(numbers):
        raise ValueError(f"the state has {count} parameters, and {len(numbers)} are trained")
    steps = {name: int(state.get(number, {}).get("step", 0)) for name, number in numbers.items()}
    kept = {number: {slot: values for slot, values in slots.items() if values is not None} for number, slots in state.items()}
    about = {"global_step": max(steps.values(), default=0), "numbers": numbers, "updates": steps}
    return {**state_dict, "state": kept, "ps_shm": about}


@contextlib.contextmanager
def folder(
    restore: Union[str, os.PathLike[str], dict[str, Any], None], model: torch.nn.Module, prefix: str, rule: str
) -> Iterator[Union[str, None]]:
    """Yields the folder of a checkpoint with the state to restore, or None.

    `restore` is such a folder, or the result of completed(), which is combined with the model's current values in a
    temporary folder. The temporary folder exists until the context ends. Raises Error for a model that contains an Embedding, because state_dict() does not contain its table.
    """
    if restore is None or isinstance(restore, (str, os.PathLike)):
        yield None if restore is None else os.fspath(restore)
        return
    if any(isinstance(m, Embedding) for m in model.modules()):
        raise Error("state_dict() has no table of an Embedding; keep such a job by ps_shm.checkpoint, and pass its folder")
    about, slots, own = restore["ps_shm"], {}, {torchs: ours for ours, torchs in slot_names(rule).items()}
    tensors = {prefix + name: dense(t) for name, t in sorted(state(model).items()) if t.numel() != 0}
    for name, number in about["numbers"].items():
        kept = {slot: t for slot, t in restore["state"].get(number, {}).items() if slot != "step"}
        of_parameter = {own.get(slot, slot): t.detach().float().cpu().contiguous() for slot, t in kept.items()}
        master, value = of_parameter.pop("master", None), tensors.get(prefix + name)
        slots[prefix + name] = {"updates": about["updates"][name], **of_parameter}
        if value is not None:  # the master, unless the model has been given other values since
            is_of_it = master is not None and torch.equal(master.to(value.dtype), value)
            tensors[prefix + name] = master if is_of_it else value.float()
    with tempfile.TemporaryDirectory(prefix="ps_shm-") as place:
        yield _core.write_checkpoint(place, about["global_step"], tensors, slots)
