"""Saving a job to files while training continues, and loading it. docs/checkpoints.md describes the files.

A checkpoint contains all variables at one moment, the state of their optimizers, the global step, and each rank's
position in its data. It also contains the rows of tables by key, which are from different moments.

    folder = checkpoint.save("job", "runs")                # writes the folder runs/step-N
    found = checkpoint.latest("runs")                      # the newest intact checkpoint; None if there is none
    print(found.global_step, found["w"])
    server = Server("job", restore=found.folder)           # a job that continues from it
"""

import os
from typing import Optional, Union

from . import _core
from ._core import Checkpoint, StoredTable, StoredVariable

Path = Union[str, "os.PathLike[str]"]


def save(
    job: Union[str, _core.Worker, _core.Server],
    folder: Path,
    *,
    loss: Optional[float] = None,
    max_file_bytes: int = 5_000_000_000,
    group: str = "",
) -> str:
    """Writes the state of the job at one moment to folder/step-N and returns that path. The workers continue meanwhile.

    The folder appears complete or not at all.

    Args:
        job: the job's name, its Server, or a Worker of it.
        folder: where to create the folder step-N.
        loss: the training loss to store in the checkpoint, if any.
        max_file_bytes: the largest size of the tensors in one file, in bytes; larger checkpoints have several files.
        group: the Unix group with which the job is shared. Empty: the job of this user.

    Raises:
        Error: there is no such job, or the files cannot be written. Nothing of them is left then.
    """
    name = job if isinstance(job, str) else job.job
    return _core.save_checkpoint(name, os.fspath(folder), loss, max_file_bytes, group)


def latest(folder: Path) -> Optional[Checkpoint]:
    """Returns the newest checkpoint in `folder` whose files are intact, or None if there is no checkpoint.

    All bytes are verified. A warning of the logger `ps_shm` reports each newer checkpoint that is damaged.

    Raises:
        Error: there are checkpoints, but none of them is intact.
    """
    return _core.latest_checkpoint(os.fspath(folder))


def load(folder: Path) -> Checkpoint:
    """Returns the checkpoint in `folder`, such as runs/step-500, without verifying its bytes (see Checkpoint.verify()).

    Raises:
        Error: there is no checkpoint in the folder, or one of its files is missing.
    """
    return Checkpoint(folder)


__all__ = ["Checkpoint", "StoredTable", "StoredVariable", "latest", "load", "save"]
