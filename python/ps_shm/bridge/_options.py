"""The options of `python -m ps_shm.bridge`."""

import argparse
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from .. import _environment

DEFAULT_PORT = 29400
MAX_BOXES = 1000


@dataclass(frozen=True)
class Options:
    """How a bridge works. The boxes have to agree about those of agreed()."""

    job: str
    box: int  # this box's number, from 0
    boxes: int
    meet: tuple[tuple[str, int], ...]  # where the bridges of boxes 0, 1, ... keep a store
    keeps_store: bool = True  # False: torchrun's agent does
    every: int = 500  # global steps between two rounds
    seconds: float = 5.0  # or so many seconds, if that is earlier
    timeout: float = 20.0  # of a transfer
    backend: str = "gloo"
    group: str = ""  # Unix group
    heal: bool = False
    save: str = ""
    report: str = ""
    wire: str = "float32"
    outer: str = "add"
    rate: float = 1.0
    momentum: float = 0.9
    combine: str = "mean"
    sparse: str = "inplace"
    fragments: int = 1  # a round exchanges one of so many parts of the model, in turns
    copy: tuple[str, ...] = ()  # variables that the other boxes take from box 0
    table_keys: int = 0  # the most keys of a table that are exchanged; 0: four times its max_rows

    def agreed(self) -> dict[str, object]:
        """What has to be the same on all boxes."""
        names = ("boxes", "seconds", "timeout", "wire", "outer", "rate", "momentum", "combine", "sparse", "fragments", "copy",
                 "table_keys")  # fmt: skip
        return {name: getattr(self, name) for name in names}


def _first_number(names: Sequence[str]) -> Optional[int]:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None


def _is_ipv6(host: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(host))
    except ValueError:
        return False


def _places(text: str) -> tuple[tuple[str, int], ...]:
    places = []
    for place in text.split(","):
        host, port = place, str(DEFAULT_PORT)
        if not _is_ipv6(place):
            found = re.fullmatch(r"(?:\[(.+)\]|([^][:]+))(?::([0-9]+))?", place)
            if not found or (found[1] and not _is_ipv6(found[1])):
                hint = "; an address of IPv6 has brackets: [ADDRESS]:PORT" if place.count(":") > 1 else ""
                raise argparse.ArgumentTypeError(f"'{place}' is not HOST:PORT{hint}")
            host, port = found[1] or found[2], found[3] or port
        if not 0 < int(port) < 65536:
            raise argparse.ArgumentTypeError(f"'{place}' is not HOST:PORT")
        places.append((host, int(port)))
    return tuple(places)


def shown_place(host: str, port: object) -> str:
    """As --meet has it."""
    return f"[{host}]:{port}" if _is_ipv6(host) else f"{host}:{port}"


def _names(text: str) -> tuple[str, ...]:
    names = text.split(",")
    if not all(names):
        raise argparse.ArgumentTypeError(f"'{text}' has a name that is empty")
    return tuple(sorted(names))


def _positive(kind: type, what: str):  # type: ignore[no-untyped-def]
    def parse_one(text: str):  # type: ignore[no-untyped-def]
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"'{text}' is not {what}")
        return value

    return parse_one


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ps_shm.bridge",
        description="Joins the jobs of several boxes: one bridge beside the job of each box. See docs/boxes.md.",
        allow_abbrev=False,
    )
    number, time = _positive(int, "an integer above 0"), _positive(float, "a number above 0")
    add = parser.add_argument
    add("--job", default=_environment.job(), help="the job of this box (default: PS_SHM_JOB)")
    add("--box", type=int, help="number of this box, from 0 (default: RANK, SLURM_NODEID, or MPI's rank)")
    add("--boxes", type=number, help="number of boxes (default: WORLD_SIZE, SLURM_NNODES, or MPI's size)")
    add("--meet", type=_places, metavar="HOST:PORT[,...]",
        help="where box 0's bridge is reached, and, for the case that it is gone, box 1's, and so on "
             "(default: MASTER_ADDR:MASTER_PORT)")
    add("--every", type=number, default=500, metavar="STEPS", help="global steps of the job between two rounds (500)")
    add("--seconds", type=time, default=5.0, help="or so many seconds, if that is earlier (5)")
    add("--wire", choices=("float32", "bfloat16", "int8"), default="float32",
        help="how differences are sent; what that loses stays in the job and is sent later (float32)")
    add("--outer", choices=("add", "momentum", "nesterov"), default="add", help="the outer rule (add)")
    add("--rate", type=time, help="the outer rule's learning rate (1; nesterov: 0.7)")
    add("--momentum", type=time, default=0.9, help="the outer rule's momentum (0.9)")
    add("--combine", choices=("mean", "sum"), default="mean", help="mean or sum of what the boxes have done (mean)")
    add("--sparse", choices=("inplace", "none"), default="inplace",
        help="of which variables an element is averaged over the boxes that changed it, without the outer momentum: those "
             "with the layout inplace, or none (inplace)")
    add("--fragments", type=number, default=1, metavar="P",
        help="a round exchanges one of P parts of the model, in turns, so that it takes a P-th of the time (1)")
    add("--copy", type=_names, default=(), metavar="NAME[,...]",
        help="variables that the other boxes take from box 0 in each round, such as counters: those of other types than "
             "float32 are left alone otherwise")
    add("--table-keys", type=number, default=0, metavar="N",
        help="of a table by key, rows of so many keys at most are exchanged, whether the box has these rows now or not (four "
             "times the table's max_rows)")
    add("--heal", action="store_true",
        help="give the anchor to a job whose values are not finite; its workers have to skip such gradients "
             "(--on-nan skip)")
    add("--timeout", type=time, default=20.0, metavar="SECONDS",
        help="how long a transfer waits for a box before the others go on without it (20)")
    add("--backend", choices=("gloo", "nccl", "mpi", "ucc"), default="gloo", help="engine of torch.distributed (gloo)")
    add("--group", default="", help="the Unix group with which the job is shared")
    add("--save", default="", metavar="FILE", help="write the last anchor to this .npz file at the end")
    add("--report", default="", metavar="FILE", help="append a JSON object for each round and event")
    return parser


def parse(arguments: Sequence[str]) -> Options:
    """Returns the options, or ends the program with a message."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    if given["box"] is None:
        given["box"] = _first_number(("RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    if given["boxes"] is None:
        given["boxes"] = _first_number(("WORLD_SIZE", "SLURM_NNODES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    if given["meet"] is None and os.environ.get("MASTER_ADDR"):
        try:
            given["meet"] = _places(shown_place(os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT") or DEFAULT_PORT))
        except argparse.ArgumentTypeError as error:
            parser.error(f"MASTER_ADDR and MASTER_PORT: {error}")
        given["keeps_store"] = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    for name in ("job", "box", "boxes", "meet"):
        if given[name] is None:
            parser.error(f"--{name} is required")
    if given["boxes"] > MAX_BOXES:
        parser.error(f"--boxes {given['boxes']}: at most {MAX_BOXES}")
    if not 0 <= given["box"] < given["boxes"]:
        parser.error(f"--box {given['box']}: the boxes are 0 to {given['boxes'] - 1}")
    if given["timeout"] <= given["seconds"]:
        parser.error(f"--timeout {given['timeout']:g} has to be longer than --seconds {given['seconds']:g}, which a box may "
                     "take to come to a round")
    if given["save"]:
        given["save"] += "" if given["save"].endswith(".npz") else ".npz"
        folder = os.path.dirname(given["save"]) or "."
        if not os.access(folder, os.W_OK):
            parser.error(f"--save {given['save']}: there is no folder '{folder}' in which this user may write")
    if given["rate"] is None:
        given["rate"] = 0.7 if given["outer"] == "nesterov" else 1.0
    return Options(**given)
