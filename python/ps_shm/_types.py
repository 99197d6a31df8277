"""What calls of the package take, for type checkers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

if TYPE_CHECKING:
    import numpy.typing
    import torch
    from typing_extensions import Buffer  # of type checkers; Python has it since 3.12


class SupportsDLPack(Protocol):
    """An array of another library, such as a tensor of PyTorch."""

    def __dlpack__(self, *arguments: Any, **settings: Any) -> Any:
        """Exports the array."""


Array = Union["numpy.typing.NDArray[Any]", "Buffer", SupportsDLPack]
DType = Union[str, "numpy.typing.DTypeLike", "torch.dtype"]  # by name, or as NumPy or PyTorch have it
Setting = Union[str, float, Mapping[str, float], None]  # of a job; numbers and flags are floats to type checkers
