"""An embedding whose table is a variable of the job."""

from typing import Optional

import numpy
import torch

from .. import Error, Variable, Worker


class Embedding(torch.nn.Module):
    """An embedding whose table lies in shared memory. A process pulls and pushes only the rows of its batch.

    There is one table for all workers, and no process has a copy of it, so it may be as large as /dev/shm. All workers
    must give the same name, num_embeddings and embedding_dim. The table requires a job in mode async or ssp.

        model = torch.nn.Sequential(ps_shm.torch.Embedding("items", 100_000, 16), torch.nn.Linear(16, 1))
        opt = ps_shm.torch.Optimizer(model, "job", create=True, lr=0.1)

    An Optimizer attaches the embeddings of its model and pushes their gradients in step(). Without an Optimizer, pass
    `worker` or call attach(worker), and call push() after backward().

    Args:
        name: the name of the variable.
        num_embeddings, embedding_dim: the table's shape, as for torch.nn.Embedding.
        rule: the update rule of the rows. Their learning rate is that of the job.
        deviation: standard deviation of the normal distribution from which the initial values are drawn.
        seed: random seed of the initial values.
        worker: a Worker to attach to at once.

    Raises:
        Error: a job with `worker` has the variable with another shape or rule, or is in mode sync. attach() raises the
            same. forward(), prefetch() and push() raise Error if the embedding has not been attached or the worker has left.
    """

    def __init__(
        self,
        name: str,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rule: str = "rowwise_adagrad",
        deviation: float = 0.01,
        seed: int = 1,
        worker: Optional[Worker] = None,
    ) -> None:
        super().__init__()
        self.name, self.num_embeddings, self.embedding_dim = name, num_embeddings, embedding_dim
        self._rule, self._deviation, self._seed = rule, deviation, seed
        self._variable: Optional[Variable] = None
        self._pulled: list[tuple[torch.Tensor, torch.Tensor]] = []
        if worker is not None:
            self.attach(worker)

    def attach(self, worker: Worker) -> None:
        """Creates the table in the worker's job, or finds it if another worker has created it."""

        def fill(out: "numpy.typing.NDArray[numpy.float32]") -> None:
            random = numpy.random.default_rng(self._seed)
            for begin in range(0, self.num_embeddings, 65536):
                rows = out[begin : begin + 65536]
                random.standard_normal(out=rows, dtype=numpy.float32)
                rows *= numpy.float32(self._deviation)

        self._variable = worker.variable(
            self.name, fill, shape=(self.num_embeddings, self.embedding_dim), layout="inplace", rule=self._rule
        )

    @property
    def variable(self) -> Variable:
        """The table as a ps_shm.Variable. Raises Error if the embedding has not been attached to a worker."""
        if self._variable is None:
            raise Error(f"embedding '{self.name}' is of no job yet: give its model to ps_shm.torch.Optimizer, or attach(worker)")
        return self._variable

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Pulls the rows `ids` (int64, any shape) and returns them as a tensor of shape ids.shape + (embedding_dim,).

        The result is on the device of `ids`. In training mode its gradient is remembered for push(). Raises Error if an
        id is out of range.
        """
        device, ids = ids.device, ids.cpu().contiguous()
        rows = torch.empty(*ids.shape, self.embedding_dim)
        self.variable.pull_rows(ids, rows)
        rows = rows.to(device)
        if self.training and torch.is_grad_enabled():
            rows.requires_grad_()
            self._pulled.append((ids, rows))
        return rows

    def prefetch(self, ids: torch.Tensor) -> None:
        """Prefetches the rows `ids` into the cache, for example those of the next batch."""
        self.variable.prefetch_rows(ids.cpu().contiguous())

    def drop(self) -> None:
        """Discards the gradients computed since the last push(), for example of a batch that is not to count."""
        self._pulled = [(ids, rows) for ids, rows in self._pulled if rows.grad is None]

    def push(self) -> None:
        """Pushes the gradients of all rows that forward() has returned since the last call.

        The gradients of repeated ids are summed first, so each row is updated once.
        """
        pulled, self._pulled = self._pulled, []
        given = [(ids, rows.grad.cpu()) for ids, rows in pulled if rows.grad is not None]
        if not given:
            return
        if len(given) == 1:
            ids, gradients = given[0]
            self.variable.push_rows(ids, gradients.contiguous())
            return
        flat = [(ids.reshape(-1), gradients.reshape(-1, self.embedding_dim)) for ids, gradients in given]
        self.variable.push_rows(torch.cat([ids for ids, _ in flat]), torch.cat([gradients for _, gradients in flat]))

    def extra_repr(self) -> str:
        """What repr() shows of the embedding."""
        return f"'{self.name}', {self.num_embeddings}, {self.embedding_dim}, rule={self._rule}"
