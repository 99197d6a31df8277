"""A lock-free parameter server in shared memory, for the processes of one machine.

Several processes train one model whose parameters lie in shared memory. Each process is a worker: it pulls the current
values of the variables, computes a gradient, and pushes it. A job is created by ps_shm.Server or by the program
launch_shm.

    import numpy
    import ps_shm

    with ps_shm.Server("job", lr=0.1), ps_shm.Worker("job") as worker:
        w = worker.variable("w", numpy.ones(10, "float32"))
        values = numpy.empty(10, "float32")
        for _ in range(100):
            w.pull(values)              # copies the current values
            w.push(2 * values)          # applies a gradient; this one minimises the sum of squares
            worker.step()               # ends the training step

Server, Worker       the two roles in a job
Variable, Bundle     arrays of a job, one or several at a time; created by Worker.variable() and Worker.variables()
Table                rows by 64-bit keys, made when they are first pushed; created by Worker.table()
Guest                changes from beside the workers, each made exactly once
View                 read-only access to a job, live or dead
checkpoint           saving a job to files and loading it
Publisher,           passing whole sets of tensors from one process to others, without a job
  Subscriber
FolderPublisher      the same as files, for programs that load weights from a folder
Error                base class of Timeout, NotFound, JobFinished and PublisherGone
ps_shm.torch         the same for PyTorch models; import it separately
ps_shm.bridge        a program that joins the jobs of several machines: python -m ps_shm.bridge --help

docs/python.md and docs/pytorch.md in the repository describe all parts with examples.
"""

import collections.abc

from . import _core, checkpoint
from ._core import (
    Bundle,
    Error,
    ErrorCode,
    Event,
    GpuUse,
    Guest,
    JobFinished,
    NotFound,
    Pinned,
    PublisherGone,
    PushedKeys,
    Staleness,
    Table,
    TableExport,
    TableInfo,
    TableStatistics,
    Timeout,
    Variable,
    VariableInfo,
    View,
    WorkerInfo,
)
from ._folder import FolderPublisher, NewFolderGeneration
from ._job import Server, Worker
from ._publication import Generation, NewGeneration, Publisher, Reader, Subscriber

collections.abc.Mapping.register(Generation)
__version__: str = getattr(_core, "__version__")
for _error in (Error, ErrorCode, JobFinished, NotFound, PublisherGone, Timeout):
    _error.__module__ = "ps_shm"  # the name that programs catch and that tracebacks show

__all__ = [
    "Bundle",
    "Error",
    "ErrorCode",
    "Event",
    "FolderPublisher",
    "Generation",
    "GpuUse",
    "Guest",
    "JobFinished",
    "NewFolderGeneration",
    "NewGeneration",
    "NotFound",
    "Pinned",
    "Publisher",
    "PublisherGone",
    "PushedKeys",
    "Reader",
    "Server",
    "Staleness",
    "Subscriber",
    "Table",
    "TableExport",
    "TableInfo",
    "TableStatistics",
    "Timeout",
    "Variable",
    "VariableInfo",
    "View",
    "Worker",
    "WorkerInfo",
    "__version__",
    "checkpoint",
]
