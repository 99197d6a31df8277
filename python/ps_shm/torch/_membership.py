"""How a process comes into a job, and leaves it: as a worker, and as the job's ps where it is the first to come."""

import multiprocessing.util
import os
import sys
import weakref
from typing import Any, Literal, Optional, Union

from .. import Error, Server, View, Worker, _environment

_open: "weakref.WeakSet[Membership]" = weakref.WeakSet()


def _is_served(job: str) -> bool:
    try:
        return View(job).served
    except Error:  # there is none, or it is being made
        return False


def _try_serve(job: str, restore: Optional[str], settings: dict[str, Any]) -> Optional[Server]:
    if _is_served(job):
        return None
    try:
        return Server(job, restore=restore, **{"linger": 1.0, **settings})
    except Error:
        if _is_served(job):  # another process was quicker
            return None
        raise


class Membership:
    """A worker of a job and, with `create`, its ps if nobody else is.

    The process that has made the job waits at its end for the other workers to leave; Ctrl-C ends the job then.
    """

    def __init__(
        self,
        job: Union[str, Worker, None],
        create: bool,
        rank: Union[int, Literal["any"], None],
        wait: float,
        group: str,
        threads: int,
        settings: dict[str, Any],
        restore: Optional[str] = None,
    ) -> None:
        self._pid = os.getpid()
        self._server: Optional[Server] = None
        self._is_own = not isinstance(job, Worker)
        if isinstance(job, Worker):
            self.worker = job
        else:
            name = job or _environment.job()
            if create and name:
                self._server = _try_serve(name, restore, {"threads": threads, "group": group or None, **settings})
            try:
                self.worker = Worker(name, rank=rank, wait=wait, group=group, threads=threads)
            except BaseException:
                if self._server is not None:
                    self._server.close()
                raise
        _open.add(self)
        multiprocessing.util.Finalize(None, _close_all, exitpriority=10)  # a forked process of multiprocessing has no atexit
        try:
            self.worker.check_settings({k: v for k, v in settings.items() if k not in ("workers", "linger")})
        except BaseException:
            self.close(has_failed=True)
            raise

    @property
    def is_alone(self) -> bool:
        """Whether this process has made the job, and no other one has come so far."""
        return self._server is not None and len(View(self._server.job).workers()) == 1

    def close(self, has_failed: bool = False) -> None:
        """Leaves; waits for the others where this process has made the job. May be called again.

        has_failed: an error is to be told, so those who have not come yet are not waited for.
        """
        if self not in _open or self._pid != os.getpid():
            return
        _open.discard(self)
        if self._is_own:
            self.worker.leave()
        if self._server is None:
            return
        try:
            if has_failed and all(w.state != "alive" for w in View(self._server.job).workers()):
                return
            if not self._server.wait(2.0):
                print(f"waiting for the other workers of job {self._server.job}, which this process serves", file=sys.stderr)
                self._server.wait()
        finally:
            self._server.close()


def _close_all() -> None:
    for one in list(_open):
        one.close()
