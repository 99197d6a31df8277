"""Registers a publication's memory with CUDA, so that a GPU copies to and from it directly."""

import logging
from typing import Any, Iterable, Optional, Union

import torch

from .. import Error, Generation
from .._publication import Publisher, Subscriber

_log = logging.getLogger("ps_shm")
_REGION = 1 << 30  # some drivers refuse to register more at once
_PORTABLE, _READ_ONLY = 1, 8  # flags of cudaHostRegister


class Registration:
    """The rows of a publication that this process has registered.

    Where CUDA refuses, copies take the slower way through memory of the driver, and a warning says so once.
    """

    def __init__(self, end: Union[Publisher, Subscriber]) -> None:
        self._end = end
        self._address, self._row_bytes, _ = end.memory
        self._flags = (_PORTABLE | _READ_ONLY, _PORTABLE) if isinstance(end, Subscriber) else (_PORTABLE,)
        self._rows: dict[int, list[int]] = {}  # the addresses of each row's regions; none: it was refused
        self._has_warned = False

    def register(self, tensors: Iterable[torch.Tensor], held: Optional[Generation] = None) -> None:
        """Registers the rows of which the tensors make up at least a half.

        A registration gives a row all of its memory, which a few changed tensors are not worth. A subscriber says which
        generation it holds, whose rows the publisher may not trim from then on.
        """
        used: dict[int, int] = {}
        for tensor in tensors:
            row = (tensor.data_ptr() - self._address) // self._row_bytes
            used[row] = used.get(row, 0) + tensor.numel() * tensor.element_size()
        for row, size in used.items():
            if row not in self._rows and 2 * size >= self._row_bytes:
                self._rows[row] = []
                if held is None or self._try_pin(held, row):
                    self._rows[row] = self._register_row(self._address + row * self._row_bytes)

    def _try_pin(self, held: Generation, row: int) -> bool:
        assert isinstance(self._end, Subscriber)
        try:
            self._end.pin(held, row)
        except Error:  # it is none of the rows that can be pinned
            return False
        return True

    def _register_row(self, begin: int) -> list[int]:
        error = 0
        for flags in self._flags:
            done: list[int] = []
            for address in range(begin, begin + self._row_bytes, _REGION):
                size = min(_REGION, begin + self._row_bytes - address)
                error = int(_cudart().cudaHostRegister(address, size, flags))
                if error != 0:
                    break
                done.append(address)
            else:
                return done
            _unregister(done)
        if not self._has_warned:
            _log.warning("CUDA does not register shared memory (cudaHostRegister: error %d): copies take longer", error)
            self._has_warned = True
        return []

    def close(self) -> None:
        """Ends all registrations. No copy may be under way."""
        for regions in self._rows.values():
            _unregister(regions)
        self._rows = {}


def _cudart() -> Any:
    return torch.cuda.cudart()


def _unregister(regions: list[int]) -> None:
    for address in regions:
        _cudart().cudaHostUnregister(address)
