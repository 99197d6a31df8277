"""An embedding whose table is the job's."""

from typing import Optional

import numpy
import torch

from .. import Error, Variable, Worker


class Embedding(torch.nn.Module):
    """Rows of a table in shared memory: forward(ids) pulls the rows that a batch names, push() sends their gradients.

    The table is one for all workers, and in nobody's own memory. Workers give the same name, num_embeddings and
    embedding_dim. rule: the update rule of its rows; their rate is the job's. deviation: of the normal distribution that
    first values are drawn from. Rows of the job's modes async and ssp only.
    An Optimizer attaches the embeddings of its model, and pushes their gradients in step(). Alone: attach(worker).
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
        """Makes the table, or finds it."""

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
        """The table, for its rows. Raises Error where it has not been attached."""
        if self._variable is None:
            raise Error(f"embedding '{self.name}' is of no job yet: give its model to ps_shm.torch.Optimizer, or attach(worker)")
        return self._variable

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` (int64, of any shape), as a tensor of ids.shape + (embedding_dim,), on the ids' device."""
        device, ids = ids.device, ids.cpu().contiguous()
        rows = torch.empty(*ids.shape, self.embedding_dim)
        self.variable.pull_rows(ids, rows)
        rows = rows.to(device)
        if self.training and torch.is_grad_enabled():
            rows.requires_grad_()
            self._pulled.append((ids, rows))
        return rows

    def prefetch(self, ids: torch.Tensor) -> None:
        """Asks for the memory of these rows, such as those of the next batch."""
        self.variable.prefetch_rows(ids.cpu().contiguous())

    def drop(self) -> None:
        """Forgets the gradients that there are, as of a batch that shall not count."""
        self._pulled = [(ids, rows) for ids, rows in self._pulled if rows.grad is None]

    def push(self) -> None:
        """Pushes the gradients of all rows that forward() has given since the last call. Repeated ids are summed up."""
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
        return f"'{self.name}', {self.num_embeddings}, {self.embedding_dim}, rule={self._rule}"
