"""The two roles in a job: the server (ps) and the workers."""

import itertools
import os
import pwd
from types import TracebackType
from typing import Any, Literal, Optional, Union

from . import _core, _environment
from ._closing import Closing, closed_at_exit
from ._types import Setting

_numbers = itertools.count()
_served: list[str] = []  # the jobs of the open Server objects, the newest one last
_outer_job: Optional[str] = None  # the value of PS_SHM_JOB before the first of them


def served() -> list[str]:
    """The jobs of this process's open Server objects, the last of which is in PS_SHM_JOB."""
    return _served


def _new_name() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in a container that runs as a user id of its own
        user = "job"
    user = "".join(c if c.isalnum() and c.isascii() else "-" for c in user).strip("-")[:32] or "user"
    number = next(_numbers)
    return f"{user}-{os.getpid()}" + (f"-{number}" if number else "")


@closed_at_exit
class Server(_core.Server, Closing):
    """The server (ps) of a job: creates the job, watches its workers, and removes the job at the end.

    It runs on a thread of this process and needs hardly any processor time, because the workers apply their pushes
    themselves. A job that has lost its server while workers are alive is taken over, provided that its settings are
    the given ones.

        with ps_shm.Server("job", workers=2, mode="async", optimizer="momentum", lr=0.1) as server:
            ...                              # start the workers, or be one
            server.set(lr=0.05)              # change a setting while the job runs
            server.wait()                    # until the last step is done or the workers have left

    Args:
        job: the job's name. None: the value of PS_SHM_JOB, unless an open Server has set it, otherwise a new unique name
            (see the attribute `job`). The name is also stored in this process's PS_SHM_JOB, until close(), so that child
            processes started from now on find the job.
        adopt: take over a job of this name, also one of which no process is alive, instead of creating one. Settings that
            are not given are then the job's.
        restore: the folder of a checkpoint with which the job begins, such as checkpoint.latest("runs").folder.
        settings: the options of `ps_shm` in docs/options.md, with _ instead of -: workers, mode, optimizer, lr,
            momentum, steps, layout, ... `workers` defaults to LOCAL_WORLD_SIZE or a similar variable of the launcher
            if one is set, otherwise to 1.

    Raises:
        Error: the job already has a server, a setting has an invalid value, a job that is taken over has another value of a
            setting, or there is no job to adopt.
        TypeError: there is no setting of that name.
    """

    def __init__(
        self, job: Optional[str] = None, *, adopt: bool = False, restore: Union[str, "os.PathLike[str]", None] = None, **settings: Setting
    ) -> None:
        """Creates the job, or takes it over. The arguments are described with the class."""
        name = job or (None if _served else _environment.job()) or _new_name()
        if settings.get("workers") is None and not adopt:
            settings["workers"] = _environment.world_size() or 1
        super().__init__(name, adopt, os.fspath(restore or ""), settings)
        self._pid = os.getpid()
        global _outer_job
        if not _served:
            _outer_job = os.environ.get("PS_SHM_JOB")
        _served.append(name)
        os.environ["PS_SHM_JOB"] = name

    def close(self) -> None:
        """Ends the job and, unless keep_segments() was called, removes it from shared memory.

        Workers are told to leave, and close() waits for those of other processes for up to 5 s. Calling close() again
        does nothing. In a forked child it has no effect.
        """
        if self._pid != os.getpid():  # in a forked child, PS_SHM_JOB names the parent's job
            return
        try:
            super().close()
        finally:
            if self.job in _served:
                _served.remove(self.job)
            if os.environ.get("PS_SHM_JOB") == self.job:
                before = _served[-1] if _served else _outer_job
                if before is None:
                    del os.environ["PS_SHM_JOB"]
                else:
                    os.environ["PS_SHM_JOB"] = before


@closed_at_exit
class Worker(_core.Worker):
    """A worker of a job: declares variables, pulls and pushes them, and counts steps.

    The constructor waits until the job exists. Each worker has a rank, from 0; rank 0 is the chief.

        with ps_shm.Worker("job") as worker:
            w = worker.variable("w", numpy.zeros((100, 10), "float32"))
            values = w.pull()                                # a new array of shape (100, 10)
            while not worker.finished:                       # until the job's last step is done
                w.pull(values)                               # copies into the same array
                w.push(gradient_at(values))                  # gradient_at: a function of your own
                worker.step()

    variable() and variables() declare arrays: the first worker that declares a name creates it with its initial values,
    and the others get those. A push is applied exactly once by the job's optimizer. In the modes async and ssp it is
    applied at once; in mode sync, step() applies the mean of the workers' gradients. step() waits for other workers in
    the modes ssp and sync. Ctrl-C ends a wait, and the job continues.

    Threads may share a Worker; their calls are serialised. A forked child cannot use its parent's Worker and creates
    its own.

    Args:
        job: the job's name. None: the value of PS_SHM_JOB, which launch_shm and ps_shm.Server set.
        rank: this worker's rank. None: the rank that launch_shm, torchrun, MPI or SLURM sets in the environment,
            otherwise a free one. "any": a free rank.
        threads: number of threads that share large pulls and pushes, at most the job's setting `threads`, for which 0
            stands.
        wait: how long to wait for the job to exist, in seconds.
        group: the Unix group with which the job is shared (its setting `group`). Empty: only this user's jobs are
            accepted.

    Raises:
        Timeout: the job did not appear within `wait` seconds.
        JobFinished: the last step of the job is done.
        Error: the rank is taken, or no job was named.
    """

    def __init__(
        self,
        job: Optional[str] = None,
        *,
        rank: Union[int, Literal["any"], None] = None,
        threads: int = 1,
        wait: Optional[float] = 60.0,
        group: str = "",
    ) -> None:
        """Joins the job. The arguments are described with the class."""
        name = job or _environment.job()
        if not name:
            raise _core.Error("which job? Name it, or set PS_SHM_JOB, as launch_shm and ps_shm.Server do")
        launched = _environment.rank() if rank is None else None
        number = launched[1] if launched else None if rank == "any" else rank
        try:
            super().__init__(name, group, number, threads, wait)
        except _core.Timeout as error:
            raise _core.Timeout(
                f"{error}\nA job is made by `launch_shm --workers 4 -- python {_script()}`, by ps_shm.Server('{name}'), "
                "or by ps_shm.torch.Optimizer(..., create=True)"
            ) from None
        except _core.Error as error:
            what = str(error)
            if launched is None or not what.startswith("rank "):
                raise
            what = what.replace(" is ", ", which is ", 1)  # the user may not know of the variable
            if error.code == _core.ErrorCode.RANK_TAKEN:
                what = f"{what.partition(';')[0]}; pass rank='any' for a free one, or unset {launched[0]}"
            named = _core.Error(f"{launched[0]}={launched[1]} asks for {what}")
            named.code = error.code
            raise named from None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.leave()

    def __reduce__(self) -> Any:
        raise TypeError("a Worker is of one process: make one in the other, with the job's name")


def _script() -> str:
    import sys

    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "train.py"
