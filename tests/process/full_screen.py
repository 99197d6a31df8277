"""Runs a full-screen terminal program and reads its screen; the package pyte emulates the terminal."""
import codecs
import fcntl
import os
import struct
import sys
import termios
import time

try:
    import pyte
except ImportError:  # installed for the Python of the tests only
    python = os.environ.get("PS_SHM_VENV_PYTHON", "")
    if os.path.lexists(python) and not os.access(python, os.X_OK):
        print(f"skipped: this user may not start {python}")
        sys.exit(77)
    if not os.path.exists(python) or os.path.abspath(sys.executable) == os.path.abspath(python):
        raise AssertionError(f"PS_SHM_VENV_PYTHON is {python!r}, no Python with the packages of tests/requirements.txt: "
                             "tools/test makes it") from None
    os.execv(python, [python, *sys.argv])

import support
from terminal import Terminal

KEYS = {"up": "\x1b[A", "down": "\x1b[B", "page down": "\x1b[6~", "enter": "\r", "escape": "\x1b", "tab": "\t",
        "end": "\x1b[4~", "backspace": "\x7f"}


class FullScreen(Terminal):
    def __init__(self, columns, rows, program, *arguments, env=None):
        self.rows = rows
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.Stream(self.screen)
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        super().__init__(columns, program, *arguments, env={"TERM": "linux", "LC_ALL": "C.UTF-8", **(env or {})})

    def resize(self, columns, rows=None):
        self.rows = rows or self.rows
        self.screen.resize(self.rows, columns)
        fcntl.ioctl(self.here, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, columns, 0, 0))

    def read(self):
        """Reads what the program has printed. Returns False once it can print nothing more."""
        import select
        if not select.select([self.here], [], [], 0.1)[0]:
            return True
        try:
            text = self.decoder.decode(os.read(self.here, 65536))
        except OSError:  # the other end is closed
            return False
        self.shown += text
        self.stream.feed(text)
        return True

    def lines(self):
        """The lines on the screen."""
        return [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.lines())

    def press(self, *keys):
        """Each argument is the name of a key, or text to type."""
        for key in keys:
            os.write(self.here, KEYS.get(key, key).encode())

    def wait_for(self, fact, what):
        """Waits until fact(the text on the screen) is true; returns that text."""
        end = time.monotonic() + support.PATIENCE
        while not fact(self.text()):
            support.delay()
            if time.monotonic() > end or not self.read():
                raise AssertionError(f"{what}: not shown\n{self.text()}")
        return self.text()
