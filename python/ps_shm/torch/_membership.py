"""Joins and leaves a job: as a worker, and also as its server (ps) if this process is the first one."""

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
    except Error:  # there is no such job, or it is being created
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


class Membership:
    """A worker of a job and, with `create`, also its server if there is no other one.

    The process that has created the job waits at its end for the other workers to leave. Ctrl-C during this wait ends
    the job.
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
        multiprocessing.util.Finalize(None, _close_all, exitpriority=10)  # forked by multiprocessing: no atexit
        try:
            self.worker.check_settings({k: v for k, v in settings.items() if k not in ("workers", "linger")})
        except BaseException:
            self.close(has_failed=True)
            raise

    @property
    def is_alone(self) -> bool:
        """Whether this process has created the job and no other worker has joined so far."""
        return self._server is not None and len(View(self._server.job).workers()) == 1

    def close(self, has_failed: bool = False) -> None:
        """Leaves the job. If this process has created it, waits for the other workers to leave. May be called again.

        has_failed: close() is called because of an error. The error is to be reported soon, so if no other worker is in
            the job now, close() does not wait for any to come.
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
