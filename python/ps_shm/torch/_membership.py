"""Joins and leaves a job: as a worker, and also as its server (ps) if this process is the first one."""

import atexit
import gc
import logging
import multiprocessing.util
import os
import time
import warnings
import weakref
from types import TracebackType
from typing import Any, Callable, Literal, Optional, Union

import torch

from .. import Error, JobFinished, Server, View, Worker, WorkerInfo, _core, _environment
from .._closing import Closing
from .._job import served
from ._settings import default_rule

_log = logging.getLogger("ps_shm")
_MOST_THREADS = 8
Naming = Callable[[dict[str, Any], str], dict[str, Any]]
_open: "weakref.WeakValueDictionary[int, Membership]" = weakref.WeakValueDictionary()  # by id()
_serving: "set[Membership]" = set()  # kept until they are closed: the job goes on for others where the program has forgotten it


def _is_served(job: str) -> bool:
    try:
        return View(job).served
    except Error:  # there is no such job, or it is being created
        return False


def _is_used(job: str) -> bool:
    try:
        return any(w.state == "alive" for w in View(job).workers())
    except Error:
        return False


def _try_serve(job: str, restore: Optional[str], settings: dict[str, Any]) -> Optional[Server]:
    if _is_served(job):
        return None
    try:
        return Server(job, restore=restore, **{"linger": 1.0, **settings})
    except Error:
        if _is_served(job):  # another process was faster
            return None
        raise


def _share_of_cores(workers: int) -> int:
    # A link to a GPU brings several times what one thread applies.
    return max(1, min(len(os.sched_getaffinity(0)) // workers, _MOST_THREADS))


class Membership:
    """A worker of a job and, with `create`, also its server if there is no other one.

    The process that has created the job waits at its end for the other workers to leave. Ctrl-C during this wait ends
    the job.

    The memberships of a process in one job are told apart by their `prefix`. Those with different prefixes share a
    worker, unless they ask for ranks, and the last one to close ends the job. One with `create` and the prefix of an
    earlier one replaces all of them, because a program (such as a cell of a notebook) then begins anew. So does one with
    another prefix if the program has forgotten all of them and nobody else is in the job.

    A job that is created has the `defaults` for what is not in `settings`. One that exists may have others. `for_rule`
    names the settings as a job of the given update rule does.
    """

    def __init__(
        self,
        job: Union[str, Worker, None],
        create: bool,
        rank: Union[int, Literal["any"], None],
        wait: Optional[float],
        group: str,
        threads: int,
        settings: dict[str, Any],
        restore: Optional[str] = None,
        prefix: str = "",
        defaults: Optional[dict[str, Any]] = None,
        for_rule: Naming = lambda settings, rule: settings,
    ) -> None:
        self._pid = os.getpid()
        self._serve(None)
        self._is_own = not isinstance(job, Worker)
        self._prefix, self._creates = prefix, create
        self._is_replaced = self._is_let_go = False
        self._owner: Optional["weakref.ref[Joined]"] = None
        self._view: Optional[View] = None
        self._ranks: list[int] = []  # of the living workers
        self._to_come = 0  # workers without which no step can end
        self._looked = -1.0
        if isinstance(job, Worker):
            self.worker = job
        else:
            name = job or _environment.job()
            launched = _environment.launched_job()
            if create and launched not in (None, name, *served()):
                warnings.warn(
                    f"job '{name}' is not job '{launched}' of launch_shm, which waits for workers of its own job: leave "
                    "the name out, or take that of PS_SHM_JOB"
                )
            if create and name:
                _replace(name, prefix)
            shared = next((m.worker for m in _here(name) if m._prefix != prefix), None) if rank is None and name else None
            if create and name and shared is None:
                allowed = threads or _share_of_cores(int(settings.get("workers") or _environment.world_size() or 1))
                own = {"threads": allowed, "group": group or None, **(defaults or {})}
                given = {key: value for key, value in settings.items() if value is not None}
                self._serve(_try_serve(name, restore, for_rule({**own, **given}, default_rule(settings))))
            try:
                self.worker = shared or Worker(name, rank=rank, wait=wait, group=group, threads=threads)
            except BaseException:
                if self._server is not None:
                    self._server.close()
                    self._serve(None)
                raise
        self.job = self.worker.job
        _open[id(self)] = self
        multiprocessing.util.Finalize(None, _close_all, exitpriority=10)  # forked by multiprocessing: no atexit
        try:
            named = for_rule(settings, self.worker.settings["optimizer"])
            self.worker.check_settings({k: v for k, v in named.items() if k not in ("workers", "linger")})
        except BaseException:
            self.close(has_failed=True)
            raise

    @property
    def is_alone(self) -> bool:
        """Whether this process has created the job and no other worker has joined so far."""
        return self._server is not None and len(View(self._server.job).workers()) == 1

    @property
    def leads(self) -> bool:
        """Whether no living worker has a lower rank."""
        return self.worker.is_chief or all(rank >= self.worker.rank for rank in self._look())

    @property
    def workers(self) -> int:
        """The number of living workers. In mode sync, those for which the first step waits count from the start."""
        return max(len(self._look()) + self._to_come, 1)

    # Looks for the others ten times a second at most.
    def _look(self) -> list[int]:
        now = time.monotonic()
        if now - self._looked > 0.1:
            if self._view is None:
                self._view = View(self.job)
            joined = self._view.workers()
            self._ranks = [w.rank for w in joined if w.state == "alive"]
            if self.worker.settings["mode"] == "sync":
                self._to_come = max(self.worker.settings["workers"] - len(joined), 0)
            self._looked = now
        return self._ranks

    def _serve(self, server: Optional[Server]) -> None:
        self._server = server
        (_serving.add if server is not None else _serving.discard)(self)

    @property
    def _is_open(self) -> bool:
        return id(self) in _open and self._pid == os.getpid()

    @property
    def is_serving(self) -> bool:
        """Whether this object has created the job."""
        return self._server is not None

    @property
    def shares_worker(self) -> bool:
        """Whether another object of this process uses the same worker."""
        return any(m.worker is self.worker for m in _here(self.job, self))

    def hold_for(self, owner: "Joined") -> None:
        """Takes part in the job until the owner closes this, or is forgotten."""
        self._owner = weakref.ref(owner)
        weakref.finalize(owner, self.let_go).atexit = False

    def refuse_shared(self, found: dict[str, torch.nn.Parameter]) -> None:
        """Raises Error if another object of this process trains one of these parameters as another variable.

        Each of the two would pull its own variable into the parameter, and so undo the steps of the other.
        """
        if self._find_shared(found) is None:
            return
        gc.collect()  # an object that was dropped may be in a cycle, into which a scheduler puts it
        shared = self._find_shared(found)
        if shared is not None:
            name, other, theirs = shared
            raise Error(
                f"parameter '{name}' is trained by another object of this process, too, as variable '{theirs}' of job "
                f"'{other}', and each step() would undo those of the other one: give one object a model that contains both, "
                "such as torch.nn.ModuleList([first, second]), leave the parameter out of one by params=, or close() the "
                "other object first"
            )

    # The parameter's name here, and the job and the variable of the other object.
    def _find_shared(self, found: dict[str, torch.nn.Parameter]) -> Optional[tuple[str, str, str]]:
        names = {p.data_ptr(): name for name, p in found.items()}  # those of one object share no memory
        for one in _all():
            owner = one._owner() if one._owner is not None and one._is_open else None
            for theirs, p in owner._parameters.items() if owner is not None else ():
                name = names.get(p.data_ptr())
                if name is not None and (one.job, one._prefix + theirs) != (self.job, self._prefix + name):
                    return name, one.job, one._prefix + theirs
        return None

    def let_go(self) -> None:
        """Leaves the job for an owner that was forgotten without close(). What this process serves goes on until its end."""
        self._is_let_go = True
        is_kept = any(m.worker is self.worker and m._is_own for m in _serving.copy())
        if self._is_open and is_kept and not self.shares_worker:
            self.worker.leave()

    def check(self) -> None:
        """Raises JobFinished if the job was ended before its last step: nobody would see what is pushed."""
        if self._is_replaced:
            raise JobFinished(
                f"job '{self.job}' was made again by a later object of this process, which has closed this one; "
                "two models in one job need different prefixes: Optimizer(..., prefix='generator.')"
            )
        if self.worker.ended:
            raise JobFinished(
                f"job '{self.job}' has ended, because the process that served it has closed it: a step would change "
                "nothing that anybody sees; leave the job, or make it again"
            )

    def close(self, has_failed: bool = False) -> None:
        """Leaves the job. If this process has created it, waits for the other workers to leave. May be called again.

        has_failed: close() is called because of an error. The error is to be reported soon, so if no other worker is in
            the job now, close() does not wait for any to come.
        """
        if not self._is_open:
            return
        _open.pop(id(self), None)
        mates = _here(self.job)
        sharing = next((m for m in mates if m.worker is self.worker), None)
        if sharing is not None:
            sharing._is_own = sharing._is_own or self._is_own
        elif self._is_own:
            self.worker.leave()
        if self._server is None:
            return
        server = self._server
        if mates:  # the job goes on for them
            self._serve(None)
            mates[0]._serve(server)
            return
        try:
            if not has_failed or self._others():
                self._wait()
        finally:
            self._serve(None)
            server.close()

    def abandon(self) -> None:
        """Ends the job without waiting for anybody, unless another process or object serves it: after Ctrl-C."""
        _open.pop(id(self), None)
        server = self._server
        if server is not None and self._pid == os.getpid() and not _here(self.job):
            self._serve(None)
            server.close()

    def tell(self, error: BaseException) -> None:
        """Reports an error now if close() is going to wait for others, who may go on for hours."""
        if isinstance(error, Exception) and self._has_others():
            _log.error("job %s, which this process serves, goes on without it after an error", self.job, exc_info=error)

    def _has_others(self) -> bool:
        return self._is_open and self._server is not None and not _here(self.job, self) and self._others()

    def _alive(self) -> list[WorkerInfo]:
        return [w for w in View(self.job).workers() if w.state == "alive"]

    def _others(self) -> bool:
        return not all(_core.is_own(self.job, w) for w in self._alive())

    # Waits for workers of other processes. A worker of this one cannot leave meanwhile.
    def _wait(self) -> None:
        assert self._server is not None
        is_told, since = False, time.monotonic()
        while True:
            alive = self._alive()
            if alive and all(_core.is_own(self.job, w) for w in alive):
                return
            if self._server.wait(0.2):
                return
            if not is_told and time.monotonic() - since > 2.0:
                _log.warning("waiting for the other workers of job %s, which this process serves", self.job)
                is_told = True


class Joined(Closing):
    """What has a membership."""

    _membership: Membership
    _parameters: dict[str, torch.nn.Parameter]  # that are trained, by name

    def _hold(self, membership: Membership) -> None:
        self._membership = membership
        membership.hold_for(self)

    def close(self) -> None:
        """Leaves the job. The process that has created the job waits for the other workers to leave.

        This also happens when the program ends, and at the end of a `with` block; an error in the block is printed first
        if there is a wait.
        """
        self._close(None)

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._close(error)

    def _close(self, error: Optional[BaseException]) -> None:
        try:
            if error is not None:
                self._membership.tell(error)
            self._leave(has_failed=error is not None)
        except KeyboardInterrupt:  # also before and after the wait, where nothing else would end the job
            self._membership.abandon()
            raise

    def __reduce__(self) -> Any:
        raise TypeError(
            f"objects of {type(self).__name__} are of one process: make one in the other, with the job's name; to keep its "
            "state, use state_dict() of the model and the optimizer, or ps_shm.checkpoint"
        )

    def _leave(self, has_failed: bool) -> None:
        self._membership.close(has_failed)


# All that are open, also in the parent of a forked child. Other threads may open more meanwhile.
def _all() -> list[Membership]:
    return [m for m in (ref() for ref in _open.valuerefs()) if m is not None]


# Those of this process whose owners are there.
def _here(job: Optional[str], but: Optional[Membership] = None) -> list[Membership]:
    return [m for m in _all() if m.job == job and m._is_open and not m._is_let_go and m is not but]


def _replace(job: str, prefix: str) -> None:
    earlier = [m for m in _all() if m.job == job and m._is_open]
    is_again = any(m._creates and m._prefix == prefix for m in earlier)
    if not is_again and (not earlier or _here(job) or _is_used(job)):
        return
    servers = [m._server for m in earlier if m._server is not None]
    for one in earlier:
        one._is_replaced = True
        one._serve(None)
    for one in earlier:
        one.close()
    for server in servers:
        server.close()


def _close_all() -> None:
    _core.end_waits()
    for one in _all():
        one.close()


atexit.register(_close_all)
