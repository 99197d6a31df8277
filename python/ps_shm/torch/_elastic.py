"""Elastic averaging SGD (Zhang, Choromanska, LeCun, 2015)."""

from typing import Any, Literal, Optional, Union

import torch

from .. import Worker
from .._closing import Closing
from ._membership import Membership
from ._model import own, parameters


class Elastic(Closing):
    """Workers train models of their own, and a centre holds them together: every `every` steps a model x and the centre c
    move towards each other, x -= alpha (x - c) and c += alpha (x - c).

        elastic = ps_shm.torch.Elastic(model, "job", alpha=0.2, every=10, create=True)
        loss.backward(); local.step(); elastic.step()

    job, create, rank, wait, group, threads, settings: as of Optimizer; a job that is made here has the optimizer add.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        job: Union[str, Worker, None] = None,
        *,
        alpha: float,
        every: int = 1,
        create: bool = False,
        rank: Union[int, Literal["any"], None] = None,
        wait: float = 60.0,
        group: str = "",
        threads: int = 1,
        **settings: Any,
    ) -> None:
        if not 0 < alpha < 1 or every < 1:
            raise ValueError("alpha lies between 0 and 1, and every is at least 1")
        if create:
            settings.setdefault("optimizer", "add")
        self._alpha, self._every, self._steps = alpha, every, 0
        self._parameters = parameters(own(model))
        self._membership = Membership(job, create, rank, wait, group, threads, settings)
        self.worker = self._membership.worker
        try:
            self._bundle = self.worker.variables({n: p.detach() for n, p in self._parameters.items()}, rule="add")
            self._centre = [torch.empty_like(p) for p in self._parameters.values()]
            self._pinned = self._bundle.pin(self._centre)
            self.pull()
        except BaseException:
            self._membership.close(has_failed=True)
            raise

    def step(self) -> bool:
        """Ends a step of the worker; every `every`-th time model and centre move. Returns whether they did."""
        self._steps += 1
        moves = self._steps % self._every == 0
        if moves:
            self._bundle.pull(self._pinned)
            for p, centre in zip(self._parameters.values(), self._centre):
                centre.sub_(p.detach()).mul_(-self._alpha)
                p.detach().sub_(centre)
            self._bundle.add(self._pinned)
        self.worker.step()
        return moves

    def pull(self) -> None:
        """Sets the model to the centre, as for an evaluation at the end."""
        self._bundle.pull([p.detach() for p in self._parameters.values()])

    def close(self) -> None:
        """Leaves the job. A process that has made it waits for the others to leave. Happens at the program's end, too."""
        self._membership.close()
