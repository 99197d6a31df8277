"""The rounds of a bridge (docs/protocols.md, bridge): cut, exchange, accept, decide, give to the job."""

import json
import os
import random
import signal
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Optional

import numpy as np
import torch

import ps_shm

from ._box import BLOCK, POLL_SECONDS, Box
from ._group import FAILURES, SECOND, BrokenError, Group, WantedError
from ._options import Options
from ._state import Counted, Ready, State
from ._tables import ANCHOR, KEYS, Tables

MAX_LAST_TRIES = 3  # to form a group once this box's job is over
RETRY_SECONDS = 0.2
WRONG_USAGE = 2  # exit code: to be started again would not help


class Bridge:
    """The bridge of one box. run() is what the program does; tests call its steps."""

    def __init__(self, options: Options, make_group: Callable[[Options], Group] = Group) -> None:
        """Waits for the job, and takes what an earlier bridge of it has left."""
        self.options = options
        self.box = Box(options)
        sizes = [(table.most, table.row_size) for table in self.box.tables]
        self.state = State(options.job, self.box.instance, self.box.blocks, options.wire, options.outer, sizes)
        self.tables = Tables(options, self.box.tables, self.state, self.box.instance)
        self.group = make_group(options)
        self.sparse = self.box.blocks_of(lambda part: part.is_sparse)
        self.unstepped = self.box.blocks_of(lambda part: not part.is_stepped)
        # What encoding has lost of the sums made here, and what it will have lost once the sum is decided: blocks and
        # numbers. Lost with the process.
        self._residual = np.zeros((0 if options.wire == "float32" else self.box.blocks, BLOCK), np.float32)
        self._next_residual: Optional[tuple[Any, Any]] = None
        self._can_report = True
        self._lacks_snapshot = False
        self._may_leave = False  # the job is over, and all that it has done is counted; other boxes' jobs go on
        self._last_step, self._last_time = self.box.step, time.monotonic()
        self.state.set(
            box=options.box, boxes=options.boxes, variables=self.box.declared, **self.tables.first_fields()
        )
        what = f"{sum(p.size for p in self.box.parts)} floats"
        if self.tables:
            what += f", {len(self.box.tables)} tables with {sum(self.header.keys)} keys"
        self.tell(f"joined job '{options.job}' at round {self.header.round}: {what}")
        if self.box.left_alone:
            self.tell(f"left alone, as they are neither float32 nor named by --copy: {', '.join(self.box.left_alone)}")
        if self.box.declared_late:
            self.tell(f"left alone, as they were declared after the first bridge had begun: {', '.join(self.box.declared_late)}")

    @property
    def header(self) -> Any:
        """The header of the state."""
        return self.state.header

    def tell(self, line: str, **record: Any) -> None:
        """Prints a line, and appends the record to the report."""
        print(f"bridge {self.options.box}: {line}", file=sys.stderr, flush=True)
        self.record(event=line, **record)

    def record(self, **record: Any) -> None:
        """Appends a record to the report."""
        if not self.options.report or not self._can_report:
            return
        try:
            with open(self.options.report, "a") as report:
                report.write(json.dumps({"unix_time": round(time.time(), 3), "box": self.options.box, **record}) + "\n")
        except OSError as error:
            self._can_report = False
            self.tell(f"the report ends here: {error}")

    # ---- The job's part.

    def resolve(self) -> None:
        """Finishes what a round has decided: the outer step, and the change of the job (bridge.C1 to bridge.C3). Idempotent.

        Raises ps_shm.Timeout if the job makes no step; mode sync.
        """
        if self.header.is_stepping:
            self._step()
        if not self.header.is_whole:
            return
        if not self.box.is_over:
            self._change_job()
        if self.box.is_over:  # which may have ended meanwhile
            self._take_last_rows()

    def _change_job(self) -> None:
        ticket = self.header.ticket
        if self.header.phase == "counted":
            if not self.header.has_values:
                left = self.box.add(ticket, self.box.correction(self.state), self.box.values(self.state))
                if left is None:
                    return
                if left:
                    self.tell(f"dropped this box's work on {left} elements: an in-place block was in doubt, and got the anchor")
                self.state.set(has_values=True, dropped=self.header.dropped + left)
            if not self.tables or self.box.as_guest(self._give_rows):
                self.state.set(phase="idle", has_values=False)
        elif self.header.phase == "assign":
            changes: Optional[dict[str, Any]] = {}
            if self.box.assign(ticket, self.box.values(self.state)):
                if self.tables:
                    changes = self.box.as_guest(self.tables.assign)
                if changes is not None:
                    self.state.set(phase="idle", **changes)

    def _lacks_change(self) -> bool:
        """Whether the job's variables have the base in them, and not the anchor."""
        return self.header.phase == "counted" and not self.header.has_values

    def _give_rows(self) -> bool:
        self.tables.give()
        return True

    def _take_last_rows(self) -> bool:
        """Once the job is over, before the anchor moves (bridge.T8). Whether there is such a cut, which may be empty."""
        if self.tables and not self.header.has_last_rows and self.header.phase in ("idle", "counted"):
            self.box.wait_for_workers()
            changes = self.tables.last_cut()
            if changes is not None:
                self.state.set(**changes)
        return self.header.has_last_rows or not self.tables

    def _step(self) -> None:
        fragment = self.box.fragment(self.header.round - 1)  # its blocks step, and those that somebody sent
        squares = self.state.step(self.header.rate, self.header.momentum, self.unstepped, fragment.start, fragment.stop)
        squares += self.tables.step()
        self.state.set(checksum=self._anchor_checksum(), norm=squares**0.5, is_stepping=False)

    def _anchor_checksum(self) -> int:
        return self.tables.checksum(self.state.anchor_checksum)

    def _advance(self, counted: Counted) -> dict[str, Any]:
        """Makes the base what the job has in it, before the anchor is replaced (bridge.R6). The header's changes."""
        has_open_cut = self.header.phase == "cut"
        is_counted = has_open_cut and counted.get(str(self.options.box)) == self.header.cut
        if not is_counted and not self._lacks_change():
            self.state.base[:] = self.state.anchor
        return {
            "phase": "assign" if self.header.phase in ("new", "assign") else "counted",
            "counted_step": self.header.cut_step if is_counted else self.header.counted_step,
            "counted": counted,
            "ticket": self.header.ticket + 1,
            "has_values": False,
            "ready": None,
            **self.tables.advance(is_counted),
        }

    def commit(self) -> None:
        """Takes the result that this box has accepted: it is decided. The outer step follows (bridge.S3)."""
        self._give_before_another()
        ready: Ready = self.header.ready
        changes = self._advance(ready.counted) | self.tables.accept(ready)
        self.state.rewind()
        self.state.set(
            round=ready.round, decided=ready.checksum, is_stepping=True, rate=ready.rate, momentum=ready.momentum, **changes
        )
        self._step()

    def _give_before_another(self) -> None:
        """What rows lack is known of one round at a time (bridge.T6)."""
        if self.tables and self.header.phase == "counted":
            self.resolve()

    # ---- The group's part.

    def join(self, stays: bool = False) -> None:
        """Forms a group and agrees about the round. stays: with the store of the last one. Raises BrokenError."""
        number = self.group.form(self.header.group, not self.header.is_whole, stays)
        self.state.set(group=number, members=tuple(self.group.members))  # bridge.G3: before anything is said
        said = self._report()
        if not any(one["is_whole"] for one in said):
            self._found()
            said = self._report()
        self._catch_up(said)
        self._carry(self._report())

    def _report(self) -> list[dict[str, Any]]:
        header = self.header
        said = self.group.gather({
            "box": self.options.box, "is_whole": header.is_whole, "round": header.round, "checksum": header.checksum,
            "decided": header.decided, "counted": header.counted,
            "ready": header.ready and {"round": header.ready.round, "group": header.ready.group, "checksum": header.ready.checksum},
            "shapes": self.box.shapes(), "options": self.options.agreed(), "keys": self.header.keys,
            "version": ps_shm.__version__,
        })  # fmt: skip
        for what in ("version", "options", "shapes"):
            self._agree(what, said)
        return said

    def _agree(self, what: str, said: list[dict[str, Any]]) -> None:
        """Those that have what most have go on without the others: the bridge of such a box ends."""
        held = [one for one in said if one["is_whole"]] or said
        first = max(held, key=lambda one: sum(one[what] == other[what] for other in held))
        mine = said[self.group.rank]
        if mine[what] != first[what]:
            print(f"bridge {self.options.box}: {self._difference(what, first, mine)}", file=sys.stderr, flush=True)
            raise SystemExit(WRONG_USAGE)
        for one in said:
            if one[what] != first[what]:
                raise BrokenError(self._difference(what, first, one))

    @staticmethod
    def _difference(what: str, first: dict[str, Any], other: dict[str, Any]) -> str:
        first, other = sorted((first, other), key=lambda one: one["box"])
        boxes = f"boxes {first['box']} and {other['box']}"
        if what == "shapes":
            one, two = first[what], other[what]
            names = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
            return f"the jobs of {boxes} differ in variable '{names[0]}': {one.get(names[0])} and {two.get(names[0])}"
        if what == "options":
            names = [name for name in first[what] if first[what][name] != other[what][name]]
            return f"{boxes} differ in --{names[0]}: {first[what][names[0]]} and {other[what][names[0]]}"
        return f"{boxes} have versions {first[what]} and {other[what]}"

    def _found(self) -> None:
        """No box has an anchor: all are there, and the job of the first one is the beginning (bridge.A1)."""
        if self.group.rank == 0:
            step = self.box.found(self.state)
            self.state.momentum[:] = 0
            if self.tables:
                changes = self.box.as_guest(self.tables.found)
                if changes is None:
                    raise BrokenError("the job is over")
                self.state.set(**changes)
            self.state.set(phase="idle", checksum=self._anchor_checksum(), counted_step=step)
            self.tell("this box's values are the first anchor")

    def _catch_up(self, said: list[dict[str, Any]]) -> None:
        """Who is behind takes the anchor of the highest round (bridge.A2)."""
        whole = [one for one in said if one["is_whole"]]
        key = lambda one: (one["round"], one["checksum"])  # noqa: E731
        source = max(whole, key=lambda one: (one["round"], sum(key(one) == key(other) for other in whole), -one["box"]))
        ready = self.header.ready
        is_behind = not self.header.is_whole or key(said[self.group.rank]) != key(source)
        if is_behind and self.header.is_whole and ready and (ready.round, ready.checksum) == (
            source["round"], source["decided"]
        ) and self.header.round + 1 == ready.round:  # fmt: skip
            self.commit()  # it has all that it takes
            is_behind = key({"round": self.header.round, "checksum": self.header.checksum}) != key(source)
        if not any(self.group.gather(is_behind)):
            return
        position = said.index(source)
        if is_behind:
            self._give_before_another()
            changes = self._advance(source["counted"]) | self.tables.rebase()
            self.state.set(checksum=0, **changes)  # bridge.S5: there is no anchor meanwhile
            self._take(position, changes, source)
        else:
            self.group.broadcast(self.state.anchor, position)
            self.group.broadcast(self.state.momentum, position)
            self.tables.send_anchor(self.group, position)

    def _take(self, position: int, changes: dict[str, Any], source: dict[str, Any]) -> None:
        for array in (self.state.anchor, self.state.momentum):
            self.group.broadcast(array, position)
        is_new = changes["phase"] == "assign"
        self.state.set(**self.tables.take_anchor(self.group, position, source["keys"], is_new))
        found = self._anchor_checksum()
        if found != source["checksum"]:
            raise BrokenError("the anchor was not received as it was sent")
        self.state.set(**{**changes, "round": source["round"], "checksum": found, "decided": source["decided"]})
        self.tell(f"took the anchor of round {self.header.round} from box {source['box']}")

    def _carry(self, said: list[dict[str, Any]]) -> None:
        """A result that was accepted in an earlier group may be decided there: this group accepts it, too (bridge.A3, bridge.A4)."""
        mine: Optional[Ready] = self.header.ready
        open_ones = [one for one in said if one["ready"] and one["ready"]["round"] == one["round"] + 1]
        if not open_ones:
            return
        holder = max(open_ones, key=lambda one: (one["ready"]["group"], -one["box"]))
        position = said.index(holder)
        has_it = mine is not None and (mine.round, mine.checksum) == (holder["ready"]["round"], holder["ready"]["checksum"])
        record = self.group.gather(asdict(self.header.ready) if position == self.group.rank else None)[position]
        self._give_before_another()  # while the keys of the last sum are there
        if not all(self.group.gather(has_it)):
            if not has_it:
                self.state.set(ready=None)  # bridge.S2
            total = self.state.sum[: record["bytes"]]
            present = self.state.present
            self.group.broadcast(total, position)
            self.group.broadcast(present, position)
            self.tables.share_sum(self.group, position, record["rows"])
        if self._checksum(record["bytes"], record["counted"], record["rows"]) != record["checksum"]:
            raise BrokenError("a result was not received as it was sent")
        self.state.set(ready=replace(Ready(**record), rows=tuple(record["rows"]), group=self.group.number))
        self._vote()
        self.commit()
        self.tell(f"finished round {self.header.round}, which a group before had begun")

    def _checksum(self, size: int, counted: Counted, rows: Any) -> int:
        """Of a result: what is added up, of which cuts."""
        of_counted = zlib.crc32(json.dumps(counted, sort_keys=True).encode())
        return self.tables.sum_checksum(rows, self.state.checksum(size)) ^ of_counted

    def _vote(self) -> None:
        """All have accepted the same result: it is decided (bridge.R5)."""
        votes = self.group.gather([self.header.ready.round, self.header.ready.checksum])
        if any(vote != votes[0] for vote in votes):
            self.state.set(ready=None)
            raise BrokenError("the boxes were given different sums")

    # ---- A round.

    def wait(self) -> None:
        """Until the job has made its steps, or the time is over, or a box waits for a new group."""
        while not self.box.is_over and self.box.step < self._last_step + self.options.every:
            if time.monotonic() > self._last_time + self.options.seconds or self.group.wants_another():
                return
            time.sleep(POLL_SECONDS)

    def cut(self, over: bool) -> tuple[float, bool]:
        """Makes what this box sends (bridge.R1). Its weight, and whether its values are finite."""
        self._last_step, self._last_time = self.box.step, time.monotonic()
        if self.header.phase == "cut":  # of a round that was not decided: the same again (bridge.R2)
            self.state.cut_again()
            return 1.0, True
        if over:
            return self._last_cut()
        try:
            step, is_finite = self.box.cut(self.state, self.box.fragment(self.header.round))
            self._lacks_snapshot = False
        except ps_shm.Error as error:
            if self.box.is_over:  # it has ended meanwhile
                return self._last_cut()
            if not isinstance(error, ps_shm.Timeout):
                raise
            if not self._lacks_snapshot:
                self.tell(f"takes part without its box's work until the job can have a snapshot: {error}")
            self._lacks_snapshot = True
            self.state.present[:] = 0
            return 0.0, True
        changes: dict[str, Any] = {}
        if self.tables and is_finite and step > self.header.counted_step:
            made = self.box.as_guest(self.tables.cut)
            if made is None:
                return self._last_cut()
            changes, is_finite = made
        if not is_finite or step <= self.header.counted_step:
            self.state.present[:] = 0
            return 0.0, is_finite
        self.state.set(phase="cut", cut=random.getrandbits(62), cut_step=step, **changes)
        return 1.0, True

    def _last_cut(self) -> tuple[float, bool]:
        """What the job has done until its end, once. It is not given anything any more, so that the phase stays."""
        header = self.header
        step, is_new = self.box.step, not header.is_last or header.counted.get(str(self.options.box)) != header.cut
        has_work = step > header.counted_step or self.options.fragments > 1  # in fragments that later rounds would count
        if is_new and has_work and header.phase != "assign" and self._take_last_rows():
            if self.box.last_cut(self.state, self._lacks_change()):
                self.state.set(cut=header.cut if header.is_last else random.getrandbits(62), is_last=True, cut_step=step)
                return 1.0, True
        self.state.present[:] = 0
        return 0.0, True

    def exchange(self, weights: list[float]) -> tuple[int, bool]:
        """Sums what all have sent, each box a part of it (bridge.R3). The bytes of the sum, and whether this box's part is finite."""
        self._next_residual = None
        members, rank = len(self.group.members), self.group.rank
        if self.box.blocks == 0:
            return 0, True
        block = self.state.sum.size // self.box.blocks
        is_mine = self.state.present != 0
        self.group.unite(self.state.present)
        chosen = np.flatnonzero(self.state.present)
        self.state.sum.reshape(-1, block)[chosen[~is_mine[chosen]]] = 0  # a cut of one fragment has left others as they were
        ends = [len(chosen) * k // members * block for k in range(members + 1)]
        whole = self.state.sum[: len(chosen) * block]
        sent = self.state.sum if len(chosen) == self.box.blocks else self.state.sum.reshape(-1, block)[chosen].reshape(-1)
        if members == 1:  # its own encoding is exact already
            whole[:] = sent
            return whole.size, True
        mine = slice(ends[rank], ends[rank + 1])
        size = mine.stop - mine.start
        parts = [np.empty(size if k != rank else 0, np.uint8) for k in range(members)]
        self.group.exchange([sent[ends[k] : ends[k + 1]] for k in range(members)], parts)
        parts[rank] = sent[mine]
        total = np.empty(size, np.uint8)
        summed = chosen[mine.start // block : mine.stop // block]
        residual = self._residual[summed] if self._residual.size else self._residual
        is_finite = self.state.add_up(parts, weights, self.options.combine == "mean", self.sparse[summed], residual, total)
        self._next_residual = (summed, residual) if self._residual.size else None
        whole[mine] = total
        self.group.exchange([total] * members, [whole[ends[k] : ends[k + 1]] for k in range(members)])
        return whole.size, is_finite

    def round(self) -> bool:
        """One round. False: all jobs are over. Raises BrokenError, or what torch.distributed raises."""
        begin = time.monotonic()
        over = self.box.is_over
        heads = self.group.gather([self.header.round, self.header.checksum, over, self.group.wants_another()])
        if any(head[3] for head in heads):
            remade = self.group.gather(self.box.is_remade)
            leaving = [box for box, is_remade in zip(self.group.members, remade) if is_remade]
            if any(self.group.gather(self.group.still_wants_another(leaving))):
                raise WantedError("a box wants to take part")
        if any(head[:2] != heads[0][:2] for head in heads):
            raise BrokenError("the boxes have different anchors")
        met = time.monotonic()
        weight, is_finite = self.cut(over)
        is_last = self.header.phase != "cut"
        rows = self.header.last_rows if is_last else self.header.cut_rows
        cuts = self.group.gather([self.header.cut if weight else 0, weight, over, self.options.box, rows])
        if all(one[2] and not one[1] for one in cuts):
            return False
        may_leave = over and is_last and not all(one[2] for one in cuts)
        if not any(one[1] for one in cuts):  # a momentum would move the anchor
            self._may_leave = may_leave
            self._give(is_finite, over)
            return True
        weights = [one[1] for one in cuts]
        size, is_sum_finite = self.exchange(weights)
        sum_rows, sent, are_rows_finite = self.tables.exchange(self.group, weights, [one[4] for one in cuts], is_last)
        if not all(self.group.gather(is_sum_finite and are_rows_finite)):
            raise SystemExit(f"bridge {self.options.box}: what the boxes have done adds up to more than float32 holds")
        summed = time.monotonic()
        # bridge.S4, bridge.R4
        counted = self.header.counted | {str(box): cut for cut, weight, _, box, _ in cuts if weight}
        self.state.set(ready=Ready(
            self.header.round + 1, self._checksum(size, counted, sum_rows), size, self.group.number, counted,
            self.options.rate, self.options.momentum, sum_rows,
        ))  # fmt: skip
        self._vote()
        self.commit()
        self._may_leave = may_leave
        if self._next_residual:
            blocks, lost = self._next_residual
            self._residual[blocks] = lost
        self.tables.keep_residuals()
        self._give(is_finite, over)
        self._copy(over)
        if decision := self.group.has_made_a_round():
            self.tell(decision)
        now, members = time.monotonic(), len(cuts)
        self.state.set(
            at=time.time(), seconds=round(now - met, 6), bytes=2 * size * (members - 1) // members + sent,
            members=tuple(self.group.members),
        )  # fmt: skip
        self.record(
            round=self.header.round, step=self.header.cut_step, members=self.group.members, weights=[one[1] for one in cuts],
            checksum=self.header.checksum, norm=self.header.norm, bytes=self.header.bytes, rows=sum(sum_rows),
            waited=round(met - begin, 4), summed=round(summed - met, 4), given=round(now - summed, 4),
        )  # fmt: skip
        return True

    def _give(self, is_finite: bool, over: bool) -> None:
        """Gives the job what the round has decided, if it has."""
        if over:
            return
        if not is_finite and self.options.heal:
            step, counted = self.box.step, self.header.counted_step
            self.state.set(
                phase="assign", dropped_steps=self.header.dropped_steps + max(step - counted, 0),
                counted_step=max(step, counted), ticket=self.header.ticket + 1,
            )  # fmt: skip
            self.tell(f"the job's values are not finite: it is given the anchor of round {self.header.round}")
        elif not is_finite:
            self.tell("the job's values are not finite: it takes no part in rounds. Start the workers with --on-nan skip and "
                      "the bridge with --heal, and it gets the anchor")  # fmt: skip
        self.resolve()

    def _copy(self, over: bool) -> None:
        """Gives the job the values that box 0 has of the variables to copy. Idempotent: the next round repeats it."""
        if not self.options.copy or 0 not in self.group.members:
            return
        values = {name: np.ascontiguousarray(self.box.view.values(name)) for name in self.options.copy}
        for array in values.values():
            self.group.broadcast(array.reshape(-1).view(np.uint8), self.group.members.index(0))
        if self.options.box != 0 and not over and self.header.phase == "idle":  # else the ticket is still of use
            self.state.set(ticket=self.header.ticket + 1)
            self.box.take(self.header.ticket, values)

    # ---- All rounds.

    def run(self) -> bool:
        """Makes rounds until all jobs are over. True: the other boxes' jobs go on, and this box's has been made again."""
        tries = 0
        is_waiting = stays = False
        while True:
            try:
                self.resolve()
                self.join(stays)
                tries, is_waiting, stays = 0, False, False
                self.resolve()
                self.tell(f"group of {len(self.group.members)} of {self.options.boxes} boxes at round {self.header.round}",
                    members=self.group.members)  # fmt: skip
                while True:
                    self.wait()
                    if not self.round():
                        return False
                    if self._may_leave and self.box.is_remade:
                        return True
            except ps_shm.Timeout as error:  # of a change: the others go on without this box meanwhile
                self.group.close()
                if not is_waiting:
                    self.tell(f"waits outside of the group: {error}")
                is_waiting = True
            except FAILURES as error:  # bridge.G4
                if isinstance(error, ps_shm.Error):
                    raise
                self.group.close()
                stays = isinstance(error, WantedError)
                if not stays:
                    self.group.has_failed()
                reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
                if tries == 0:
                    self.tell(f"forms a new group while the job trains on: {reason}")
                else:
                    self.record(event=f"tries again: {reason}")
                tries += 1
                if self.box.is_over and tries > MAX_LAST_TRIES:
                    self.tell("the job is over, and the other boxes are gone")
                    return self.box.is_remade
                time.sleep(RETRY_SECONDS)

    def leave(self) -> Group:
        """Leaves the group and removes the state. What is left is for the bridge of the new job."""
        self.group.close()
        self.tell(f"job '{self.options.job}' was made again: leaves the old one at round {self.header.round}")
        self.state.remove()
        return self.group

    def end(self) -> None:
        """Writes the last anchor, and removes the state."""
        self.group.close()
        self.tell(f"ended at round {self.header.round}", end=True, round=self.header.round, checksum=self.header.checksum,
            dropped=self.header.dropped, dropped_steps=self.header.dropped_steps)  # fmt: skip
        if self.options.save:
            shapes = {part.name: part.shape for part in self.box.parts}
            values: dict[str, Any] = {name: array.reshape(shapes[name]) for name, array in self.box.values(self.state).items()}
            for anchor in self.tables.anchors:
                values[f"{anchor.table.name}.keys"] = anchor.array(KEYS, anchor.count)
                values[f"{anchor.table.name}.rows"] = anchor.array(ANCHOR, anchor.count)
            with zipfile.ZipFile(self.options.save, "w") as file:  # np.savez() refuses some names
                for name, array in values.items():
                    with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
        self.state.remove()


def _of_the_new_job(options: Options, group: Group) -> Bridge:
    """The bridge of a job that was made again. Exits if a bridge that was started for it is there."""
    try:
        return Bridge(options, lambda _: group)
    except ps_shm.Error as error:
        if error.code != ps_shm.ErrorCode.ALREADY_EXISTS:
            raise
        print(f"bridge {options.box}: the new job '{options.job}' has another bridge", file=sys.stderr, flush=True)
        raise SystemExit(SECOND) from error


def run(options: Options) -> int:
    """Runs a bridge to its end. The exit code."""
    for one in (signal.SIGINT, signal.SIGTERM):  # what it keeps holds at any moment
        signal.signal(one, signal.SIG_DFL)
    torch.set_num_threads(1)
    try:
        bridge = Bridge(options)
        while bridge.run():
            group = bridge.leave()
            del bridge  # frees what it keeps of the old job
            bridge = _of_the_new_job(options, group)
        bridge.end()
    except (ps_shm.Error, OSError) as error:
        print(f"bridge {options.box}: {error}", file=sys.stderr)
        return 1
    os._exit(0)  # a thread of torch.distributed may wait for a box that is gone
