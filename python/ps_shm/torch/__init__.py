"""PyTorch models as workers of a job: gradients are pushed exactly, and staleness is measured.

    opt = ps_shm.torch.Optimizer(model, "job", lr=0.1, create=True)
    loss.backward(); opt.step()                            # push, step, pull

Parameters are of float32. A model that an Optimizer trains may be on a GPU; other models are on the CPU.
"""

from ._elastic import Elastic
from ._embedding import Embedding
from ._optimizer import Optimizer
from ._publication import Publisher, Subscriber

__all__ = ["Elastic", "Embedding", "Optimizer", "Publisher", "Subscriber"]
