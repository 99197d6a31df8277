"""What launch_shm, torchrun, MPI and SLURM put into the environment: a process's rank, their number, the job."""

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
            raise ValueError(f"environment variable {name}: '{text}' is not an integer")
        return int(text)
    return None


def rank() -> Optional[int]:
    """The rank of this process among those launched together, from the first of RANKS that is set; None if none is.

    Raises ValueError if the variable is not a non-negative integer.
    """
    return _first(RANKS)


def world_size() -> Optional[int]:
    """The number of processes launched together, from the first of SIZES that is set; None if none is.

    Raises ValueError if the variable is not a non-negative integer.
    """
    return _first(SIZES)


def job() -> Optional[str]:
    """The job's name from PS_SHM_JOB, which launch_shm or a Server in a parent process sets; None if not set."""
    return os.environ.get("PS_SHM_JOB") or None
