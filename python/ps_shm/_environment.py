"""What launch_shm, torchrun, MPI and SLURM say of a process: which it is, of how many, and of which job."""

import os
from typing import Optional

RANKS = (
    "RANK",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_LOCALID",
)
SIZES = (
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_NTASKS",
)


def _first(names: tuple[str, ...]) -> Optional[int]:
    for name in names:
        text = os.environ.get(name, "")
        if not text:
            continue
        if not text.isdecimal():
            raise ValueError(f"environment variable {name}: '{text}' is no whole number")
        return int(text)
    return None


def rank() -> Optional[int]:
    """This process's number among those that were launched together; None: nothing says it."""
    return _first(RANKS)


def world_size() -> Optional[int]:
    """How many were launched together; None: nothing says it."""
    return _first(SIZES)


def job() -> Optional[str]:
    """The job that launch_shm or a Server of a parent has made."""
    return os.environ.get("PS_JOB") or None
