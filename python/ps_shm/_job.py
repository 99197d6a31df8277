"""The two parts of a job: its ps and its workers."""

import getpass
import itertools
import os
from types import TracebackType
from typing import Any, Literal, Optional, Union

from . import _core, _environment
from ._closing import Closing

_numbers = itertools.count()


def _new_name() -> str:
    user = "".join(c if c.isalnum() and c.isascii() else "-" for c in getpass.getuser()).strip("-")[:32] or "user"
    number = next(_numbers)
    return f"{user}-{os.getpid()}" + (f"-{number}" if number else "")


class Server(_core.Server, Closing):
    """The ps of a job: creates it, watches its workers from a thread of this process, and removes it at the end.

    Without a name the job gets one of its own, or that of PS_JOB; processes that are started meanwhile find it in PS_JOB.
    Settings are those of docs/options.md with _ for -: workers, mode, optimizer, lr, momentum, steps, layout, ...;
    `workers` is WORLD_SIZE where that is set, else 1. A job that has lost its ps is taken over, if its settings are these.
    restore: the folder of a checkpoint that the job begins with, such as checkpoint.latest("runs").folder.
    Raises Error where the job has a ps already, and for a value that a setting cannot have; TypeError for a setting that
    there is not.
    """

    def __init__(
        self, job: Optional[str] = None, *, adopt: bool = False, restore: Optional[str] = None, **settings: Any
    ) -> None:
        name = job or _environment.job() or _new_name()
        if settings.get("workers") is None:
            settings["workers"] = _environment.world_size() or 1
        super().__init__(name, adopt, restore or "", settings)
        self._pid = os.getpid()
        self._before = os.environ.get("PS_JOB")
        os.environ["PS_JOB"] = name

    def close(self) -> None:
        """Ends the job: workers are told to leave, and waited for up to 5 s."""
        if self._pid != os.getpid():  # a forked child's PS_JOB is its parent's job
            return
        try:
            super().close()
        finally:
            if os.environ.get("PS_JOB") == self.job:
                if self._before is None:
                    del os.environ["PS_JOB"]
                else:
                    os.environ["PS_JOB"] = self._before


class Worker(_core.Worker):
    """A rank of a job: pulls and pushes variables, and steps.

    Waits for the job up to `wait` seconds. `job`: its name; None: that of PS_JOB. `rank`: None: what launch_shm, torchrun,
    MPI or SLURM says in the environment, else a free one; "any": a free one. `threads`: that share large pulls and pushes;
    the job's `threads` is the most. `group`: whose users' job it may be.
    Threads may use one Worker; they take turns. A forked child has nothing of it, and makes its own.
    Raises Timeout (no such job), JobFinished (its last step is done), Error (the rank is taken).
    """

    def __init__(
        self,
        job: Optional[str] = None,
        *,
        rank: Union[int, Literal["any"], None] = None,
        threads: int = 1,
        wait: float = 60.0,
        group: str = "",
    ) -> None:
        name = job or _environment.job()
        if not name:
            raise _core.Error("which job? Name it, or set PS_JOB, as launch_shm and ps_shm.Server do")
        number = _environment.rank() if rank is None else None if rank == "any" else rank
        try:
            super().__init__(name, group, number, threads, wait)
        except _core.Timeout as error:
            raise _core.Timeout(
                f"{error}\nA job is made by `launch_shm --workers 4 -- python {_script()}`, by ps_shm.Server('{name}'), "
                "or by ps_shm.torch.Optimizer(..., create=True)"
            ) from None

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
