"""In which order the kernel releases open files: the order of their last closes, as one inotify object reports them."""
import ctypes
import os
import select
import struct

_CLOSES = 0x8 | 0x10  # IN_CLOSE_WRITE, IN_CLOSE_NOWRITE
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Closings:
    """Watches these files from its construction on."""

    def __init__(self, *paths):
        self.descriptor = _libc.inotify_init1(os.O_CLOEXEC)
        self.names = {}
        for path in paths:
            watch = _libc.inotify_add_watch(self.descriptor, os.fsencode(path), _CLOSES)
            if watch < 0:
                raise OSError(ctypes.get_errno(), f"cannot watch {path}")
            self.names[watch] = os.fspath(path)

    def next(self, count, timeout):
        """The paths of the next `count` closes; fewer if the others do not come within the time."""
        closed = []
        while len(closed) < count and select.select([self.descriptor], [], [], timeout)[0]:
            events = os.read(self.descriptor, 4096)
            while events:
                watch, _, _, length = _EVENT.unpack_from(events)
                closed.append(self.names[watch])
                events = events[_EVENT.size + length:]
        return closed

    def close(self):
        os.close(self.descriptor)
