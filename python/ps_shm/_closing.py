"""A base class that makes objects with a close() method context managers."""

from types import TracebackType
from typing import Optional, TypeVar

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
