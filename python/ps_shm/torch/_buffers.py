"""Shares a model's buffers, such as the running means of batch normalisation, among the workers of a job."""

from typing import Literal

import torch

from .. import Bundle, Worker
from ._model import Tensors, buffers, note_writes

Policy = Literal["chief", "mean", "local"]


class Buffers:
    """Shares the buffers by one of three policies.

    chief: all workers use those of rank 0. mean: each worker adds the change in its own buffers divided by the number
    of workers; the change in integers, such as counts of batches, is not divided. local: nothing is shared.
    """

    def __init__(self, worker: Worker, model: torch.nn.Module, policy: Policy) -> None:
        if policy not in ("chief", "mean", "local"):
            raise ValueError(f"buffers='{policy}': choose chief, mean or local")
        self._worker, self._policy = worker, policy
        self._tensors: Tensors = {} if policy == "local" else buffers(model)
        if not self._tensors:
            return
        self._staged = {name: tensor.cpu() for name, tensor in self._tensors.items()}  # no copy if on the CPU
        self._bundle: Bundle = worker.variables(dict(self._staged), rule="add")
        self._pulled: Tensors = {}
        self.pull()

    def push(self) -> None:
        if not self._tensors or self._policy == "chief" and not self._worker.is_chief:
            return
        self._stage()
        if self._policy == "chief":
            self._bundle.assign(self._staged)
            return
        workers = max(int(self._worker.live["workers"]), 1)
        changes = {}
        for name, tensor in self._staged.items():
            change = tensor - self._pulled[name]
            changes[name] = change / workers if change.is_floating_point() else change
        self._bundle.add(changes)

    def pull(self) -> None:
        if not self._tensors:
            return
        self._bundle.pull(self._staged)
        for name, tensor in self._tensors.items():
            if tensor.device.type != "cpu":
                tensor.copy_(self._staged[name])
        note_writes(self._tensors.values())
        if self._policy == "mean":
            self._pulled = {name: tensor.clone() for name, tensor in self._staged.items()}

    def assign(self) -> None:
        if self._tensors:
            self._stage()
            self._bundle.assign(self._staged)

    def _stage(self) -> None:
        for name, tensor in self._tensors.items():
            if tensor.device.type != "cpu":
                self._staged[name].copy_(tensor)
