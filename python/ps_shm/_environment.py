"""What launch_shm, torchrun, MPI and SLURM put into the environment: a process's rank, their number, the job."""

import os
from typing import Optional

# Those that count the processes of this machine come first. The others count all processes of the launcher, and are
# used only if none of these processes is known to be on another machine.
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
GLOBAL_RANKS = ("RANK", "PMIX_RANK", "PMI_RANK")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
GLOBAL_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def _has_several_machines() -> bool:
    for all_of_them, here in zip(GLOBAL_SIZES, LOCAL_SIZES):
        sizes = os.environ.get(all_of_them), os.environ.get(here)
        if all(sizes) and sizes[0] != sizes[1]:
            return True
    nodes = os.environ.get("SLURM_STEP_NUM_NODES") or os.environ.get("SLURM_NNODES")  # a step may use fewer of them
    return bool(nodes) and nodes != "1"


def _first(local: tuple[str, ...], of_all: tuple[str, ...]) -> Optional[tuple[str, int]]:
    for name in local if _has_several_machines() else local + of_all:
        text = os.environ.get(name, "")
        if not text or text == "-1":  # PyTorch's -1: this process has no rank
            continue
        if not text.isdecimal():
            raise ValueError(f"environment variable {name}: '{text}' is not an integer")
        return name, int(text)
    return None


def rank() -> Optional[tuple[str, int]]:
    """The rank of this process among those launched together on this machine, after the variable that has it.

    None if no variable has it. Raises ValueError if the variable is not a non-negative integer.
    """
    return _first(LOCAL_RANKS, GLOBAL_RANKS)


def world_size() -> Optional[int]:
    """The number of processes launched together on this machine; None if no variable has it.

    Raises ValueError if the variable is not a non-negative integer.
    """
    found = _first(LOCAL_SIZES, GLOBAL_SIZES)
    return found[1] if found else None


def launched_job() -> Optional[str]:
    """The job of the launch_shm that has started this process; None if torchrun or nothing of the kind has."""
    return job() if os.environ.get("LOCAL_RANK") and "TORCHELASTIC_RUN_ID" not in os.environ else None


def job() -> Optional[str]:
    """The job's name from PS_SHM_JOB, which launch_shm or a Server in a parent process sets; None if not set."""
    return os.environ.get("PS_SHM_JOB") or None
