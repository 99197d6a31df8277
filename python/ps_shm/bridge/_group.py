"""Groups of bridges: who takes part in a round, and what they send each other, by torch.distributed."""

import datetime
import json
import os
import random
import socket
import sys
import time
from typing import Any, NoReturn, Optional

import numpy as np
import torch
import torch.distributed as dist

from ._options import Options, shown_place

POLL_SECONDS = 0.02
GATHER_SECONDS = 2.0  # for which a new group waits for boxes that are not there yet
CONNECT_SECONDS = 3.0  # for a store
SECOND = 3  # exit code: the box has another bridge
MAX_MESSAGE = 1 << 26  # bytes
MAX_FAILED = 2  # groups in a row without a round; then a box is left out, another one each time
FIRST_LEAVE_SECONDS, LAST_LEAVE_SECONDS = 60.0, 3600.0  # for which it is left out then; doubled each time


# What torch.distributed raises where a peer or a store is gone.
FAILURES = (RuntimeError, OSError)


class BrokenError(RuntimeError):
    """The group is lost. The job trains on, and the bridges that are there form another group."""


class WantedError(BrokenError):
    """A box that is not in the group wants to take part: all form another group, with the same store."""


def _put(store: dist.TCPStore, key: str, value: str) -> None:
    store.set(key, value)
    store.add(f"{key}/is-there", 1)


def _has(store: dist.TCPStore, key: str) -> bool:
    """Whether the key was put. Store.check() is not there before PyTorch 2."""
    return bool(store.add(f"{key}/is-there", 0))


class Group:
    """The group of this bridge. Box k's bridge keeps a store at place number k; the first that answers is used."""

    def __init__(self, options: Options) -> None:
        """Opens the store that this bridge keeps, if it keeps one."""
        self.options = options
        self.number = 0
        self._token = random.getrandbits(62)  # of this process: an earlier one may have been in a group of the same name
        began = time.strftime("%Y-%m-%d %H:%M:%S%z")
        self._who = f"process {os.getpid()} on {socket.gethostname()}, started {began}"
        self.members: list[int] = []
        self._own: Optional[dist.TCPStore] = None
        self._store: Optional[dist.TCPStore] = None
        self._place = 0
        self._former: tuple[int, str] = (-1, "")  # place and name of the last group
        self._came: dict[int, int] = {}  # whom this leader found when it formed its last group: boxes, and their tokens
        self._seconds: set[int] = set()  # tokens of those whom this leader has told that their box has another bridge
        self._failed = 0  # groups of these in a row that have failed before a round
        self._suspect: Optional[int] = None  # the box without which the last one was formed
        self._left_out: dict[int, tuple[float, float]] = {}  # by box: until when, and for how many seconds
        self._device = "cuda" if options.backend == "nccl" else "cpu"
        if options.box < len(options.meet) and options.keeps_store:
            try:
                self._own = self._open(options.box, True)
                if self._own.add("keepers", 1) > 1:  # where another machine has that address, this is its store
                    self._end_as_second(self._own.get("keeper").decode())
                self._own.set("keeper", self._who)
            except FAILURES as error:
                place = shown_place(*options.meet[options.box])
                raise SystemExit(f"bridge {options.box}: cannot keep a store at {place}: {error}")

    @property
    def rank(self) -> int:
        """This box's position in the group."""
        return self.members.index(self.options.box)

    def _end_as_second(self, first: str) -> NoReturn:
        print(f"bridge {self.options.box}: box {self.options.box} has another bridge: {first}. Give each box a number of its own",
              file=sys.stderr, flush=True)  # fmt: skip
        raise SystemExit(SECOND)

    def _timeout(self, seconds: float) -> datetime.timedelta:
        return datetime.timedelta(seconds=seconds)

    def _open(self, place: int, is_own: bool) -> dist.TCPStore:
        host, port = self.options.meet[place]
        store = dist.TCPStore(
            host, port, world_size=None, is_master=is_own, timeout=self._timeout(CONNECT_SECONDS), wait_for_workers=False
        )
        store.set_timeout(self._timeout(self.options.timeout))  # for the others, who may be slow
        return store

    def close(self) -> None:
        """Leaves the group. The others notice."""
        self.members = []
        if dist.is_initialized():
            dist.destroy_process_group()
        # PyTorch numbers its groups, also those whose making has failed, and all members have to have the same number.
        dist.distributed_c10d._group_count = 0

    def form(self, promised: int, is_new: bool, stays: bool) -> int:
        """Forms a group with the bridges that are there, and returns its number.

        A group has more than half of the boxes, without those whose state is new, or all boxes (bridge.G1). Its number
        is greater than `promised` of each of them (bridge.G2). `stays`: begins with the store of the last group, in
        place of the first. Raises BrokenError if none comes about in time.
        """
        self.close()
        failure: Optional[Exception] = None
        places = list(range(len(self.options.meet)))
        for place in sorted(places, key=lambda place: not stays or place != self._place):
            try:
                return self._form_at(place, promised, is_new)
            except FAILURES as error:  # with the store of one box gone, the next one's is used
                failure = error
                self.close()
        raise BrokenError(str(failure).split("\n")[0]) from failure

    def _form_at(self, place: int, promised: int, is_new: bool) -> int:
        if self._own is not None and place == self.options.box:
            self._store = self._own
        elif self._store is None or place != self._place:
            self._store = self._open(place, False)
        self._place = place
        try:
            return self._form(self._store, promised, is_new)
        except FAILURES:
            if self._store is not self._own:  # it may be lost
                self._store = None
            raise

    def _form(self, store: dist.TCPStore, promised: int, is_new: bool) -> int:
        leads = self._place == self.options.box
        deadline = time.monotonic() + self.options.timeout
        if leads:
            store.set("group", f"{time.time_ns()}")
        came_to = asked = ""
        _put(store, f"who/{self._token}", self._who)
        while True:
            name = store.get("group").decode()  # waits until its leader has come
            if _has(store, f"second/{self._token}"):
                self._end_as_second(store.get(f"second/{self._token}").decode())
            has_failed = (self._place, name) == self._former
            if name != came_to and not has_failed:
                came_to = name
                _put(store, f"{name}/here/{self.options.box}", json.dumps([promised, is_new, self._token]))
                if leads:
                    self._lead(store, name, deadline)
            has_members = _has(store, f"{name}/members")
            if has_members and not has_failed:
                number, tokens = json.loads(store.get(f"{name}/members"))
                if tokens.get(str(self.options.box)) == self._token:
                    break
            if name != asked and (has_members or has_failed):  # it was formed without this box, or has failed here
                asked = name
                for key in (f"{name}/again/{self.options.box}", f"{name}/again"):
                    _put(store, key, str(self._token))
            self._pause(deadline, "too few boxes are there")
        self._former = (self._place, name)
        members = [int(box) for box in tokens]  # in ascending order
        if number <= promised:
            raise BrokenError("a group of an earlier time")
        dist.init_process_group(
            self.options.backend,
            store=dist.PrefixStore(name, store),
            rank=members.index(self.options.box),
            world_size=len(members),
            timeout=self._timeout(self.options.timeout),
        )
        self.number, self.members = int(number), members
        return self.number

    def _pause(self, deadline: float, failure: str) -> None:
        if time.monotonic() > deadline:
            raise BrokenError(failure)
        time.sleep(POLL_SECONDS)

    def _lead(self, store: dist.TCPStore, name: str, deadline: float) -> None:
        boxes = self.options.boxes
        complete_by = time.monotonic() + GATHER_SECONDS
        while True:
            asked = [box for box in range(boxes) if not self._is_left_out(box)]
            here = {box: json.loads(store.get(f"{name}/here/{box}")) for box in asked if _has(store, f"{name}/here/{box}")}
            if len(here) == boxes or (self._are_enough(here) and time.monotonic() > complete_by):
                break
            self._pause(deadline, f"{len(here)} of {boxes} boxes are there")
        tokens = {box: token for box, (_, _, token) in here.items()}
        if tokens != self._came:
            self._came, self._failed = tokens.copy(), 0
        self._suspect = self._next_suspect(here)
        if self._suspect is not None:
            del here[self._suspect], tokens[self._suspect]
        _put(store, f"{name}/members", json.dumps([max(promised for promised, _, _ in here.values()) + 1, tokens]))

    def _are_enough(self, here: dict[int, tuple[int, bool, int]]) -> bool:
        return 2 * sum(not is_new for _, is_new, _ in here.values()) > self.options.boxes

    def _is_left_out(self, box: int) -> bool:
        return time.monotonic() < self._left_out.get(box, (0.0, 0.0))[0]

    def _next_suspect(self, here: dict[int, tuple[int, bool, int]]) -> Optional[int]:
        """A box that is there and that the others may not reach: groups of the same bridges have failed one after the other."""
        others = sorted((box for box in here if box != self.options.box), key=lambda box: box not in self._left_out)
        least = 1 if any(box in self._left_out for box in others) else MAX_FAILED
        if self._failed < least or not others:
            return None
        suspect = others[(self._failed - least) % len(others)]  # first those that were left out before
        return suspect if self._are_enough({box: said for box, said in here.items() if box != suspect}) else None

    def has_failed(self) -> None:
        """Says that a group has failed."""
        self._failed += 1

    def has_made_a_round(self) -> Optional[str]:
        """Says that the group works. What its leader decides from that, if there is something to say."""
        suspect = self._suspect
        self._failed, self._suspect = 0, None
        if suspect is None:
            return None
        _, before = self._left_out.get(suspect, (0.0, FIRST_LEAVE_SECONDS / 2))
        seconds = min(2 * before, LAST_LEAVE_SECONDS)
        self._left_out[suspect] = (time.monotonic() + seconds, seconds)
        return f"box {suspect} is left out for {seconds:g} s: no group with it has made a round. Is its address right?"

    def _waiting(self) -> dict[int, int]:
        """Boxes that wait for a new group, as far as this bridge knows, the one that keeps the store, and their tokens."""
        store, name = self._store, self._former[1]
        if self._place != self.options.box or store is None or not _has(store, f"{name}/again"):
            return {}
        asked = (box for box in range(self.options.boxes) if box != self._suspect and not self._is_left_out(box))
        tokens = {box: int(store.get(f"{name}/again/{box}")) for box in asked if _has(store, f"{name}/again/{box}")}
        return {box: token for box, token in tokens.items() if token not in self._seconds}

    def wants_another(self) -> bool:
        """Whether a box waits for a new group, as far as this bridge knows."""
        return bool(self._waiting())

    def still_wants_another(self, leaving: list[int]) -> bool:
        """The same once all members have spoken since: where one of them is of the box that waits, the box has two bridges.

        A bridge that waits for a box of `leaving` goes on waiting: the member of that box is about to leave the group.
        """
        waiting = {box: token for box, token in self._waiting().items() if box not in leaving}
        for box, token in waiting.items():
            if box in self.members and self._store is not None:
                self._seconds.add(token)
                _put(self._store, f"second/{token}", self._store.get(f"who/{self._came[box]}").decode())
        return bool(self._waiting().keys() - set(leaving))

    def gather(self, what: Any) -> list[Any]:
        """Gives each member what all have said, in their order. As JSON: nothing of it is run."""
        mine = torch.frombuffer(bytearray(json.dumps(what).encode()), dtype=torch.uint8)
        size = torch.tensor([mine.numel()], device=self._device)
        sizes = [torch.zeros_like(size) for _ in self.members]
        dist.all_gather(sizes, size)
        most = max(int(one) for one in sizes)
        if not 0 < most <= MAX_MESSAGE:
            raise BrokenError(f"a message of {most} bytes")
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: mine.numel()] = mine
        all_of_them = [torch.zeros(most, dtype=torch.uint8, device=self._device) for _ in self.members]
        dist.all_gather(all_of_them, padded.to(self._device))
        return [json.loads(bytes(one[: int(n)].cpu().numpy())) for one, n in zip(all_of_them, sizes)]

    def unite(self, flags: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
        """Sets each flag that a member has set."""
        tensor = torch.from_numpy(flags)
        shared = tensor.to(self._device)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        tensor.copy_(shared)

    def broadcast(self, array: "np.ndarray[Any, Any]", source: int) -> None:
        """Copies an array of the member at position `source` to all."""
        tensor = torch.from_numpy(array)
        shared = tensor.to(self._device)
        if array.size:
            dist.broadcast(shared, source)
        tensor.copy_(shared)

    def exchange(self, sent: "list[np.ndarray[Any, Any]]", received: "list[np.ndarray[Any, Any]]") -> None:
        """Sends the array at each member's position to it, and receives one from it. That at its own position is not used."""
        others = [position for position in range(len(self.members)) if position != self.rank]
        into = [torch.from_numpy(received[position]) for position in others]
        shared = [one.to(self._device) for one in into]
        operations = [
            dist.P2POp(dist.isend, torch.from_numpy(sent[position]).to(self._device), position)
            for position in others
            if sent[position].size
        ] + [dist.P2POp(dist.irecv, one, position) for one, position in zip(shared, others) if one.numel()]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        for one, of in zip(into, shared):
            one.copy_(of)
