"""Registers a publication's memory with CUDA, so that a GPU copies to and from it directly."""

import ctypes
import functools
import logging
import mmap
from typing import Any, Iterable, Optional, Union

import torch

from .. import Error, Generation
from .._publication import Publisher, Subscriber

_log = logging.getLogger("ps_shm")
_REGION = 1 << 30  # some drivers refuse to register more at once
_PORTABLE, _READ_ONLY = 1, 8  # flags of cuMemHostRegister


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
        """Registers a row for reading and writing, or as a subscriber for reading only, if CUDA can do that.

        Most drivers cannot on x86, and then refuse memory that the CPU may not write, so a subscriber gets the right to
        write for the moment of the call.
        """
        error = self._try_register(begin, self._flags[0])
        if error != 0 and len(self._flags) > 1:
            _protect(begin, self._row_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
            try:
                error = self._try_register(begin, self._flags[1])
            finally:
                _protect(begin, self._row_bytes, mmap.PROT_READ)
        if error == 0:
            return self._regions(begin)
        if not self._has_warned:
            _log.warning("CUDA does not register shared memory (cuMemHostRegister: error %d): copies take longer", error)
            self._has_warned = True
        return []

    def _regions(self, begin: int) -> list[int]:
        return list(range(begin, begin + self._row_bytes, _REGION))

    def _try_register(self, begin: int, flags: int) -> int:
        done: list[int] = []
        for address in self._regions(begin):
            size = min(_REGION, begin + self._row_bytes - address)
            error = int(_driver().cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(size), flags))
            if error != 0:
                _unregister(done)
                return error
            done.append(address)
        return 0

    def close(self) -> None:
        """Ends all registrations. No copy may be under way."""
        for regions in self._rows.values():
            _unregister(regions)
        self._rows = {}


@functools.cache
def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _driver() -> Any:
    """The driver's functions, with PyTorch's context current in this thread.

    The runtime's functions would leave a refusal behind as the thread's last error, which PyTorch's next kernel reports.
    """
    torch.cuda.current_stream().query()  # the first call of a thread makes its context current
    return _library()


def _protect(begin: int, size: int, rights: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(size), rights) != 0:
        raise OSError(ctypes.get_errno(), "mprotect of a publication's memory")


def _unregister(regions: list[int]) -> None:
    for address in regions:
        _driver().cuMemHostUnregister(ctypes.c_void_p(address))
