"""The optimizer of a job, as a model's optimizer."""

from typing import Any, Callable, Literal, Optional, Union

import torch

from .. import Bundle, Error, Pinned, Staleness, Worker
from .._closing import Closing
from . import _kept
from ._buffers import Buffers, Policy
from ._embedding import Embedding
from ._gpu import Gpu
from ._membership import Membership
from ._model import is_on_gpu, own, parameters, pointers


class Optimizer(torch.optim.Optimizer, Closing):
    """Takes the place of a torch.optim optimizer: step() pushes the gradients, steps, and pulls the parameters.

    model: its trained parameters become the job's variables, with their names. Whoever comes first gives their first
    values; every other model begins with the job's.
    job: its name, or a Worker; None: that of PS_JOB. create: whoever comes first makes the job, with these settings.
    buffers: "chief": all have those of rank 0; "mean": each adds its share; "local": each keeps its own.
    push_every, local: with local=torch.optim.SGD(model.parameters(), ...) that many steps of it are taken between two
    pushes, of the difference that they have made (local SGD).
    restore: what a job that is made here begins with: the folder of a checkpoint, or what state_dict() gave, beside the
    model as it is. Where another process has made the job, it is the other's that counts.
    settings: those of ps_shm.Server: lr, optimizer, momentum, mode, ... Without `create` the job must have these.
    rank, wait, group, threads: those of ps_shm.Worker.
    Raises TypeError for a model that is on several devices or not of float32; Error where the job has other settings.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        job: Union[str, Worker, None] = None,
        *,
        create: bool = False,
        buffers: Policy = "chief",
        push_every: int = 1,
        local: Optional[torch.optim.Optimizer] = None,
        rank: Union[int, Literal["any"], None] = None,
        wait: float = 60.0,
        group: str = "",
        threads: int = 1,
        restore: Union[str, dict[str, Any], None] = None,
        **settings: Any,
    ) -> None:
        if (push_every > 1) != (local is not None) or push_every < 1:
            raise ValueError("push_every above 1 and local=torch.optim.SGD(...) go together")
        if restore is not None and not create:
            raise ValueError("restore is for the job that is made here: it goes with create=True")
        self._model = own(model)
        self._parameters = parameters(self._model, may_be_on_gpu=True)
        if local is not None and create:
            settings.setdefault("optimizer", "add")
        self._local, self._push_every, self._buffers_policy = local, push_every, buffers
        self._how_to_join = (job, create, rank, wait, group, threads, settings)
        self._group = group
        self._join(restore)
        try:
            # What a torch user looks for in param_groups: the job's, as it is now.
            said = self.worker.settings
            super().__init__(
                self._parameters.values(),
                {"lr": self._lr, "momentum": float(said["momentum"]), "optimizer": said["optimizer"], "mode": said["mode"]},
            )
            self._momentum = self.param_groups[0]["momentum"]
            if isinstance(restore, dict):
                self._take_group(restore)
        except BaseException:
            self._membership.close(has_failed=True)
            raise

    def _join(self, restore: Union[str, dict[str, Any], None]) -> None:
        with _kept.folder(restore, self._model) as folder:
            self._membership = Membership(*self._how_to_join, restore=folder)
            self.worker = self._membership.worker
            try:
                self._declare()
            except BaseException:
                self._membership.close(has_failed=True)
                raise

    def _declare(self) -> None:
        said = self.worker.settings
        self._is_sum = said["optimizer"] == "add"
        self._is_sync = said["mode"] == "sync"
        self._since_push = 0
        first = {name: p.detach().cpu() for name, p in self._parameters.items()}
        self._bundle: Bundle = self.worker.variables(first, regularize=True)
        self._pinned: Optional[Pinned] = None
        self._pointers: list[int] = []
        self._owed = 0  # steps that the worker shall have ended
        self._buffers = Buffers(self.worker, self._model, self._buffers_policy)
        self._embeddings = [m for m in self._model.modules() if isinstance(m, Embedding)]
        for embedding in self._embeddings:
            embedding.attach(self.worker)
        self._lr = self._live_lr()
        # A link to a GPU comes when all variables are declared.
        self._gpu = Gpu(self._bundle, self._parameters) if is_on_gpu(next(iter(self._parameters.values()))) else None
        if self._gpu is not None:
            self._rooms = self._gpu.rooms
        else:
            self._rooms = {name: torch.from_numpy(room) for name, room in self._bundle.gradients().items()}
            self._pinned_rooms = self._bundle.pin(list(self._rooms.values()))
        self.pull()
        if self._local is None:
            for name, p in self._parameters.items():
                self._rooms[name].zero_()
                p.grad = self._rooms[name]

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Pushes the gradients, ends the step, and pulls the parameters. Returns what `closure` does.

        In the modes ssp and sync it waits for others; Ctrl-C ends that. Raises JobFinished where a wait was for a job
        that is over.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._settle()
        self._follow_scheduler()
        for embedding in self._embeddings:
            embedding.push()
        if self._local is not None:
            self._local.step()
            self._since_push += 1
            if self._since_push < self._push_every:
                return loss
            self._since_push = 0
            self._gather_differences()
        else:
            self._gather_gradients()
        if self._gpu is not None:
            self._gpu.push()
        else:
            self._bundle.push(self._pinned_rooms)
        self._buffers.push()
        self._owed = self.worker.steps + 1
        self._settle()
        self.pull()
        return loss

    def pull(self) -> None:
        """Pulls parameters, and buffers as their policy says: the next step begins with these."""
        if self._gpu is not None:
            self._gpu.pull()
        else:
            now = pointers(self._parameters.values())
            if self._pinned is None or now != self._pointers:  # somebody has given a parameter other memory
                self._pinned = self._bundle.pin([p.detach() for p in self._parameters.values()])
                self._pointers = now
            self._bundle.pull(self._pinned)
        if self._local is not None:
            self._begun = [p.detach().clone() for p in self._parameters.values()]
        self._buffers.pull()

    def assign(self) -> None:
        """Gives the job the model's values, such as those of a checkpoint; the optimizer's state begins anew."""
        self._bundle.assign([p.detach().cpu() for p in self._parameters.values()], reset=True)
        self._buffers.assign()
        if self._is_sync:
            self.worker.step()
        self.pull()

    def state_dict(self) -> dict[str, Any]:
        """The settings, and of each parameter what the job's optimizer keeps of it (momentum; m and v; ...), for torch.save.

        The tensors are of one moment, copied while others train. Give it to load_state_dict(), or as `restore` to the next
        job's Optimizer. Tables of Embedding are not in it: ps_shm.checkpoint keeps those.
        """
        kept: dict[str, Any] = super().state_dict()
        kept["state"], kept["ps_shm"] = _kept.moments(self.worker.job, list(self._parameters), self._group)
        return kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lets the job begin anew with what state_dict() gave, and with the model as it is: load that one first.

        For a process that has made the job and is alone in it; the job is made once more, and `worker` is another one then.
        Raises Error where others have come already: there the rate is all that can change. Give such jobs `restore`.
        """
        if state_dict["state"] or self._membership.is_alone:
            if not self._membership.is_alone:
                raise Error("load_state_dict() is for the process that makes the job, before others come; "
                            "give Optimizer(..., create=True) what was kept as restore")
            self._settle()
            if self._gpu is not None:
                self._gpu.close()
            self._membership.close(has_failed=True)
            self._join(state_dict)
        self._take_group(state_dict)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Fills the gradients with zeros where they lie; they are never set to None. Embeddings forget theirs."""
        self._settle()
        for embedding in self._embeddings:
            embedding.drop()
        if self._local is not None:
            self._local.zero_grad(set_to_none=set_to_none)
            return
        for name, p in self._parameters.items():
            self._rooms[name].zero_()
            p.grad = self._rooms[name]

    @property
    def global_step(self) -> int:
        """Global steps of the job so far."""
        return self.worker.global_step

    @property
    def finished(self) -> bool:
        """Whether the job's last step is done."""
        return self.worker.finished

    def staleness(self) -> Staleness:
        """How many updates by others came between this worker's pulls and its pushes."""
        return self.worker.staleness()

    def close(self) -> None:
        """Leaves the job. A process that has made it waits for the others to leave. Happens at the program's end, too."""
        if self._gpu is not None:
            self._gpu.close()
        self._rooms = {}
        self._membership.close()

    def add_param_group(self, param_group: Any) -> None:
        if getattr(self, "param_groups", None):
            raise Error("a job has one group of parameters: its settings are the same for all")
        super().add_param_group(param_group)

    # Ends a step that has pushed. After Ctrl-C in its wait others may still read the gradients.
    def _settle(self) -> None:
        if self.worker.steps < self._owed:
            self.worker.step()

    def _gather_gradients(self) -> None:
        for name, p in self._parameters.items():
            room = self._rooms[name]
            if p.grad is room:
                continue
            if p.grad is None:  # model.zero_grad() does so, and this step did not need the parameter
                room.zero_()
            else:
                room.copy_(p.grad)
            p.grad = room

    def _gather_differences(self) -> None:
        share = 1.0 / max(int(self.worker.live["workers"]), 1) if self._is_sync and self._is_sum else 1.0
        for (name, p), begun in zip(self._parameters.items(), self._begun):
            difference = p.detach() - begun
            self._rooms[name].copy_(difference * share if self._is_sum else -difference)

    def _live_lr(self) -> float:
        return float(self.worker.live["lr"])

    # The rate, and what schedulers keep there.
    def _take_group(self, state_dict: dict[str, Any]) -> None:
        for key, value in state_dict["param_groups"][0].items():
            if key not in ("params", "momentum", "optimizer", "mode"):
                self.param_groups[0][key] = value

    # A scheduler of torch alters the group. The chief's holds for the job; the other ranks' schedulers say the same later.
    def _follow_scheduler(self) -> None:
        group = self.param_groups[0]
        if group["momentum"] != self._momentum:
            raise Error("a job's momentum stays: give the scheduler cycle_momentum=False")
        if group["lr"] != self._lr:
            if self.worker.is_chief:
                self.worker.set(lr=group["lr"])
            self._lr = group["lr"]
