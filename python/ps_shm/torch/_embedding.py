"""An embedding whose table is a variable of the job, or a table by key."""

import copy
import functools
import math
import warnings
from typing import Any, Callable, Literal, Optional

import numpy
import torch

from .. import Error, ErrorCode, Table, Variable, Worker


# Returns rows[0], and takes what backward() computes as its gradient; autograd.grad() for these rows does not come here. The
# leaf stands for the table. The tensor that carries the gradient has no memory of its own.
class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, rows: list[torch.Tensor], take: Callable[[torch.Tensor], None]) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.take = take
        return rows[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[torch.Tensor]) -> tuple[None, None, None]:
        (gradient,) = gradients
        if gradient is not None:
            ctx.take(gradient)
        return None, None, None


def _take(
    given: list[tuple[torch.Tensor, torch.Tensor]],
    shown: Optional[list[torch.Tensor]],
    ids: torch.Tensor,
    gradient: torch.Tensor,
) -> None:
    if ids.numel() == 0:
        return
    carrier = gradient.detach().new_empty(()).expand(gradient.shape)
    carrier.grad = gradient.detach().clone(memory_format=torch.contiguous_format)  # autograd may use its memory again
    given.append((ids, carrier))
    if shown is not None:
        shown.append(carrier)


class Embedding(torch.nn.Module):
    """An embedding whose table lies in shared memory. A process pulls and pushes only the rows of its batch.

    There is one table for all workers, and no process has a copy of it, so it may be as large as /dev/shm. All workers
    must give the same name, num_embeddings and embedding_dim. The table requires a job in mode async or ssp.

        model = torch.nn.Sequential(ps_shm.torch.Embedding("items", 100_000, 16), torch.nn.Linear(16, 1))
        opt = ps_shm.torch.Optimizer(model, "job", create=True, lr=0.1)

    With keyed=True, ids are any int64 numbers, such as hashes, and num_embeddings is the most rows that there may be: a
    row is made when it is first pushed, and others are evicted when there are too many (Worker.table()).

        items = ps_shm.torch.Embedding("items", 1_000_000, 16, keyed=True, evict="lfu", admit=2)

    state_dict() contains a copy of the whole table as `weight`, as that of torch.nn.Embedding does, and load_state_dict()
    sets the table. With keyed=True it contains the ids of the rows, too, as `ids`. A copy of the module, such as that of
    torch.optim.swa_utils.AveragedModel, uses the same table.

    An Optimizer attaches the embeddings of its model and pushes their gradients in step(). Without an Optimizer, pass
    `worker` or call attach(worker), and call push() after backward(). The table is no parameter: Optimizer.zero_grad() or
    drop() discards its gradients, which zero_grad() of the model does not, and requires_grad_(False) of the embedding itself
    freezes it.

    Args:
        name: the name of the variable.
        num_embeddings, embedding_dim: the table's shape, as for torch.nn.Embedding.
        rule: the update rule of the rows. Their learning rate is that of the job.
        deviation: standard deviation of the distribution from which the initial values are drawn: the normal one, or, with
            keyed=True, the uniform one around zero.
        seed: random seed of the initial values.
        padding_idx: an id whose row is never trained, as for torch.nn.Embedding. Its initial value is zero.
        keyed: whether ids are keys of a table by key.
        evict, ttl, admit: which rows such a table evicts, how old they become, and which push of an id makes its row, as
            for Worker.table().
        dtype: of the rows in the table, torch.float32 or torch.bfloat16, which takes half the memory. The module returns
            rows, and takes gradients, of float32.
        worker: a Worker to attach to at once.

    Raises:
        ValueError: evict, ttl or admit without keyed=True; another dtype.
        Error: a job with `worker` has the variable with another shape or rule, or is in mode sync. attach() raises the
            same, also if the embedding had a table in an earlier job, which would be lost. forward(), prefetch() and
            push() raise Error if the embedding has not been attached or the worker has left.
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
        padding_idx: Optional[int] = None,
        keyed: bool = False,
        evict: Optional[Literal["lru", "lfu", "age"]] = "lru",
        ttl: Optional[float] = None,
        admit: int = 1,
        dtype: torch.dtype = torch.float32,
        worker: Optional[Worker] = None,
    ) -> None:
        super().__init__()
        if not keyed and (evict, ttl, admit) != ("lru", None, 1):
            raise ValueError(f"embedding '{name}': evict, ttl and admit need keyed=True")
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"embedding '{name}': rows are of torch.float32 or torch.bfloat16, not {dtype}")
        self.name, self.num_embeddings, self.embedding_dim = name, num_embeddings, embedding_dim
        self._rule, self._deviation, self._seed = rule, deviation, seed
        self._keyed, self._evict, self._ttl, self._admit, self._dtype = keyed, evict, ttl, admit, dtype
        self._variable: Optional[Variable] = None
        self._table: Optional[Table] = None
        self._is_frozen = False
        # For push(): the ids, and a tensor whose `grad` is their gradient, as that of a parameter is.
        self._given: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._shown: Optional[list[torch.Tensor]] = None
        self._loaded: Optional[torch.Tensor] = None
        self._loaded_ids = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._padding = padding_idx if padding_idx is None or keyed else range(num_embeddings)[padding_idx]
        if worker is not None:
            self.attach(worker)

    def attach(self, worker: Worker) -> None:
        """Creates the table in the worker's job, or finds it if another worker has created it.

        Weights that were loaded by load_state_dict() are the initial values: a table that others have begun stays as it is.
        """
        dtype = str(self._dtype).removeprefix("torch.")
        if self._keyed:
            had_table = self._table is not None
            table = worker.table(
                self.name, self.embedding_dim, self.num_embeddings, rule=self._rule, evict=self._evict, ttl=self._ttl,
                admit=self._admit, initial_range=self._deviation * math.sqrt(3), seed=self._seed, dtype=dtype,
            )  # fmt: skip
            if table.statistics().made == 0:  # those of a running job have been trained since, and some evicted
                if self._loaded is not None:
                    self._set_rows(table, self._loaded_ids, self._loaded)
                elif had_table:
                    raise self._lost()
            self._table, self._loaded = table, None
            return
        self._variable = worker.variable(
            self.name, self._fill, shape=(self.num_embeddings, self.embedding_dim), layout="inplace", rule=self._rule,
            dtype=dtype,
        )  # fmt: skip
        self._loaded = None

    def _fill(self, out: "numpy.typing.NDArray[numpy.float32]") -> None:
        if self._loaded is not None:
            out[:] = self._loaded.numpy()
            return
        if self._variable is not None:
            raise self._lost()
        random = numpy.random.default_rng(self._seed)
        for begin in range(0, self.num_embeddings, 65536):
            rows = out[begin : begin + 65536]
            random.standard_normal(out=rows, dtype=numpy.float32)
            rows *= numpy.float32(self._deviation)
        if self._padding is not None:
            out[self._padding] = 0

    @property
    def variable(self) -> Variable:
        """The table as a ps_shm.Variable. Raises Error if the embedding has not been attached, or is keyed."""
        if self._keyed:
            raise Error(f"embedding '{self.name}' has a table by key: use `table`")
        if self._variable is None:
            raise self._unattached()
        return self._variable

    @property
    def table(self) -> Table:
        """The ps_shm.Table of an embedding with keyed=True. Raises Error if it has not been attached, or is not keyed."""
        if not self._keyed:
            raise Error(f"embedding '{self.name}' is not keyed: use `variable`")
        if self._table is None:
            raise self._unattached()
        return self._table

    def _unattached(self) -> Error:
        return Error(f"embedding '{self.name}' is of no job yet: give its model to ps_shm.torch.Optimizer, or attach(worker)")

    def _lost(self) -> Error:
        return Error(
            f"embedding '{self.name}': its table went with the job that it was in; load_state_dict() what state_dict() of the "
            "model gave before, or make the model anew"
        )

    # The ids and rows of a table by key.
    def _rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._table is not None:
            saved = self._table.export()
            return torch.from_numpy(saved.keys.view(numpy.int64)), torch.from_numpy(saved.rows)
        if self._loaded is not None:
            return self._loaded_ids, self._loaded
        return self._loaded_ids, torch.zeros(0, self.embedding_dim, dtype=torch.float32, device="cpu")

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the whole table, on the CPU. Of an embedding without a job: its initial values.

        With keyed=True, the rows that there are, in no particular order; state_dict() has their ids.
        """
        if self._keyed:
            return self._rows()[1]
        values = torch.zeros(self.num_embeddings, self.embedding_dim, dtype=torch.float32, device="cpu")
        if self._variable is not None:
            self._variable.pull(values)
        else:
            self._fill(values.numpy())
        return values

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Pulls the rows `ids` (int64, any shape) and returns them as a tensor of shape ids.shape + (embedding_dim,).

        The result is on the device of `ids`. Where gradients are computed, its own is remembered for push(). Raises TypeError
        for ids that are no integers, and Error if an id is out of range, which it cannot be with keyed=True.
        """
        device, ids = ids.device, self._on_cpu(ids)
        rows = torch.empty(*ids.shape, self.embedding_dim, dtype=torch.float32, device="cpu")
        if ids.numel() != 0 and self._keyed:
            self.table.pull(ids, rows)
            if self._padding is not None:
                rows[ids == self._padding] = 0  # it has no row
        elif ids.numel() != 0:
            self.variable.pull_rows(ids, rows)
        rows = rows.to(device)
        if self._is_frozen or not torch.is_grad_enabled():
            return rows
        # Not a method of this module, which may be copied before the backward pass.
        take = functools.partial(_take, self._given, self._shown, ids)
        leaf = torch.empty(0, dtype=torch.float32, device=device, requires_grad=True)
        trained: torch.Tensor = _Rows.apply(leaf, [rows], take)
        return trained

    def prefetch(self, ids: torch.Tensor) -> None:
        """Prefetches the rows `ids` into the cache, for example those of the next batch."""
        if self._keyed:
            self.table.prefetch(self._on_cpu(ids))
        else:
            self.variable.prefetch_rows(self._on_cpu(ids))

    # As the table takes them.
    def _on_cpu(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"embedding '{self.name}': ids is of {ids.dtype}, and torch.int64 is needed")
        ids = ids.detach().cpu().contiguous()
        return ids.to(torch.int64) if self._keyed else ids

    def requires_grad_(self, requires_grad: bool = True) -> "Embedding":
        """Freezes the table for this process, or trains it again. (That of a module around this one does not reach it.)

        requires_grad: whether the table is trained.
        """
        self._is_frozen = not requires_grad
        super().requires_grad_(requires_grad)
        return self

    def drop(self) -> None:
        """Discards the gradients computed since the last push(), for example of a batch that is not to count."""
        self._forget()

    def show_gradients(self, among: Optional[list[torch.Tensor]]) -> None:
        """Adds tensors to the list `among` whose `grad` is a gradient for the next push(), until then.

        An Optimizer passes the list of its parameters, so that what changes their gradients, such as unscale_() of a
        GradScaler, changes those of the rows, too.
        """
        self._shown = among

    def push(self) -> None:
        """Pushes the gradients computed since the last call.

        The gradients of repeated ids are summed first, so each row is updated once.
        """
        if not self._given:
            return
        given = [(ids, rows.grad) for ids, rows in self._given if rows.grad is not None]
        if not given:
            return self._forget()
        ids = torch.cat([ids.reshape(-1) for ids, _ in given])
        gradients = torch.cat([gradient.reshape(-1, self.embedding_dim).cpu() for _, gradient in given])
        if self._padding is not None:
            is_row = ids != self._padding
            ids, gradients = ids[is_row], gradients[is_row]
        self._forget()
        if ids.numel() != 0 and self._keyed:
            self.table.push(ids, gradients.contiguous())
        elif ids.numel() != 0:
            self.variable.push_rows(ids, gradients.contiguous())

    def _forget(self) -> None:
        if self._shown is not None:
            taken = {id(rows) for _, rows in self._given}
            self._shown[:] = [p for p in self._shown if id(p) not in taken]
        self._given.clear()

    # The table is neither a parameter nor a buffer, because those would lie in this process.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._keyed:
            destination[prefix + "ids"], destination[prefix + "weight"] = self._rows()
        else:
            destination[prefix + "weight"] = self.weight

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        names = [prefix + "ids", prefix + "weight"] if self._keyed else [prefix + "weight"]
        others = {key: value for key, value in state_dict.items() if key not in names}
        super()._load_from_state_dict(others, prefix, local_metadata, strict, missing, unexpected, errors)
        missing.extend(name for name in names if name not in state_dict)
        if any(name not in state_dict for name in names):
            return
        values = state_dict[prefix + "weight"]
        if self._keyed:
            self._load_rows(state_dict[prefix + "ids"], values, prefix, errors)
        elif tuple(values.shape) != (self.num_embeddings, self.embedding_dim):
            errors.append(
                f"size mismatch for {prefix}weight: the table has the shape {(self.num_embeddings, self.embedding_dim)}, and "
                f"{tuple(values.shape)} is given"
            )
        elif not self._try_assign(values):
            self._variable, self._loaded = None, values.detach().to("cpu", torch.float32, copy=True)

    # False: there is no job, or its worker has left.
    def _try_assign(self, values: torch.Tensor) -> bool:
        if self._variable is None:
            return False
        try:
            self._variable.assign(values.detach().to("cpu", self._dtype).contiguous(), reset=True)
        except Error as error:
            if error.code is not ErrorCode.INVALID_STATE:
                raise
            return False
        return True

    def _load_rows(self, ids: torch.Tensor, values: torch.Tensor, prefix: str, errors: list[str]) -> None:
        if ids.ndim != 1 or tuple(values.shape) != (len(ids), self.embedding_dim):
            errors.append(
                f"size mismatch for {prefix}weight: rows of {self.embedding_dim} floats and an id for each are needed, and the "
                f"shapes {tuple(values.shape)} and {tuple(ids.shape)} are given"
            )
            return
        ids = ids.detach().to("cpu", torch.int64, copy=True)
        values = values.detach().to("cpu", torch.float32, copy=True).contiguous()
        if not self._try_set_rows(ids, values):
            self._table, self._loaded_ids, self._loaded = None, ids, values

    def _try_set_rows(self, ids: torch.Tensor, values: torch.Tensor) -> bool:
        if self._table is None:
            return False
        try:
            others, _ = self._rows()
            self._table.evict(others[~torch.isin(others, ids)])
            self._set_rows(self._table, ids, values)
        except Error as error:
            if error.code is not ErrorCode.INVALID_STATE:
                raise
            return False
        return True

    def _set_rows(self, table: Table, ids: torch.Tensor, values: torch.Tensor) -> None:
        table.assign(ids, values)
        lost = len(ids) - int(table.contains(ids).sum())
        if lost != 0:
            warnings.warn(
                f"embedding '{self.name}': {lost} of the {len(ids)} rows that were loaded found no room in the table, which has "
                f"num_embeddings={self.num_embeddings}"
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Embedding":
        """Returns an embedding of the same table, of no Optimizer yet. Gradients that were not pushed stay with this one."""
        made = memo[id(self)] = type(self).__new__(type(self))
        own: dict[str, Any] = {"_given": [], "_shown": None}
        shared = {"_variable", "_table", "_loaded", "_loaded_ids"}  # never changed in place
        for name, value in self.__dict__.items():
            made.__dict__[name] = own[name] if name in own else value if name in shared else copy.deepcopy(value, memo)
        return made

    def __getstate__(self) -> dict[str, Any]:
        if self._variable is not None or self._table is not None:
            raise TypeError(
                f"embedding '{self.name}' cannot be pickled: its table is in the job; save model.state_dict(), which has its "
                "weights, and make the model anew where they are loaded"
            )
        return self.__dict__

    def extra_repr(self) -> str:
        """What repr() shows of the embedding."""
        keyed = f", keyed=True, evict={self._evict}" if self._keyed else ""
        return f"'{self.name}', {self.num_embeddings}, {self.embedding_dim}, rule={self._rule}{keyed}"


class EmbeddingBag(Embedding):
    """An Embedding that returns the sum, mean or maximum of the rows of each bag of ids, as torch.nn.EmbeddingBag does.

        tags = ps_shm.torch.EmbeddingBag("tags", 100_000, 16, mode="mean", padding_idx=0)
        tags(torch.tensor([[5, 7, 0], [9, 0, 0]]))                # a bag in each row
        tags(torch.tensor([5, 7, 9]), torch.tensor([0, 2]))       # bags by the positions at which they begin

    A row that is in several bags is pulled and pushed once.

    Args:
        mode: "sum", "mean" or "max".
        include_last_offset: whether the last offset is the number of ids.
        padding_idx: an id that bags do not contain, and whose row is never trained.
        name, num_embeddings, embedding_dim, rule, deviation, seed, keyed, evict, ttl, admit, dtype, worker: as for
            Embedding.

    Raises:
        ValueError: there is no such mode, or as for Embedding.
        Error: as for Embedding.
    """

    def __init__(
        self,
        name: str,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mode: Literal["sum", "mean", "max"] = "mean",
        include_last_offset: bool = False,
        rule: str = "rowwise_adagrad",
        deviation: float = 0.01,
        seed: int = 1,
        padding_idx: Optional[int] = None,
        keyed: bool = False,
        evict: Optional[Literal["lru", "lfu", "age"]] = "lru",
        ttl: Optional[float] = None,
        admit: int = 1,
        dtype: torch.dtype = torch.float32,
        worker: Optional[Worker] = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"mode='{mode}': choose sum, mean or max")
        super().__init__(
            name, num_embeddings, embedding_dim,
            rule=rule, deviation=deviation, seed=seed, padding_idx=padding_idx,
            keyed=keyed, evict=evict, ttl=ttl, admit=admit, dtype=dtype, worker=worker,
        )  # fmt: skip
        self._mode, self._include_last_offset = mode, include_last_offset

    def forward(
        self, ids: torch.Tensor, offsets: Optional[torch.Tensor] = None, per_sample_weights: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Returns a row for each bag.

        Args:
            ids: int64 of shape (bags, ids of a bag), or of one dimension with `offsets`.
            offsets: the positions in `ids` at which the bags begin.
            per_sample_weights: factors of the rows, of the shape of `ids`. For the mode "sum" only.
        """
        unique, places = torch.unique(ids, return_inverse=True)
        padding = None
        if self._padding is not None and bool((unique == self._padding).any()):
            padding = int((unique == self._padding).nonzero()[0])
        bags: torch.Tensor = torch.nn.functional.embedding_bag(
            places, super().forward(unique), offsets, mode=self._mode, per_sample_weights=per_sample_weights,
            include_last_offset=self._include_last_offset, padding_idx=padding,
        )  # fmt: skip
        return bags
