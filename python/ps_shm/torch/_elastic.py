"""Elastic averaging SGD (Zhang, Choromanska, LeCun, 2015)."""

from typing import Literal, Optional, Union

import torch

from .. import Error, Worker
from .._types import Setting
from ._membership import Joined, Membership
from ._model import Places, floats, named_parameters, own, parameters


class Elastic(Joined):
    """Elastic averaging: each worker trains its own model, and a common centre holds the models together.

    Every `every` steps the worker's model x and the centre c move towards each other: x -= alpha (x - c) and
    c += alpha (x - c). The centre lies in shared memory. The model must be on the CPU.

        local = torch.optim.SGD(model.parameters(), lr=0.1)
        with ps_shm.torch.Elastic(model, "job", alpha=0.2, every=10, create=True) as elastic:
            for batch in batches:
                local.zero_grad()
                loss(model, batch).backward()
                local.step()
                elastic.step()
            elastic.pull()                       # sets the model to the centre, to evaluate it

    Args:
        model: the first worker's model gives the centre its initial values; the other workers' models start from the
            centre.
        job, create, rank, wait, group, threads, prefix, settings: as for Optimizer. A job that is created here has the
            optimizer `add` unless another one is given.
        alpha: the fraction of the distance that each of the two moves, between 0 and 1.
        every: number of steps between two moves, at least 1.

    Raises:
        ValueError: alpha or every is out of range.
        TypeError: the model is not on the CPU, not of float32, bfloat16 or float16, or has no parameters to train.
        Error: the job has other settings; another Optimizer or Elastic of this process trains one of the parameters as another
            variable.

    Attributes:
        worker: the Worker by which this process takes part in the job.
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
        wait: Optional[float] = 60.0,
        group: str = "",
        threads: int = 1,
        prefix: str = "",
        **settings: Setting,
    ) -> None:
        if not 0 < alpha < 1 or every < 1 or every % 1 != 0:
            raise ValueError("alpha lies between 0 and 1, and every is at least 1")
        if create:
            settings.setdefault("optimizer", "add")
        self._alpha, self._every, self._steps = alpha, every, 0
        self._parameters = parameters(own(model))
        self._frozen = {name: p for name, p in named_parameters(own(model)) if name not in self._parameters}
        self._hold(Membership(job, create, rank, wait, group, threads, settings, prefix=prefix))
        self.worker = self._membership.worker
        try:
            self._membership.refuse_shared(self._parameters)
            self._bundle = self.worker.variables({prefix + n: floats(p) for n, p in self._parameters.items()}, rule="add")
            self._places = Places(self._bundle)
            self._centre = [torch.empty(p.shape, dtype=torch.float32, device="cpu") for p in self._parameters.values()]
            self._pinned = self._bundle.pin(self._centre)
            self.pull()
        except BaseException:
            self._membership.close(has_failed=True)
            raise

    def step(self) -> bool:
        """Ends a step of the worker. At every `every`-th call the model and the centre move. Returns whether they did.

        In the modes ssp and sync it waits for other workers. Raises JobFinished if the job has ended, Error if a parameter
        that was frozen when this object was made is trained now.
        """
        self._membership.check()
        for name, p in self._frozen.items():
            if p.requires_grad and p.numel() != 0:
                raise Error(f"parameter '{name}' was frozen when Elastic was made, and has no centre: make Elastic after it trains")
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
        """Sets the model to the centre, for example to evaluate it at the end."""
        self._places.pull(self._parameters.values())
