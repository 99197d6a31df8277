"""The job of a bridge's own box: what a round takes from it, and gives to it."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Optional, TypeVar

import numpy as np
import torch

import ps_shm

from .. import _core
from ._options import Options
from ._tables import Table

Made = TypeVar("Made")

BLOCK: int = _core.BridgeState.BLOCK
POLL_SECONDS = 0.02
LEAVING_SECONDS = 5.0
CUT_SECONDS = 1.0  # how long a cut waits for another snapshot, such as that of a checkpoint
CHANGE_SECONDS = 5.0  # mode sync: how long the others' next round may wait for a step of this job


class Part:
    """A variable of the model, and its place among the blocks."""

    def __init__(self, info: ps_shm.VariableInfo, first: int, sparse: str, has_optimizer: bool) -> None:
        """A variable whose first block is number `first`. sparse: as of Options. has_optimizer: others have a rule but add."""
        self.name, self.shape, self.first = info.name, tuple(info.shape), first
        self.size = math.prod(self.shape)
        self.blocks = -(-self.size // BLOCK)
        self.is_sparse = info.layout == "inplace" and sparse == "inplace"  # a mean is over the boxes that changed an element
        # By the outer rule; otherwise A' = A + G.
        self.is_stepped = not self.is_sparse and not (has_optimizer and info.rule == "add")

    def __str__(self) -> str:
        """What all boxes have to have alike."""
        return f"{self.shape}{', inplace' if self.is_sparse else ''}{'' if self.is_stepped or self.is_sparse else ', rule add'}"


class Box:
    """The job, which need not exist yet."""

    def __init__(self, options: Options) -> None:
        """Waits until the job has made a step, so that all of its variables are declared. A signal ends the wait."""
        self.options = options
        self._path = f"/dev/shm/ps_shm.{options.job}"
        tell_at = time.monotonic() + 1
        while True:
            if time.monotonic() > tell_at:
                print(f"bridge {options.box}: waits for the first step of job '{options.job}'", file=sys.stderr, flush=True)
                tell_at = float("inf")
            if found := self._find():
                break
            time.sleep(POLL_SECONDS)
        self.view, variables, self._job_inode = found
        self.instance = self.view.instance
        self._has_ended = False  # as a guest was told
        # An earlier bridge of the job took the variables that there were.
        text = _core.BridgeState.look(options.job, self.instance)
        self.declared = json.loads(text)["variables"] if text else len(variables)
        infos = {info.name: info for info in self.view.tables()}
        floats_by_key = [name for name in infos if _core.BridgeState.table_facts(options.job, name)[3] == "float32"]
        chosen = json.loads(text).get("tables", []) if text else sorted(floats_by_key)  # the same order on all boxes
        self.tables = [Table(options, number, infos[name]) for number, name in enumerate(chosen)]
        self.declared_late = sorted(v.name for v in variables[self.declared :])
        variables = variables[: self.declared]
        self._dtypes = {v.name: v.dtype for v in variables}
        self._copied_shapes = {v.name: f"{v.dtype} {tuple(v.shape)}" for v in variables if v.name in options.copy}
        for variable in variables:
            if variable.layout == "single-writer":
                raise ps_shm.Error(
                    f"variable '{variable.name}' of job '{options.job}' has layout single-writer, which a bridge cannot change; "
                    "use layout versioned"
                )
        for name in options.copy:
            if name not in self._copied_shapes:
                raise ps_shm.Error(
                    f"--copy: job '{options.job}' has no variable '{name}'; it has {', '.join(sorted(self._dtypes))}"
                )
        variables = [v for v in variables if v.name not in options.copy]
        self.left_alone = sorted(v.name for v in variables if v.dtype != "float32")
        self.left_alone += sorted(f"table {name}" for name in infos.keys() - set(floats_by_key))
        self.declared_late += sorted(f"table {name}" for name in set(floats_by_key) - set(chosen))
        self.parts: list[Part] = []
        self.blocks = 0
        floats = sorted((v for v in variables if v.dtype == "float32"), key=lambda v: v.name)
        for variable in floats:
            self.parts.append(Part(variable, self.blocks, options.sparse, any(v.rule != "add" for v in floats)))
            self.blocks += self.parts[-1].blocks
        if not self.parts and not self.tables:
            raise ps_shm.Error(f"job '{options.job}' has no float32 variable or table whose changes could be exchanged")
        self._buffer = np.empty(max((part.size for part in self.parts), default=0), np.float32)

    @property
    def step(self) -> int:
        """The number of global steps done."""
        return self.view.global_step

    @property
    def is_over(self) -> bool:
        """Whether the job has done its last step, or has been ended, removed or replaced."""
        return self._has_ended or self.view.finished or self._inode() != self._job_inode

    @property
    def is_remade(self) -> bool:
        """Whether the job was replaced by another one, which has made a step, so that a bridge of it can begin."""
        return self._inode() not in (None, self._job_inode) and self._find() is not None

    def _find(self) -> Optional[tuple[ps_shm.View, list[ps_shm.VariableInfo], Optional[int]]]:
        """The job that has the name now, its variables and its inode, once it has made a step."""
        try:
            inode = self._inode()
            view = ps_shm.View(self.options.job)
            variables = view.variables()
            # A job that was restored begins with variables of its checkpoint that nobody has declared yet.
            has_stepped = view.global_step > view.settings["first_step"]
            if has_stepped and all(v.initialised for v in variables) and inode == self._inode():
                return view, variables, inode
        except ps_shm.Error as error:
            if error.code not in (ps_shm.ErrorCode.NOT_FOUND, ps_shm.ErrorCode.UNAVAILABLE):
                raise
        return None

    def _inode(self) -> Optional[int]:
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:
            return None

    def shapes(self) -> dict[str, str]:
        """What all boxes' jobs have to have alike."""
        shapes = {part.name: str(part) for part in self.parts} | self._copied_shapes
        return shapes | {f"table {table.name}": str(table) for table in self.tables}

    def fragment(self, round_number: int) -> range:
        """The blocks that the round exchanges."""
        count = self.options.fragments
        at = round_number % count
        return range(self.blocks * at // count, self.blocks * (at + 1) // count)

    def blocks_of(self, has: Callable[[Part], bool]) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        """For each block, whether its variable is such a one."""
        kinds = np.zeros(self.blocks, np.uint8)
        for part in self.parts:
            kinds[part.first : part.first + part.blocks] = has(part)
        return kinds

    def snapshot(self) -> _core.Snapshot:
        """A snapshot. Raises ps_shm.Timeout where the job cannot have one now: another process has one, or workers are stopped."""
        try:
            return self.view.snapshot(group=self.options.group, wait=CUT_SECONDS)
        except ps_shm.Error as error:
            if error.code == ps_shm.ErrorCode.UNAVAILABLE:  # workers are stopped
                raise ps_shm.Timeout(str(error)) from error
            raise

    def cut(self, state: _core.BridgeState, fragment: range) -> tuple[int, bool]:
        """Takes a snapshot and encodes what the box has done since its anchor. Its global step, and whether it is finite.

        In the other blocks it sends nothing, so that all of what it has done there is still to be counted. Raises
        ps_shm.Timeout as snapshot().
        """
        is_finite = True
        for begin, end in ((0, fragment.start), (fragment.stop, self.blocks)):
            state.present[begin:end] = 0
            state.base[begin * BLOCK : end * BLOCK] = state.anchor[begin * BLOCK : end * BLOCK]
        if not self.parts:
            return self.step, True
        with self.snapshot() as snapshot:
            for part in self.parts:
                begin, end = max(part.first, fragment.start), min(part.first + part.blocks, fragment.stop)
                if begin >= end:
                    continue
                values = self._buffer[: part.size]
                snapshot.copy(part.name, values)
                is_finite &= state.cut(values[(begin - part.first) * BLOCK : (end - part.first) * BLOCK], begin)
            return snapshot.global_step, is_finite

    def last_cut(self, state: _core.BridgeState, from_base: bool) -> bool:
        """The same of a job that is over, since its anchor or its base. Whether it is finite."""
        self.wait_for_workers()
        return all([state.last_cut(self.view.values(part.name), part.first, from_base) for part in self.parts])

    def wait_for_workers(self) -> None:
        """Until those of a job that is over have left, for LEAVING_SECONDS at most: until then they may finish a push."""
        end = time.monotonic() + LEAVING_SECONDS
        while time.monotonic() < end and any(worker.state == "alive" for worker in self.view.workers()):
            time.sleep(POLL_SECONDS)

    def found(self, state: _core.BridgeState) -> int:
        """Makes the job's values the anchor. Returns their global step."""
        if not self.parts:
            return self.step
        with self.snapshot() as snapshot:
            state.anchor[:] = 0
            for part in self.parts:
                begin = part.first * BLOCK
                snapshot.copy(part.name, state.anchor[begin : begin + part.size])
            return snapshot.global_step

    def correction(self, state: _core.BridgeState) -> dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]:
        """What is to be added to the job: anchor - base, of the variables in which it is not 0."""
        deltas = {}
        for part in self.parts:
            delta = np.empty(part.size, np.float32)
            if state.subtract(part.first, delta):
                deltas[part.name] = delta
        return deltas

    def values(self, state: _core.BridgeState) -> dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]:
        """The anchor by variables, without a copy."""
        begins = {part.name: part.first * BLOCK for part in self.parts}
        return {part.name: state.anchor[begins[part.name] : begins[part.name] + part.size] for part in self.parts}

    def add(self, ticket: int, deltas: dict[str, Any], in_doubt: dict[str, Any]) -> Optional[int]:
        """Adds to the job, once for each ticket.

        Where it cannot tell what an earlier call has added, it sets the values that `in_doubt` has. Returns the number of
        those elements; None: the job is over.
        """
        return self._change("add_once", ticket, deltas, in_doubt={name: in_doubt[name] for name in deltas})

    def assign(self, ticket: int, values: dict[str, Any]) -> bool:
        """Makes the job begin with these values, once for each ticket. False: the job is over."""
        return self._change("assign_once", ticket, values, reset=True) is not None

    def take(self, ticket: int, values: dict[str, Any]) -> bool:
        """Gives the job the values of another box in which they differ from its own. False: the job is over."""
        others = {name: array for name, array in values.items() if array.tobytes() != self.view.values(name).tobytes()}
        for name in others:
            if self._dtypes[name] == "bfloat16":  # its values, which are floats here, are numbers of that type
                others[name] = torch.from_numpy(others[name]).to(torch.bfloat16)
        return self._change("assign_once", ticket, others) is not None

    def _change(self, verb: str, ticket: int, arrays: dict[str, Any], **more: Any) -> Optional[int]:
        def change() -> Optional[int]:
            with ps_shm.Guest(self.options.job, group=self.options.group, wait=CHANGE_SECONDS) as guest:
                if ps_shm.View(self.options.job).instance != self.instance:  # a new job of that name
                    return None
                return getattr(guest, verb)(ticket, arrays, wait=CHANGE_SECONDS, **more) or 0

        return self.as_guest(change) if arrays else 0

    def as_guest(self, change: Callable[[], Made]) -> Optional[Made]:
        """Calls what joins the job as a guest. None: the job is over. Raises ps_shm.Timeout where another guest is there."""
        try:
            return change()
        except ps_shm.JobFinished:
            self._has_ended = True
            return None
        except ps_shm.Error as error:
            if self.is_over:
                return None
            if error.code == ps_shm.ErrorCode.RANK_TAKEN:  # another guest is there
                raise ps_shm.Timeout(str(error)) from error
            raise
