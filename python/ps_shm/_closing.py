"""Closing objects: at the end of a `with` block, and at the end of the program."""

import atexit
import functools
import traceback
import weakref
from types import TracebackType
from typing import Any, Optional, TypeVar

from . import _core

Own = TypeVar("Own", bound="Closing")
Made = TypeVar("Made")


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


def closed_at_exit(cls: type[Made]) -> type[Made]:
    """Makes the class's objects call leave() or close() at the end of the program, if they exist then.

    A thread that still runs then may keep them alive, so their destructors may never be called.
    """
    begin: Any = getattr(cls, "__init__")

    @functools.wraps(begin)
    def __init__(self: Any, *arguments: Any, **settings: Any) -> None:
        begin(self, *arguments, **settings)
        _open.add(self)

    setattr(cls, "__init__", __init__)
    return cls


def _close_all() -> None:
    _core.end_waits()
    for one in sorted(list(_open), key=lambda one: isinstance(one, _core.Server)):  # workers leave before their server ends
        try:
            one.leave() if isinstance(one, _core.Worker) else one.close()
        except Exception:
            traceback.print_exc()


atexit.register(_close_all)
