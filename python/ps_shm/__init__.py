"""A lock-free parameter server in shared memory, for programs of one machine.

    import ps_shm
    worker = ps_shm.Worker("job")           # waits for the job; ps_shm.Server("job") or launch_shm makes one
    w = worker.variable("w", numpy.zeros(10, "float32"))
    w.pull(out); w.push(gradient); worker.step()

docs/python.md has each class with an example; ps_shm.torch is for PyTorch.
"""

from . import _core, checkpoint
from ._core import (
    Bundle,
    Error,
    Event,
    JobFinished,
    Pinned,
    PublisherGone,
    Staleness,
    Timeout,
    Variable,
    VariableInfo,
    View,
    WorkerInfo,
)
from ._job import Server, Worker
from ._publication import Generation, Publisher, Subscriber

__version__: str = getattr(_core, "__version__")
for _error in (Error, JobFinished, PublisherGone, Timeout):
    _error.__module__ = "ps_shm"  # as what programs catch, and tracebacks name

__all__ = [
    "Bundle",
    "Error",
    "Event",
    "Generation",
    "JobFinished",
    "Pinned",
    "Publisher",
    "PublisherGone",
    "Server",
    "Staleness",
    "Subscriber",
    "Timeout",
    "Variable",
    "VariableInfo",
    "View",
    "Worker",
    "WorkerInfo",
    "__version__",
    "checkpoint",
]
