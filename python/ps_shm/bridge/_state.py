"""What a bridge keeps across its death: the text that says what the arrays in shared memory hold."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Optional

from .. import View, _core

Counted = dict[str, int]  # by box: the number of its last cut that an anchor contains


@dataclass(frozen=True)
class Ready:
    """The result of a round, before it is decided. `sum` and `present` hold what it adds up."""

    round: int
    checksum: int  # of the sum
    bytes: int  # of the sum
    group: int  # in which this box accepted it
    counted: Counted
    rate: float
    momentum: float
    rows: tuple[int, ...] = ()  # of the sum, of each table


@dataclass(frozen=True)
class Header:
    """Which of the arrays hold, and what has been decided (docs/protocols.md, bridge).

    `phase`  what the job has in it, besides what it has done since:
      new      nothing of any anchor
      idle     the anchor
      cut      the anchor; `base` = anchor + what this box sends, as cut number `cut`, until round + 1 is decided
      counted  the base: anchor - base is to be added, unless the job is over; with `has_values` only to rows
      assign   anything: the anchor is to be assigned
    """

    phase: str = "new"
    round: int = 0
    checksum: int = 0  # of the anchor and the momentum; 0: they are being replaced
    decided: int = 0  # checksum of the last sum
    group: int = 0  # the last group that this box has joined
    counted: Counted = field(default_factory=dict)
    ready: Optional[Ready] = None
    is_stepping: bool = False  # the outer step is under way
    rate: float = 0.0  # of that step
    momentum: float = 0.0
    cut: int = 0
    is_last: bool = False  # that cut is of the job's end
    cut_step: int = 0  # global step of the open cut, and of the last one that was counted
    counted_step: int = -1
    ticket: int = 0  # of the last change of the job
    has_values: bool = False  # phase counted: the variables have got that change, and hold the anchor
    variables: int = 0  # of the job, in the order of their declaration: later ones are left alone
    # Of each table by key (docs/protocols.md, bridge.T1 to bridge.T9).
    tables: tuple[str, ...] = ()  # their names: later ones are left alone
    most_keys: tuple[int, ...] = ()  # how many the anchor may have
    keys: tuple[int, ...] = ()  # how many the anchor has
    based: tuple[int, ...] = ()  # of how many there is a base
    due: tuple[int, ...] = ()  # rows of the last sum that was decided; -1: all keys may lack something of the anchor
    has_cut: bool = False  # to the base comes what the cut has
    cut_rows: tuple[int, ...] = ()  # of the cut
    cut_versions: tuple[int, ...] = ()  # where the cut after it begins
    versions: tuple[int, ...] = ()  # where the next cut begins
    last_rows: tuple[int, ...] = ()  # of the cut of the job's end
    has_last_rows: bool = False
    # For whoever looks.
    box: int = 0
    boxes: int = 0
    members: tuple[int, ...] = ()
    seconds: float = 0.0  # of the last round
    bytes: int = 0  # sent by this box in the last round
    norm: float = 0.0  # of what the last round added up
    at: float = 0.0  # Unix time of the last round
    dropped: int = 0  # elements of this box's work that no anchor has, and steps for which the same holds
    dropped_steps: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the anchor can be given to others."""
        return self.phase != "new" and self.checksum != 0


def _parse(text: str) -> Header:
    given: dict[str, Any] = json.loads(text)
    known = {one.name for one in fields(Header)}
    given = {name: value for name, value in given.items() if name in known}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if given["ready"] is not None:
        given["ready"] = Ready(**{**given["ready"], "rows": tuple(given["ready"]["rows"])})
    return Header(**given)


class State(_core.BridgeState):
    """The arrays, and the header."""

    def __init__(
        self, job: str, instance: int, blocks: int, wire: str, outer: str, tables: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Takes the state of the job, or makes a new one. tables: of each the most keys, and the floats of a row."""
        super().__init__(job, instance, blocks, wire, outer, list(tables))
        self._path = f"/dev/shm/ps_shm.{job}.bridge"
        self._own_inode = self._inode()
        if self.text:
            self.header = _parse(self.text)
        else:  # bridge.C1; and rows have marks of the tickets of an earlier state, which no guest's entry has
            self.header = Header(ticket=max(int(time.time() * 1000), View(job).guest_ticket))

    def _inode(self) -> Optional[int]:
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Removes the file, unless a bridge of a new job of that name has made another one."""
        if self._own_inode is not None and self._inode() == self._own_inode:
            super().remove()

    def set(self, **changes: Any) -> None:
        """Replaces fields of the header, all at once."""
        self.header = replace(self.header, **changes)
        self.write(json.dumps(asdict(self.header), separators=(",", ":")))
