"""An optimizer for PyTorch models that pushes to a job in shared memory."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Literal, Optional, TypeVar, Union

import torch

from .. import Bundle, Error, Staleness, Worker, checkpoint
from .._types import Setting
from . import _kept
from ._buffers import Buffers, Policy
from ._embedding import Embedding
from ._gpu import Gpu
from ._membership import Joined, Membership
from ._model import Group, Places, TableParameter, floats, groups, is_on_gpu, own, parameters, refuse_renormalised
from ._rates import Rates, take_defaults
from ._settings import check_group, default_rule, defaults, for_rule, group_of_torch, own_names, require_momentum

Loss = TypeVar("Loss")


def _copies(parameters: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: p.detach().to(torch.float32, copy=True) for name, p in parameters.items()}


class Optimizer(Joined, torch.optim.Optimizer):
    """Replaces an optimizer of torch.optim: step() pushes the gradients, ends the step, and pulls the parameters.

    The model's parameters become variables of the job, with their names in state_dict(). The first worker's model gives
    the variables their initial values; every other model starts from the job's values. The job keeps the optimizer's
    state (momentum and the like), one for all workers. The model is on the CPU or on one GPU. Its parameters may be float32,
    bfloat16 or float16: the job holds them in float32, and a pull rounds them to the nearest.
    Frozen parameters stay with their process until they are unfrozen.

        opt = ps_shm.torch.Optimizer(model, "job", create=True, optimizer="adam", lr=0.01)
        for batch in batches:
            opt.zero_grad()
            loss(model, batch).backward()
            opt.step()
        opt.close()

    Start this program once or several times: the first process creates the job, and the others join it. A scheduler of
    torch.optim.lr_scheduler can be used; the one in the living worker of the lowest rank sets the job's learning rate.

    Args:
        model: the model to train, or what torch.compile made of it.
        job: the job's name, or a Worker. None: the value of PS_SHM_JOB, which launch_shm and ps_shm.Server set.
        create: create the job with these settings, and serve it, if no other process does.
        buffers: how the workers share the buffers that state_dict() has, such as running means. "chief": all use those of the
            living worker of the lowest rank. "mean": each adds the change in its own buffers divided by the number of
            living workers. "local": each keeps its own.
        push_every, local: local SGD. With local=torch.optim.SGD(model.parameters(), ...) and push_every above 1, step()
            takes a step of `local`; every push_every-th call pushes the resulting difference and pulls the parameters. The
            job's optimizer is `add`, or another one, which gets the negated differences as gradients. In mode sync a step
            applies their mean; with a quorum this needs optimizer="sgd", lr=1 instead of `add`.
        rank, wait, group: as for ps_shm.Worker.
        threads: as for ps_shm.Worker. None: 1, and of a model on a GPU as many as the job allows. A job that is created here
            then allows cores / workers, at most 8.
        restore: the state with which a job that is created here begins: the folder of a checkpoint, or the result of
            state_dict() together with the current values of the model. Ignored if another process has created the job.
            Requires create=True. A state is for the first object of this process in the job.
        prefix: precedes the names of the model's variables. Objects of one process with different prefixes train
            different models in one job, for example the two of a GAN, and share a worker.
        params: the parameters to train, or groups of them, as for the optimizers of PyTorch; None: all of the model. A
            group may have lr and weight_decay, and both may change at any time. They are multiples of the job's, which
            each variable has (its l1, l2 and decoupled decay are multiplied alike).
        wire: the transfer dtype of the gradients of a model on a GPU: with "bfloat16-push" they are rounded to bfloat16 on
            their way. The job's values stay float32. Ignored on a CPU.
        settings: as for ps_shm.Server: lr, optimizer, momentum, mode, workers, ... If the job exists already, it must
            have these settings. PyTorch's names are accepted, too, and `weight_decay` means what it does there: of adamw it
            is decoupled, of other rules it is the job's l2. A job that is created here has PyTorch's defaults. One for a
            model on a GPU has chunk_bytes="gpu", unless chunk_bytes is given.

    Raises:
        TypeError: the model's parameters are on several devices or of another type, two of them share memory, or none is
            trained.
        ValueError: push_every and local, or restore and create, do not match; params or settings have what a job does not,
            or lack momentum; restore has another number of groups, another rule or other settings; wire is unknown.
        Error: the job has other settings; restore is for a job in which this process is already; another Optimizer or Elastic
            of this process trains one of the parameters as another variable; local steps, the optimizer `add` and a quorum.
        Timeout: there is no such job within `wait` seconds.
        JobFinished: the last step of the job is done.

    Attributes:
        worker: the Worker by which this process takes part in the job.
    """

    _is_made = False

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
        wait: Optional[float] = 60.0,
        group: str = "",
        threads: Optional[int] = None,
        restore: Union[str, os.PathLike[str], dict[str, Any], None] = None,
        prefix: str = "",
        params: Union[Iterable[torch.Tensor], Iterable[dict[str, Any]], None] = None,
        wire: Literal["float32", "bfloat16-push"] = "float32",
        **settings: Union[Setting, tuple[float, float]],
    ) -> None:
        if (push_every > 1) != (local is not None) or push_every < 1 or push_every % 1 != 0:
            raise ValueError("push_every, an integer above 1, and local=torch.optim.SGD(...) go together")
        if restore is not None and not create:
            raise ValueError("restore is for the job that is made here: it goes with create=True")
        if wire not in ("float32", "bfloat16-push"):
            raise ValueError(f"wire={wire!r}: it is 'float32', or 'bfloat16-push', with which gradients are rounded to bfloat16")
        self._wire = wire
        self._model = own(model)
        self._groups = groups(self._model, params)
        self._only = None if params is None else {name for group in self._groups for name in group.parameters}
        self._local, self._push_every, self._buffers_policy = local, push_every, buffers
        self._parameters = parameters(self._model, may_be_on_gpu=True, only=self._only)
        if local is None:  # its steps contain what forward() has changed
            refuse_renormalised(self._model, self._parameters)
        self._embeddings = [m for m in self._model.modules() if isinstance(m, Embedding)]
        # The rows of an Embedding whose parameter `params` has not follow the last group.
        group_of = {id(p): number for number, group in enumerate(self._groups) for p in group.parameters.values()}
        self._groups_of_tables = [group_of.get(id(next(e.parameters())), len(self._groups) - 1) for e in self._embeddings]
        self._prefix = prefix
        settings = own_names(settings)
        if local is not None and create:
            settings.setdefault("optimizer", "add")
        if create:
            require_momentum(settings)
            take_defaults(settings, self._groups, self._groups_of_tables)
        if threads is None:
            threads = 0 if self._is_on_gpu else 1
        self._how_to_join = (job, create, rank, wait, group, threads, settings)
        self._job_defaults = defaults(settings)
        if self._is_on_gpu:
            self._job_defaults["chunk_bytes"] = "gpu"
        self._group = group
        self._join(restore)
        try:
            self._begin(restore)
        except BaseException:
            self._membership.close(has_failed=True)
            raise

    def _begin(self, restore: Union[str, os.PathLike[str], dict[str, Any], None]) -> None:
        # The gradients of their rows follow those of the last group, also where `params` has them not.
        named = {id(p) for _, p in self._trainable()}
        tables = [p for p in self._model.parameters() if isinstance(p, TableParameter) and id(p) not in named]
        super().__init__(
            [
                {**own_settings, "params": [*group.parameters.values(), *(tables if group is self._groups[-1] else [])]}
                for group, own_settings in zip(self._groups, self._rates.of_groups())
            ],
            self._rates.of_job(),
        )
        self._is_made = True
        if isinstance(restore, dict):
            if self._membership.is_serving:
                self._check_groups(restore)
            self._take_groups(restore, has_made_job=self._membership.is_serving)

    def _join(self, restore: Union[str, os.PathLike[str], dict[str, Any], None]) -> None:
        rule = default_rule(self._how_to_join[-1])
        if isinstance(restore, dict):
            restore = _kept.completed(restore, self._all_numbers(), rule)
        with _kept.folder(restore, self._model, self._prefix, rule) as folder:
            self._enter(folder)

    def _enter(self, folder: Optional[str]) -> None:
        self._hold(Membership(*self._how_to_join, restore=folder, prefix=self._prefix, defaults=self._job_defaults, for_rule=for_rule))
        self.worker = self._membership.worker
        try:
            if folder is not None and self._membership.shares_worker:
                raise self._one_of_several()
            self._declare()
        except BaseException:
            self._membership.close(has_failed=True)
            raise

    def _one_of_several(self) -> Error:
        return Error(
            f"job '{self.worker.job}' has other objects of this process, whose models it could not restore; keep such a job by "
            "ps_shm.checkpoint.save(), and give its folder as restore to the first of them"
        )

    def _declare(self) -> None:
        said = self.worker.settings
        self._rates = Rates(self._membership, self._groups, self._prefix, self._groups_of_tables)
        self._is_sum = said["optimizer"] == "add"
        self._is_sync = said["mode"] == "sync"
        self._refuse_quorum()
        # Each chunk is copied as it is pushed, if that is at once, and if the local steps need no copy of their own.
        self._pulls_in_push = not self._is_sync and said["layout"] != "inplace" and self._local is None
        self._since_push = 0
        self._owed = 0  # the number of steps that the worker has to have ended
        self._gpu: Optional[Gpu] = None
        self._declare_parameters({**self._parameters, **parameters(self._model, True, self._only)})
        self._rates.read(self._bundle)
        self._restore_frozen()
        self._buffers = Buffers(self._membership, self._model, self._buffers_policy, self._prefix)
        for embedding, group in zip(self._embeddings, self._groups_of_tables):
            embedding.attach(self.worker, lr_scale=self._rates.of_table(group))
        self._link()
        self.pull()

    def _bundle_of(self, found: dict[str, torch.nn.Parameter]) -> Bundle:
        self._membership.refuse_shared(found)
        first = {self._prefix + name: floats(p) for name, p in found.items()}
        return self.worker.variables(
            first, regularize=self._rates.declared("decay", first), lr_scale=self._rates.declared("rate", first)
        )

    def _declare_parameters(self, found: dict[str, torch.nn.Parameter]) -> None:
        self._bundle = self._bundle_of(found)
        self._parameters = found
        self._frozen = {name: p for name, p in self._trainable() if name not in found and p.numel() != 0}
        self._places = Places(self._bundle)

    # Frozen parameters become variables when they are trained for the first time. Only these are pulled: the others, and
    # the buffers, may have changes that are not pushed yet. After an Error it may be called again.
    def _take_unfrozen(self) -> None:
        added = {name: p for name, p in self._frozen.items() if p.requires_grad}
        if self._local is None:
            refuse_renormalised(self._model, added)
        bundle = self._bundle_of(added)
        values = [torch.empty(p.shape, dtype=torch.float32, device="cpu") for p in added.values()]
        bundle.pull(bundle.pin(values))
        for p, value in zip(added.values(), values):
            p.detach().copy_(value)
        if self._local is not None:
            self._begun.update(_copies(added))
        self._declare_parameters({n: p for n, p in self._trainable() if n in self._parameters or n in added})
        self._rates.give(self._bundle)
        self._link()

    # A frozen parameter is no variable of the job, but may be one of the checkpoint that the job began with.
    def _restore_frozen(self) -> None:
        folder = self.worker.settings["restore"]
        if not self._frozen or not folder or not os.path.isdir(folder):
            return
        try:
            self._read_frozen(checkpoint.load(folder))
        except Error:
            if os.path.isdir(folder):
                raise  # else it is gone: a state_dict() is restored through a folder that exists for a moment

    def _read_frozen(self, kept: checkpoint.Checkpoint) -> None:
        stored = {variable.name: variable for variable in kept.variables}
        for name, p in self._frozen.items():
            found = stored.get(self._prefix + name)
            if found is None:
                continue
            if found.shape != tuple(p.shape):
                raise Error(f"the checkpoint belongs to another model: '{name}' is {found.shape} there and {tuple(p.shape)} here")
            values = torch.empty(found.shape, dtype=getattr(torch, found.dtype), device="cpu")
            kept.read(found.name, out=values)
            p.detach().copy_(values)

    # The link to the GPU has to be created after all variables have been declared.
    def _link(self) -> None:
        if self._gpu is not None:
            self._gpu.close()
        self._gpu = Gpu(self._bundle, self._parameters, self._wire) if self._is_on_gpu else None

    @property
    def _is_on_gpu(self) -> bool:
        return is_on_gpu(next(iter(self._parameters.values())))

    def step(self, closure: Optional[Callable[[], Loss]] = None) -> Optional[Loss]:  # type: ignore[override,unused-ignore]
        """Pushes the gradients, ends the step, and pulls the parameters. Returns what `closure` returns.

        closure: a function that computes the loss and the gradients, as for torch.optim; it is called first.

        In the modes ssp and sync it waits for other workers. Ctrl-C ends the wait, and the next call completes the
        step. Parameters without a gradient are left alone. Raises JobFinished if the job has been ended.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._membership.check()
        self._settle()
        self._refuse_quorum()
        if any(p.requires_grad for p in self._frozen.values()):
            self._take_unfrozen()
        self._rates.follow(self.param_groups, self._bundle)
        for embedding, group in zip(self._embeddings, self._groups_of_tables):
            if self._rates.moves_table(self.param_groups[group]):
                embedding.push()
            else:
                embedding.drop()
        if self._local is not None:
            self._local.step()
            self._since_push += 1
            if self._since_push < self._push_every:
                return loss
            self._since_push = 0
            gradients: list[Optional[torch.Tensor]] = [*self._differences()]
        else:
            gradients = [p.grad for p in self._parameters.values()]
        given = [g for g in gradients if g is not None]
        has_begun_to_pull = False
        if self._gpu is not None and len(given) == len(gradients):
            self._gpu.push(given)
        elif self._pulls_in_push and len(given) == len(gradients):
            self._places.push([floats(g) for g in given], self._parameters.values())
            has_begun_to_pull = True
        else:  # those without a gradient are left alone, momentum and decay included
            if self._gpu is None:
                self._places.check(self._parameters.values())
            self._bundle.push([g if g is None else floats(g) for g in gradients])
        self._buffers.push()
        self._owed = self.worker.steps + 1
        self._settle()
        if has_begun_to_pull:
            self._places.pull_rest()
            self._buffers.pull()
        else:
            self.pull()
        return loss

    def pull(self) -> None:
        """Pulls the parameters, and the buffers as their policy says, into the model. step() does this at its end."""
        if self._gpu is not None:
            self._gpu.pull()
        else:
            self._places.pull(self._parameters.values())
        if self._local is not None:
            self._begun = _copies(self._parameters)
        self._buffers.pull()

    def assign(self, reset: bool = True) -> None:
        """Sets the job's variables to the model's current values, for example after loading weights into the model.

        What others have pushed since the last pull is lost. In mode sync this ends a step, and so waits for the other
        workers.

        reset: whether the optimizer's state begins anew; False: for values that were only limited, such as by clamp_().
        """
        self._bundle.assign([floats(p) for p in self._parameters.values()], reset=reset)
        self._buffers.assign()
        if self._is_sync:
            self.worker.step()
        self.pull()

    def state_dict(self) -> dict[str, Any]:
        """Returns the learning rate, other settings and the job's optimizer state of each parameter, for torch.save().

        The state consists of CPU tensors such as `momentum`, or `m` and `v`, and of `master`, the job's values of a
        parameter of half precision. They are a snapshot from one moment, taken
        while the workers continue. Pass the result to load_state_dict(), or as `restore` to the Optimizer of the next
        job. It does not contain the tables of Embedding modules: use ps_shm.checkpoint for these.
        """
        kept: dict[str, Any] = super().state_dict()
        halves = {name for name, p in self._parameters.items() if p.dtype != torch.float32}
        kept["state"], kept["ps_shm"] = _kept.moments(
            self.worker.job, self.worker.settings["optimizer"], self._numbers(), halves, self._prefix, self._group
        )
        of_torch = group_of_torch(self.worker.settings["optimizer"], self.worker.settings)
        kept["param_groups"] = [{**of_torch, **group} for group in kept["param_groups"]]
        return kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restarts the job with the result of state_dict() and the model's current values: load the model first.

        This is for the process that has created the job, before any other process has joined. The job is created again,
        so the attribute `worker` becomes a new Worker. Raises Error if others have joined, or if other objects of this
        process are in the job, unless the state is empty; then only the learning rate is taken. Use `restore` to begin such
        a job. Raises TypeError if this is not what state_dict() gave, and ValueError if it has another number of groups;
        the job goes on then.
        """
        self._require_groups(state_dict)
        if state_dict["state"] or self._membership.is_alone:
            if self._membership.shares_worker:
                raise self._one_of_several()
            if not self._membership.is_alone:
                raise Error("load_state_dict() is for the process that makes the job, before others come; "
                            "give Optimizer(..., create=True) what was kept as restore")
            rule = self.worker.settings["optimizer"]
            state_dict = _kept.completed(state_dict, self._all_numbers(), rule)
            self._check_groups(state_dict)
            with _kept.folder(state_dict, self._model, self._prefix, rule) as folder:
                self._settle()
                if self._gpu is not None:
                    self._gpu.close()
                self._membership.close(has_failed=True)
                self._enter(folder)
        self._take_groups(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients, as the optimizers of PyTorch do. Embeddings discard theirs.

        set_to_none: False: sets them to zero instead. step() then applies these zeros, with momentum and decay, while it
            leaves a parameter without a gradient alone.
        """
        self._settle()
        for embedding in self._embeddings:
            embedding.drop()
        if self._local is not None:
            self._local.zero_grad(set_to_none=set_to_none)
        super().zero_grad(set_to_none=set_to_none)

    @property
    def global_step(self) -> int:
        """The number of global steps that the job has done."""
        return self.worker.global_step

    @property
    def finished(self) -> bool:
        """Whether the job's last step is done, or the job has been ended."""
        return self.worker.finished

    def staleness(self) -> Staleness:
        """The staleness of this worker's pushes: the number of updates by others between its pulls and its pushes."""
        return self.worker.staleness()

    def _leave(self, has_failed: bool) -> None:
        if self._gpu is not None:
            self._gpu.close()
        super()._leave(has_failed)

    def add_param_group(self, param_group: Any) -> None:
        """Raises Error for any `param_group`: the groups are fixed from the start."""
        if self._is_made:
            raise Error("the groups of parameters are fixed from the start: Optimizer(model, params=[{...}, {...}])")
        super().add_param_group(param_group)

    # Ends a step that has pushed. If Ctrl-C interrupted its wait, others may still read the gradients.
    def _settle(self) -> None:
        if self.worker.steps < self._owed:
            self.worker.step()

    # How many differences a step with a quorum adds up is not known before it ends, so no factor makes their sum a mean.
    def _refuse_quorum(self) -> None:
        if self._local is not None and self._is_sync and self._is_sum and self.worker.live["quorum"] != 0:
            raise Error(
                f"job '{self.worker.job}' is in mode sync with a quorum, where the optimizer `add` would move the parameters by "
                "less or more than the mean of the differences that are in a step: make the job with optimizer='sgd' and lr=1, "
                "which applies their mean, or without a quorum"
            )

    def _differences(self) -> Iterator[torch.Tensor]:
        share = 1.0 / self._membership.workers if self._is_sync and self._is_sum else 1.0
        for name, p in self._parameters.items():
            difference = p.detach().float() - self._begun[name]
            yield difference * share if self._is_sum else -difference

    # The parameters' numbers in state_dict(), by name.
    # Those of the parameters that are variables.
    def _numbers(self) -> dict[str, int]:
        return {name: number for name, number in self._all_numbers().items() if name in self._parameters}

    # As an optimizer of PyTorch numbers them.
    def _all_numbers(self) -> dict[str, int]:
        return {name: i for i, (name, _) in enumerate(self._trainable())}

    # A state of PyTorch has settings that this job may not have.
    def _check_groups(self, state_dict: dict[str, Any]) -> None:
        said = self.worker.settings
        for kept in state_dict["param_groups"]:
            check_group(kept, said["optimizer"], said)

    def _trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [of_group for group in self._groups for of_group in group.parameters.items()]

    def _require_groups(self, state_dict: dict[str, Any]) -> None:
        if "state" not in state_dict or "param_groups" not in state_dict:
            raise TypeError(
                "load_state_dict(): pass what state_dict() of a ps_shm.torch.Optimizer or an optimizer of PyTorch gave"
            )
        kept, here = len(state_dict["param_groups"]), len(self.param_groups)
        if kept != here:
            raise ValueError(f"there are {here} groups of parameters, and the state has {kept}")

    # Takes over the values that schedulers store in the groups, and the learning rates, which a job of others has already.
    def _take_groups(self, state_dict: dict[str, Any], has_made_job: bool = True) -> None:
        self._require_groups(state_dict)
        fixed = {"params", "optimizer", "mode"}
        if not has_made_job:
            fixed.update(group_of_torch(self.worker.settings["optimizer"], self.worker.settings), ("momentum", "betas"))
        for group, kept in zip(self.param_groups, state_dict["param_groups"]):
            group.update({key: value for key, value in kept.items() if key not in fixed})
