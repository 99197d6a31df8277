"""Context managers of what has a close()."""

from types import TracebackType
from typing import Optional, TypeVar

Own = TypeVar("Own", bound="Closing")


class Closing:
    """Is closed at the end of a `with` block, however that ends."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()
