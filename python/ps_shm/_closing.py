"""Closing objects: at the end of a `with` block, and at the end of the program."""

import atexit
import traceback
import weakref
from types import TracebackType
from typing import Any, Optional, TypeVar

from . import _core

Own = TypeVar("Own", bound="Closing")


class Closing:
    """Closes itself at the end of a `with` block, also if the block raises."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


_open: "weakref.WeakSet[Any]" = weakref.WeakSet()


def close_at_exit(one: Any) -> None:
    """Calls leave() or close() of the object at the end of the program, if it exists then.

    A thread that still runs then may keep it alive, so its destructor may never be called.
    """
    _open.add(one)


def _close_all() -> None:
    _core.end_waits()
    for one in sorted(list(_open), key=lambda one: isinstance(one, _core.Server)):  # workers leave before their server ends
        try:
            one.leave() if isinstance(one, _core.Worker) else one.close()
        except Exception:
            traceback.print_exc()


atexit.register(_close_all)
