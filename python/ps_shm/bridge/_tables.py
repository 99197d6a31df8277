"""Tables by key: what a round takes from them and gives to them (docs/protocols.md, bridge.T1 to bridge.T9)."""

import sys
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

import ps_shm

from .. import _core
from ._group import Group
from ._options import Options
from ._state import Ready, State

KEYS, ANCHOR, BASE, CUT_KEYS, CUT_ROWS, LAST_KEYS, LAST_ROWS, SUM_KEYS, SUM_ROWS = range(9)  # BridgeState.table_array()
ALL = -1  # as a number of rows that are due: all keys
MAX_TICKET = 0x7FFFFFFF
JOIN_SECONDS = 1.0  # for which it waits for the job, which may be gone
AT_ONCE = 1 << 16  # rows that are given in one call
KEYS_PER_ROW = 4  # of a table's max_rows, by default

Keys = np.ndarray[Any, np.dtype[np.uint64]]
Rows = np.ndarray[Any, np.dtype[np.float32]]
Slots = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Table:
    """A table by key of the job."""

    def __init__(self, options: Options, number: int, info: ps_shm.TableInfo) -> None:
        """The table of that number among those that the bridge exchanges."""
        self.number, self.name, self.row_size, self._wire = number, info.name, int(info.row_size), options.wire
        self._seed, self._range, max_rows, _ = _core.BridgeState.table_facts(options.job, self.name)
        self.most = options.table_keys or KEYS_PER_ROW * max_rows
        self.reader = _core.TableReader(options.job, self.name)  # the job's files may be gone at its end

    def __str__(self) -> str:
        """What all boxes have to have alike."""
        return (f"table of rows of {self.row_size}, initial values within {self._range:g} of seed {self._seed}, "
                f"at most {self.most} keys")  # fmt: skip

    def initial(self, keys: Keys) -> Rows:
        """What rows of these keys begin with."""
        return _core.BridgeState.initial_rows(self._seed, self._range, self.row_size, np.ascontiguousarray(keys))

    def encode(self, rows: Rows) -> Bytes:
        """As they are sent."""
        return _core.BridgeState.encode_rows(self._wire, np.ascontiguousarray(rows))

    def decode(self, encoded: Bytes) -> Rows:
        """As they were sent."""
        return _core.BridgeState.decode_rows(self._wire, self.row_size, np.ascontiguousarray(encoded))


class GuestTable(_core.BridgeTable):
    """A table, for a guest of its job."""


def _places(sorted_keys: Keys, keys: Keys) -> Slots:
    """Where each key is; -1: nowhere."""
    if not sorted_keys.size:
        return np.full(keys.size, -1, np.int64)
    places = np.minimum(np.searchsorted(sorted_keys, keys), sorted_keys.size - 1)
    return np.where(sorted_keys[places] == keys, places, -1)


class Anchor:
    """What the state has of a table: the keys that the boxes have agreed about, each with a slot, and their rows."""

    def __init__(self, table: Table, state: State) -> None:
        """The state may have keys already."""
        self.table, self.state = table, state
        self._sorted: Keys = np.zeros(0, np.uint64)
        self._slots: Slots = np.zeros(0, np.int64)

    @property
    def count(self) -> int:
        """The number of keys."""
        return int(self.state.header.keys[self.table.number])

    def array(self, which: int, count: int) -> Any:
        """The first so many elements of an array of the state."""
        return self.state.table_array(self.table.number, which, count)

    def forget(self) -> None:
        """The keys were replaced."""
        self._sorted, self._slots = np.zeros(0, np.uint64), np.zeros(0, np.int64)

    def slots(self, keys: Keys) -> Slots:
        """The slot of each key; -1: it has none."""
        known, count = self._sorted.size, self.count
        if known != count:
            new = self.array(KEYS, count)[known:]
            order = np.argsort(new, kind="stable")
            places = np.searchsorted(self._sorted, new[order])
            self._sorted = np.insert(self._sorted, places, new[order])
            self._slots = np.insert(self._slots, places, known + order)
        places = _places(self._sorted, keys)
        return np.where(places >= 0, self._slots[places] if count else -1, -1)

    def _rows(self, keys: Keys, slots: Slots, which: int, count: int) -> Rows:
        """From that array; of others than the first `count` slots, the initial ones."""
        rows: Rows = np.empty((keys.size, self.table.row_size), np.float32)
        has = (slots >= 0) & (slots < count)
        rows[has] = self.array(which, count)[slots[has]]
        rows[~has] = self.table.initial(keys[~has])
        return rows

    def rows(self, keys: Keys) -> Rows:
        """The anchor of these keys (bridge.T1)."""
        return self._rows(keys, self.slots(keys), ANCHOR, self.count)

    def bases(self, keys: Keys) -> Rows:
        """What the rows of these keys, which are due, have in them (bridge.T6)."""
        header = self.state.header
        rows = self._rows(keys, self.slots(keys), BASE, header.based[self.table.number])
        if header.has_cut:
            count = header.cut_rows[self.table.number]
            places = _places(self.array(CUT_KEYS, count), keys)
            has = places >= 0
            rows[has] += self.table.decode(self.array(CUT_ROWS, count)[places[has]])
        return rows

    def due(self) -> Keys:
        """The keys whose rows have yet to get the anchor."""
        due = self.state.header.due[self.table.number]
        keys: Keys = self.array(KEYS, self.count) if due == ALL else self.array(SUM_KEYS, due)
        return keys

    def put(self, keys_at: int, rows_at: int, keys: Keys, differences: Rows) -> int:
        """Writes a cut. The number of its rows."""
        order = np.argsort(keys, kind="stable")
        self.array(keys_at, keys.size)[:] = keys[order]
        self.array(rows_at, keys.size)[:] = self.table.encode(differences[order])
        return int(keys.size)


class Tables:
    """All tables that the bridge exchanges."""

    def __init__(self, options: Options, tables: list[Table], state: State, instance: int) -> None:
        """Tables of that instance of the job."""
        self.options, self._state, self._instance = options, state, instance
        self.anchors = [Anchor(table, state) for table in tables]
        # What encoding has lost of the sums that were made here, by slots. Lost with the process.
        self._residuals: list[Rows] = [np.zeros((0, table.row_size), np.float32) for table in tables]
        self._next: list[tuple[int, Slots, Rows]] = []
        self._has_told = False

    def _tell(self, line: str) -> None:
        print(f"bridge {self.options.box}: {line}", file=sys.stderr, flush=True)

    def first_fields(self) -> dict[str, Any]:
        """Those of the header, if the state is new."""
        if len(self._state.header.keys) == len(self.anchors):
            return {}
        names = ("keys", "based", "due", "cut_rows", "last_rows", "versions", "cut_versions")
        fields: dict[str, Any] = {name: (0,) * len(self.anchors) for name in names}
        tables = [anchor.table for anchor in self.anchors]
        return {"tables": tuple(one.name for one in tables), "most_keys": tuple(one.most for one in tables), **fields}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.anchors)

    # ---- The job's part. These join the job.

    def _tables(self) -> Iterator[tuple[Anchor, GuestTable]]:
        """Each with the table as a guest of the job has it. Raises ps_shm.JobFinished."""
        with ps_shm.Guest(self.options.job, group=self.options.group, wait=JOIN_SECONDS) as guest:
            if ps_shm.View(self.options.job).instance != self._instance:  # a new job of that name
                raise ps_shm.JobFinished(f"job '{self.options.job}' is another one")
            for anchor in self.anchors:
                yield anchor, GuestTable(guest, anchor.table.name)

    def _ticket(self) -> int:
        """The header's ticket as rows are marked with it."""
        return int(self._state.header.ticket) % MAX_TICKET + 1

    def _next_ticket(self) -> int:
        """A new one."""
        self._state.set(ticket=self._state.header.ticket + 1)
        return self._ticket()

    def _drop(self, in_doubt: int, anchor: Anchor) -> None:
        if in_doubt:
            self._tell(f"dropped this box's work on {in_doubt} rows of table '{anchor.table.name}': they were in doubt, and "
                       "got the anchor")  # fmt: skip
            self._state.set(dropped=self._state.header.dropped + in_doubt * anchor.table.row_size)

    def _has_room(self, anchor: Anchor, keys: Keys) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which keys a cut may have: those of the anchor, and as many others as it may get."""
        has_room = anchor.slots(keys) >= 0
        new = np.flatnonzero(~has_room)
        has_room[new[: anchor.table.most - anchor.count]] = True
        if not has_room.all() and not self._has_told:
            self._has_told = True
            self._tell(f"table '{anchor.table.name}' has more than the {anchor.table.most} keys that --table-keys allows: rows "
                       "of others are not exchanged")  # fmt: skip
        return has_room

    def cut(self) -> tuple[dict[str, Any], bool]:
        """Takes what has changed since the last cut that was counted (bridge.T4).

        The header's changes, and whether it is finite.
        """
        ticket = self._next_ticket()
        counts, versions = [], []
        for anchor, table in self._tables():
            (keys, rows, marks), version = table.changed_since(self._state.header.versions[anchor.table.number])
            keys, first = np.unique(keys, return_index=True)  # a key is there twice if its row was evicted and made meanwhile
            rows, marks = rows[first], marks[first]
            is_used = self._has_room(anchor, keys)
            fresh = np.flatnonzero(is_used & ((marks == 0) | (marks % 2 == 1)))
            if fresh.size:
                begun = anchor.rows(keys[fresh])
                in_doubt, _ = table.give(ticket, keys[fresh], begun, begun)
                self._drop(in_doubt, anchor)
                rows[fresh], found_marks, found = table.read(keys[fresh])
                is_used[fresh] = (found != 0) & (found_marks == 2 * ticket)
            keys, rows = keys[is_used], rows[is_used]
            with np.errstate(invalid="ignore", over="ignore"):
                differences = rows - anchor.rows(keys)
            has_changed = (differences != 0).any(axis=1)
            if not np.isfinite(differences[has_changed]).all():
                return {}, False
            counts.append(anchor.put(CUT_KEYS, CUT_ROWS, keys[has_changed], differences[has_changed]))
            versions.append(version)
        return {"cut_rows": tuple(counts), "cut_versions": tuple(versions)}, True

    def last_cut(self) -> Optional[dict[str, Any]]:
        """The same of a job that is over, of all rows (bridge.T8). None: it is not finite."""
        header, counts, dropped = self._state.header, [], 0
        for anchor in self.anchors:
            keys, rows, marks = anchor.table.reader.rows(anchor.table.row_size)
            is_sure = marks % 2 == 0
            dropped += int((~is_sure).sum()) * anchor.table.row_size
            is_sure &= self._has_room(anchor, keys)
            keys, rows, marks = keys[is_sure], rows[is_sure], marks[is_sure]
            bases = anchor.rows(keys)
            if header.phase == "counted":
                lacks = np.flatnonzero((_places(np.sort(anchor.due()), keys) >= 0) & (marks != 2 * self._ticket()))
                bases[lacks] = anchor.bases(keys[lacks])
            new = marks == 0
            bases[new] = anchor.table.initial(keys[new])
            with np.errstate(invalid="ignore", over="ignore"):
                differences = rows - bases
            has_changed = (differences != 0).any(axis=1)
            if not np.isfinite(differences[has_changed]).all():
                return None
            counts.append(anchor.put(LAST_KEYS, LAST_ROWS, keys[has_changed], differences[has_changed]))
        return {"last_rows": tuple(counts), "has_last_rows": True, "dropped": header.dropped + dropped}

    def give(self) -> None:
        """Adds to the rows what they lack of the anchor (bridge.T6). Idempotent."""
        if not any(self._state.header.due):
            return
        ticket = self._ticket()
        for anchor, table in self._tables():
            keys = anchor.due()
            for begin in range(0, keys.size, AT_ONCE):
                some = keys[begin : begin + AT_ONCE]
                in_doubt, _ = table.give(ticket, some, anchor.rows(some), anchor.bases(some))
                self._drop(in_doubt, anchor)

    def assign(self) -> dict[str, Any]:
        """Sets the rows to the anchor (bridge.T7). The header's changes. Idempotent."""
        ticket, versions = self._ticket(), []
        for anchor, table in self._tables():
            (keys, _, _), version = table.changed_since(0)
            unknown = np.unique(keys[anchor.slots(keys) < 0])
            for some in (anchor.array(KEYS, anchor.count), unknown):
                for begin in range(0, some.size, AT_ONCE):
                    part = some[begin : begin + AT_ONCE]
                    table.give(ticket, part, anchor.rows(part))
            versions.append(version)
        return {"versions": tuple(versions)}

    def found(self) -> dict[str, Any]:
        """Makes the job's rows the anchor (bridge.T7). The header's changes."""
        ticket, counts, versions = self._next_ticket(), [], []
        for anchor, table in self._tables():
            (keys, rows, marks), version = table.changed_since(0)
            keys, chosen = np.unique(keys, return_index=True)
            keys, chosen = keys[: anchor.table.most], chosen[: anchor.table.most]
            rows, marks = rows[chosen], marks[chosen]
            is_odd = marks % 2 == 1  # of a bridge whose state is lost
            table.give(ticket, keys[is_odd], rows[is_odd])
            begun = anchor.table.initial(keys)
            table.give(ticket, keys, begun, begun)
            rows, marks, found = table.read(keys)
            has = (found != 0) & (marks == 2 * ticket)
            keys, rows = keys[has], rows[has]
            anchor.array(KEYS, keys.size)[:] = keys
            anchor.array(ANCHOR, keys.size)[:] = rows
            anchor.forget()
            counts.append(int(keys.size))
            versions.append(version)
        return {"keys": tuple(counts), "versions": tuple(versions)}

    # ---- The state's part.

    def advance(self, is_counted: bool) -> dict[str, Any]:
        """The header's changes when the box goes to another round (bridge.R6): from which cut the next one begins."""
        header = self._state.header
        if not self.anchors or header.phase == "counted":
            return {}
        return {"has_cut": is_counted, "versions": header.cut_versions if is_counted else header.versions}

    def accept(self, ready: Ready) -> dict[str, Any]:
        """Makes the base of the rows that the sum has, and slots for its new keys (bridge.T5). The header's changes."""
        counts = []
        for anchor, size in zip(self.anchors, ready.rows):
            keys, count = anchor.array(SUM_KEYS, size), anchor.count
            slots = anchor.slots(keys)
            new, known = keys[slots < 0], slots[slots >= 0]
            after = count + new.size
            anchor.array(ANCHOR, after)  # there is memory for them
            base = anchor.array(BASE, after)
            base[known] = anchor.array(ANCHOR, count)[known]
            base[count:] = anchor.table.initial(new)
            anchor.array(KEYS, after)[count:] = new
            counts.append(after)
        return {"keys": tuple(counts), "based": tuple(counts), "due": tuple(ready.rows)} if self.anchors else {}

    def step(self) -> float:
        """The anchor of the rows that the sum has becomes base + sum (bridge.T5). Idempotent. The sum of the squares."""
        squares = 0.0
        for anchor, due in zip(self.anchors, self._state.header.due):
            slots = anchor.slots(anchor.array(SUM_KEYS, due))
            anchor_rows, base = anchor.array(ANCHOR, anchor.count), anchor.array(BASE, anchor.count)
            for begin in range(0, due, AT_ONCE):
                some = slots[begin : begin + AT_ONCE]
                change = anchor.table.decode(anchor.array(SUM_ROWS, due)[begin : begin + AT_ONCE])
                anchor_rows[some] = base[some] + change
                squares += float(np.square(change, dtype=np.float64).sum())
        return squares

    def rebase(self) -> dict[str, Any]:
        """Makes the base that of all keys, before the anchor is replaced (bridge.T9). The header's changes."""
        if not self.anchors or self._state.header.phase == "counted":
            return {}
        for anchor in self.anchors:
            anchor.array(BASE, anchor.count)[:] = anchor.array(ANCHOR, anchor.count)
        return {"based": self._state.header.keys, "due": (ALL,) * len(self.anchors)}

    def checksum(self, of_others: int) -> int:
        """Of the anchor, and of what has the checksum `of_others`."""
        return self._hash((KEYS, ANCHOR), self._state.header.keys, of_others)

    def sum_checksum(self, rows: Any, of_others: int) -> int:
        """Of a sum of so many rows of each table, likewise."""
        return self._hash((SUM_KEYS, SUM_ROWS), rows, of_others)

    def _hash(self, arrays: tuple[int, int], counts: Any, found: int) -> int:
        for anchor, count in zip(self.anchors, counts):
            for which in arrays:
                found = self._state.hash(anchor.array(which, count), found)
        return found

    # ---- The group's part.

    def send_anchor(self, group: Group, position: int) -> None:
        """Gives the anchor to those that are behind; for them, take_anchor()."""
        for anchor in self.anchors:
            group.broadcast(anchor.array(KEYS, anchor.count).view(np.uint8), position)
            group.broadcast(anchor.array(ANCHOR, anchor.count).reshape(-1), position)

    def take_anchor(self, group: Group, position: int, counts: list[int], is_new: bool) -> dict[str, Any]:
        """Gets the anchor (bridge.T9). The header's changes."""
        for anchor, count in zip(self.anchors, counts):
            keys: Keys = np.empty(count, np.uint64)
            group.broadcast(keys.view(np.uint8), position)
            known = 0 if is_new else anchor.count
            if count < known or (keys[:known] != anchor.array(KEYS, known)).any():
                raise ps_shm.Error(f"table '{anchor.table.name}': the boxes have agreed about other keys")
            anchor.array(KEYS, count)[:] = keys
            group.broadcast(anchor.array(ANCHOR, count).reshape(-1), position)
            if is_new:
                anchor.forget()
        return {"keys": tuple(counts)} if self.anchors else {}

    def share_sum(self, group: Group, position: int, rows: Any) -> None:
        """Gives a sum to all."""
        for anchor, count in zip(self.anchors, rows):
            group.broadcast(anchor.array(SUM_KEYS, count).view(np.uint8), position)
            group.broadcast(anchor.array(SUM_ROWS, count).reshape(-1), position)

    def exchange(self, group: Group, weights: list[float], rows: list[Any], is_last: bool) -> tuple[tuple[int, ...], int, bool]:
        """Sums what all have sent, each box a part of it (bridge.T5). `rows`: by box, how many of each table it sends.

        The rows of the sum, what this box has sent, and whether its part is finite.
        """
        self._next = []
        counts, sent, is_finite = [], 0, True
        for anchor in self.anchors:
            sizes = [of[anchor.table.number] if weight else 0 for of, weight in zip(rows, weights)]
            count, bytes_of, finite = self._exchange(anchor, group, weights, sizes, is_last)
            counts.append(count)
            sent += bytes_of
            is_finite &= finite
        return tuple(counts), sent, is_finite

    def _exchange(
        self, anchor: Anchor, group: Group, weights: list[float], sizes: list[int], is_last: bool
    ) -> tuple[int, int, bool]:
        members, rank, table = len(sizes), group.rank, anchor.table
        keys_at, rows_at = (LAST_KEYS, LAST_ROWS) if is_last else (CUT_KEYS, CUT_ROWS)
        mine: Keys = anchor.array(keys_at, sizes[rank])
        encoded: Bytes = anchor.array(rows_at, sizes[rank])
        keys = [np.empty(size, np.uint64) for size in sizes]
        keys[rank] = mine
        if members > 1:
            group.exchange([mine.view(np.uint8)] * members, [one.view(np.uint8) for one in keys])
        union: Keys = np.unique(np.concatenate(keys))
        slots = anchor.slots(union)
        new = np.flatnonzero(slots < 0)
        too_many = new[table.most - anchor.count :]
        union, slots = np.delete(union, too_many), np.delete(slots, too_many)
        slots[slots < 0] = anchor.count + np.arange(np.count_nonzero(slots < 0))
        places = [_places(union, one) for one in keys]
        ends = [union.size * k // members for k in range(members + 1)]
        inside = [[np.flatnonzero((of >= ends[k]) & (of < ends[k + 1])) for k in range(members)] for of in places]
        outgoing = [np.ascontiguousarray(encoded[inside[rank][k]]) for k in range(members)]
        width = encoded.shape[1]
        parts = [np.empty((inside[k][rank].size, width), np.uint8) for k in range(members)]
        if members > 1:
            group.exchange([one.reshape(-1) for one in outgoing], [one.reshape(-1) for one in parts])
        parts[rank] = outgoing[rank]
        begin, end = ends[rank], ends[rank + 1]
        total: Rows = np.zeros((end - begin, table.row_size), np.float32)
        weighed = np.zeros_like(total)
        with np.errstate(invalid="ignore", over="ignore"):
            for k, weight in enumerate(weights):
                if parts[k].size:
                    at, part = places[k][inside[k][rank]] - begin, table.decode(parts[k])
                    total[at] += part * np.float32(weight)
                    weighed[at] += np.where(part != 0, np.float32(weight), np.float32(0))
            if self.options.combine == "mean":
                total /= np.where(weighed > 0, weighed, np.float32(1))
            if self.options.wire != "float32":
                residual = self._residuals[table.number]
                mine_in_sum = slots[begin:end]
                known = mine_in_sum < len(residual)
                total[known] += residual[mine_in_sum[known]]
        result = table.encode(total)
        if self.options.wire != "float32":
            self._next.append((table.number, slots[begin:end], total - table.decode(result)))
        everything = [np.empty((ends[k + 1] - ends[k], width), np.uint8) for k in range(members)]
        if members > 1:
            group.exchange([result.reshape(-1)] * members, [one.reshape(-1) for one in everything])
        everything[rank] = result
        anchor.array(SUM_KEYS, union.size)[:] = union
        anchor.array(SUM_ROWS, union.size)[:] = np.concatenate(everything)
        sent = sum(one.nbytes for k, one in enumerate(outgoing) if k != rank)
        return int(union.size), sent + (members - 1) * (mine.nbytes + result.nbytes), bool(np.isfinite(total).all())

    def keep_residuals(self) -> None:
        """The sum that was exchanged is decided."""
        for number, slots, lost in self._next:
            residual, count = self._residuals[number], self.anchors[number].count
            if len(residual) < count:
                more = np.zeros((count - len(residual), lost.shape[1]), np.float32)
                residual = self._residuals[number] = np.concatenate((residual, more))
            residual[slots] = lost
        self._next = []
