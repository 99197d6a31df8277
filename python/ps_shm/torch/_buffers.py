"""Shares a model's buffers, such as the running means of batch normalisation, among the workers of a job."""

from typing import Literal, Optional

import torch

from .. import Bundle, Error, _core
from ._membership import Membership
from ._model import buffer_places, dense

Policy = Literal["chief", "mean", "local"]
UNSUMMED = (torch.bool, torch.float16, torch.bfloat16)  # a job can only assign these


class Buffers:
    """Shares the buffers by one of three policies.

    chief: all workers use those of the living worker of the lowest rank. mean: each worker adds the change in its own
    buffers divided by the number of living workers; the change in integers, such as counts of batches, is not divided, and
    buffers of bool, float16 and bfloat16, and changes from or to inf or NaN, follow chief. local: nothing is shared.

    Only what has changed is transferred.
    """

    def __init__(self, membership: Membership, model: torch.nn.Module, policy: Policy, prefix: str) -> None:
        if policy not in ("chief", "mean", "local"):
            raise ValueError(f"buffers='{policy}': choose chief, mean or local")
        self._membership = membership
        self._places = [] if policy == "local" else [p for p in buffer_places(model) if p.tensor.numel() != 0]
        if not self._places:
            return
        first = {prefix + place.name: dense(place.tensor) for place in self._places}
        self._bundle: Bundle = membership.worker.variables(first, rule="add", layout="versioned")
        self._is_summed = [policy == "mean" and t.dtype not in UNSUMMED for t in first.values()]
        self._known = [torch.empty_like(t) for t in first.values()]  # the job's values, as they were pulled last
        self._pinned = self._bundle.pin(self._known)
        self.pull()

    # The buffers as they are now: forward() may have put other tensors into their places.
    def _tensors(self) -> list[torch.Tensor]:
        now = [place.tensor for place in self._places]
        for place, tensor, known in zip(self._places, now, self._known):
            if tensor.shape != known.shape or tensor.dtype != known.dtype:
                raise Error(
                    f"buffer '{place.name}' has become {tensor.dtype} of shape {tuple(tensor.shape)}; in the job it is "
                    f"{known.dtype} of shape {tuple(known.shape)}"
                )
        return now

    def push(self) -> None:
        if not self._places:
            return
        leads, workers = self._membership.leads, self._membership.workers
        added: list[Optional[torch.Tensor]] = [None] * len(self._places)
        assigned = added.copy()
        for i, (tensor, known, is_summed) in enumerate(zip(self._tensors(), self._known, self._is_summed)):
            now = dense(tensor)
            if not (is_summed or leads) or _core.same_bytes(now, known):
                continue
            change = now - known if is_summed else None
            if change is not None and (not change.is_floating_point() or bool(change.isfinite().all())):
                added[i] = change / workers if change.is_floating_point() else change
            elif leads:  # also where a running minimum begins with inf, which has no difference to a number
                assigned[i] = now
        if any(change is not None for change in added):
            self._bundle.add(added)
        if any(change is not None for change in assigned):
            self._bundle.assign(assigned)

    def pull(self) -> None:
        if not self._places:
            return
        changed = set(self._bundle.pull_changed(self._pinned))
        for i, (tensor, known) in enumerate(zip(self._tensors(), self._known)):
            if i in changed or not _core.same_bytes(dense(tensor), known):  # forward() may have changed it, too
                tensor.detach().copy_(known)  # a write that autograd knows of

    def assign(self) -> None:
        if self._places:
            self._bundle.assign([dense(tensor) for tensor in self._tensors()])
