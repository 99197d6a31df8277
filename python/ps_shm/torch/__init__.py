"""Train PyTorch models as workers of a job.

    opt = ps_shm.torch.Optimizer(model, "job", lr=0.1, create=True)      # instead of torch.optim.SGD
    for batch in batches:
        opt.zero_grad()
        loss(model, batch).backward()
        opt.step()                                                       # pushes, ends the step, pulls

Every push is applied exactly once, and its staleness is measured. Parameters may be float32, bfloat16 or float16. An
Optimizer can train a model on the CPU or on one GPU; Elastic trains a model on the CPU.

Optimizer    replaces an optimizer of torch.optim
Embedding,   an embedding whose table is in shared memory; a process pulls only the rows of its batch
  EmbeddingBag
Elastic      elastic averaging SGD: each worker has its own model, and a common centre holds the models together
Publisher,   pass a model's weights from a learner to actors, one consistent generation at a time
  Subscriber
table_storage
             a storage of embeddings for NVIDIA's dynamicemb
tensors      the tensors of a generation in shared memory, without a copy
"""

from ._elastic import Elastic
from ._embedding import Embedding, EmbeddingBag
from ._optimizer import Optimizer
from ._publication import Publisher, Subscriber
from ._storage import table_storage
from ._tensors import tensors

__all__ = ["Elastic", "Embedding", "EmbeddingBag", "Optimizer", "Publisher", "Subscriber", "table_storage", "tensors"]
