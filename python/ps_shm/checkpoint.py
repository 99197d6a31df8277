"""A job's state in files, written while training goes on; docs/checkpoints.md says what is in them.

    folder = checkpoint.save("job", "runs")                # runs/step-N
    found = checkpoint.latest("runs")                      # the newest whole one; None: there is none
    server = Server("job", restore=found.folder)           # a job that begins with it, optimizer's state and step included
"""

import os
from typing import Optional, Union

from . import _core
from ._core import Checkpoint, StoredVariable

Path = Union[str, "os.PathLike[str]"]


def save(
    job: Union[str, _core.Worker, _core.Server],
    folder: Path,
    *,
    loss: Optional[float] = None,
    max_file_bytes: int = 5_000_000_000,
    group: str = "",
) -> str:
    """Writes folder/step-N of one moment of the job, and returns its path. Workers go on meanwhile.

    job: its name, its Server or a Worker of it. loss: that is noted. max_file_bytes: of tensors in a file. group: whose
    users' job it is. Raises Error where the files cannot be written; then nothing of them stays.
    """
    name = job if isinstance(job, str) else job.job
    return _core.save_checkpoint(name, os.fspath(folder), loss, max_file_bytes, group)


def latest(folder: Path) -> Optional[Checkpoint]:
    """The newest checkpoint in `folder` whose bytes are those that were written; None where there is no checkpoint.

    A line to stderr for each newer one that is damaged. Raises Error where there are some, and none is whole.
    """
    return _core.latest_checkpoint(os.fspath(folder))


def load(folder: Path) -> Checkpoint:
    """The checkpoint that lies in `folder`, such as runs/step-500. Raises Error where there is none."""
    return Checkpoint(os.fspath(folder))


__all__ = ["Checkpoint", "StoredVariable", "latest", "load", "save"]
