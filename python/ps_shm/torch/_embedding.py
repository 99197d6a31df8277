"""An embedding whose table is a variable of the job, or a table by key."""

import copy
import functools
import math
import warnings
import weakref
from typing import Any, Callable, Literal, Optional

import numpy
import torch

from .. import Error, ErrorCode, Table, Variable, Worker
from ._model import TableParameter
from ._settings import as_number


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


def _take(given: list[tuple[torch.Tensor, torch.Tensor]], ids: torch.Tensor, gradient: torch.Tensor) -> None:
    if ids.numel() != 0:  # a copy, because autograd may use its memory again
        given.append((ids, gradient.detach().clone(memory_format=torch.contiguous_format)))


# The embeddings that are attached to each worker, by name: two modules share a table only where that is asked for.
_attached: "weakref.WeakKeyDictionary[Worker, weakref.WeakValueDictionary[str, Embedding]]" = weakref.WeakKeyDictionary()

_WRITES = {"__set__", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__ipow__", "__imod__"}


class _Copy(torch.Tensor):
    """A copy of a table. It and its views refuse writes, which no row would see; what is computed from it is a plain tensor.

    requires_grad is that of the table, so that it freezes the table as it freezes the weight of torch.nn.Embedding.
    """

    table: Optional[TableParameter] = None  # not of views

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        first = next(iter((*args, *kwargs.values())), None)
        target = kwargs.get("out") if "out" in kwargs else first if writes else None
        if any(isinstance(one, cls) for one in (target if isinstance(target, (list, tuple)) else (target,))):
            raise Error(
                "`weight` of an embedding is a copy of its table, and a write to it would reach no row: use "
                "embedding.assign(values), or initializer= where the embedding is made"
            )
        with torch._C.DisableTorchFunction():
            result = function(*args, **kwargs)
            if isinstance(result, numpy.ndarray):
                result.flags.writeable = False
            if isinstance(result, (list, tuple)) and any(isinstance(one, torch.Tensor) and one._is_view() for one in result):
                return type(result)(one.as_subclass(cls) for one in result)
            is_same = isinstance(result, torch.Tensor) and (result._is_view() or name in ("__get__", "detach"))  # .data
            return result.as_subclass(cls) if is_same else result

    @property
    def requires_grad(self) -> bool:  # type: ignore[override,unused-ignore]
        """Whether the table is trained."""
        if self.table is not None:
            return self.table.requires_grad
        with torch._C.DisableTorchFunction():
            return torch.Tensor.requires_grad.__get__(self)  # type: ignore[attr-defined,no-any-return,unused-ignore]

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> "_Copy":
        """Trains the table, or freezes it."""
        if self.table is not None:
            self.table.requires_grad_(requires_grad)
            return self
        with torch._C.DisableTorchFunction():
            return torch.Tensor.requires_grad_(self, requires_grad)  # type: ignore[return-value,unused-ignore]

    def __iter__(self) -> Any:
        """The rows, which refuse writes, too."""
        return iter(self.unbind(0))

    # torch.nn.Parameter(weight) is a view, too.
    def _plain(self) -> torch.Tensor:
        plain = self.detach().as_subclass(torch.Tensor).clone()
        return torch.nn.Parameter(plain, self.requires_grad) if isinstance(self, torch.nn.Parameter) else plain

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A plain tensor."""
        return self._plain()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As of a plain tensor."""
        return self._plain().__reduce_ex__(protocol)


# Also from lists, NumPy, and series of pandas and Polars.
def _as_tensor(ids: Any) -> torch.Tensor:
    return ids if isinstance(ids, torch.Tensor) else torch.as_tensor(numpy.asarray(ids))


def _is_exporting() -> bool:
    compiler = getattr(torch, "compiler", None)  # since PyTorch 2.1
    return bool(compiler is not None and getattr(compiler, "is_exporting", bool)())


_REFUSED = {
    "max_norm": "the rows of a table are not renormalised when they are read; use weight decay, or limit the gradients by `clip_norm`",
    "norm_type": "the rows of a table are not renormalised when they are read",
    "scale_grad_by_freq": "the gradients of repeated ids are summed",
    "sparse": "only the rows of a batch are pulled and pushed in any case; leave it out",
    "device": "the rows lie in the job; the module returns them on the device of the ids",
    "_weight": "use Embedding.from_pretrained(), or initializer=",
}


class Embedding(torch.nn.Module):
    """An embedding whose table lies in shared memory. A process pulls and pushes only the rows of its batch.

    There is one table for all workers, and no process has a copy of it, so it may be as large as /dev/shm. All workers
    must give the same name, num_embeddings and embedding_dim. The table requires a job in mode async or ssp.

        model = torch.nn.Sequential(ps_shm.torch.Embedding("items", 100_000, 16), torch.nn.Linear(16, 1))
        opt = ps_shm.torch.Optimizer(model, "job", create=True, lr=0.1)

    With keyed=True, ids are any int64 numbers, such as hashes, and num_embeddings is the most rows that there may be: a
    row is made when it is first pushed, and others are evicted when there are too many (Worker.table()).

        items = ps_shm.torch.Embedding("items", 1_000_000, 16, keyed=True, admit_after=2)

    state_dict() contains a copy of the whole table as `weight`, as that of torch.nn.Embedding does, and load_state_dict()
    sets the table. With keyed=True it contains the ids of the rows, too, as `ids`. A copy of the module, such as that of
    torch.optim.swa_utils.AveragedModel, uses the same table.

    An Optimizer attaches the embeddings of its model and pushes their gradients in step(). Without an Optimizer, pass
    `worker` or call attach(worker), and call push() after backward(); an optimizer of torch.optim must not get the
    embedding's parameter. This parameter, `weight`, stands for the table: it has no elements, its `grad` is that of the rows,
    which clip_grad_norm_(), a GradScaler and zero_grad() reach, and requires_grad_(False) freezes the table. `weight` of the
    module itself is a copy of the table, which cannot be written to: use assign().

    Args:
        name: the name of the variable.
        num_embeddings, embedding_dim: the table's shape, as for torch.nn.Embedding.
        rule: the update rule of the rows. Their accumulators begin at the job's `initial_accumulator`: 0, as FBGEMM's, in a
            job that an Optimizer creates.
        deviation: standard deviation of the distribution from which the initial values are drawn: the normal one, or, with
            keyed=True, the uniform one around zero.
        seed: random seed of the initial values.
        padding_idx: an id whose row is never trained, as for torch.nn.Embedding. Its initial value is zero.
        keyed: whether ids are keys of a table by key.
        evict, ttl, admit_after: which rows such a table evicts, how old they become, and which push of an id makes its row, as
            for Worker.table().
        dtype: of the rows in the table, torch.float32 or torch.bfloat16, which takes half the memory. The module returns
            rows, and takes gradients, of float32.
        lr: the rows' learning rate, a fixed multiple of the job's. None: that of the Optimizer's group that the module's
            parameter is in, by default the last one; without an Optimizer, the job's.
        initializer: a function that fills a tensor with the initial values, such as torch.nn.init.zeros_. Not with
            keyed=True.
        share: whether another embedding of this process may have the same table.
        worker: a Worker to attach to at once.
        others: what torch.nn.Embedding has and this does not, such as max_norm, is refused by name.

    Raises:
        ValueError: evict, ttl or admit_after without keyed=True, initializer with it; another dtype.
        TypeError: max_norm or another argument that this does not have.
        Error: a job with `worker` has the variable with another shape or rule, or is in mode sync; another embedding of this
            process has the same name, without share=True. attach() raises the
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
        evict: Literal["lru", "lfu", "age", "none"] = "lfu",
        ttl: Optional[float] = None,
        admit_after: int = 1,
        dtype: torch.dtype = torch.float32,
        lr: Optional[float] = None,
        initializer: Optional[Callable[[torch.Tensor], Any]] = None,
        share: bool = False,
        worker: Optional[Worker] = None,
        **others: Any,
    ) -> None:
        super().__init__()
        for other, value in others.items():
            if other not in _REFUSED:
                raise TypeError(f"embedding '{name}': there is no argument '{other}'")
            if value:
                raise TypeError(f"embedding '{name}': {other}={value}: {_REFUSED[other]}")
        if keyed and initializer is not None:
            raise ValueError(f"embedding '{name}': initializer is for a whole table; rows by key begin as `deviation` says")
        if not keyed and (evict, ttl, admit_after) != ("lfu", None, 1):
            raise ValueError(f"embedding '{name}': evict, ttl and admit_after need keyed=True")
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"embedding '{name}': rows are of torch.float32 or torch.bfloat16, not {dtype}")
        self.name, self.num_embeddings, self.embedding_dim = name, num_embeddings, embedding_dim
        self._rule, self._deviation, self._seed = rule, deviation, seed
        self._keyed, self._evict, self._ttl, self._admit_after, self._dtype = keyed, evict, ttl, admit_after, dtype
        self._lr, self._initializer, self._share = as_number(lr), initializer, share
        self._variable: Optional[Variable] = None
        self._table: Optional[Table] = None
        self._loaded: Optional[torch.Tensor] = None
        self._loaded_ids = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._padding = padding_idx if padding_idx is None or keyed else range(num_embeddings)[padding_idx]
        self._parameters["weight"] = TableParameter(self._padding)
        if worker is not None:
            self.attach(worker)

    @classmethod
    def from_pretrained(cls, name: str, embeddings: torch.Tensor, *, freeze: bool = True, **settings: Any) -> "Embedding":
        """Returns an embedding whose table begins with these rows, as torch.nn.Embedding.from_pretrained() does.

        Args:
            name: the name of the variable.
            embeddings: the rows, of shape (num_embeddings, embedding_dim). With keyed=True use assign() instead.
            freeze: whether the table is not trained.
            settings: as for the constructor.
        """
        made = cls(name, *embeddings.shape, **settings)
        made.assign(embeddings)
        made.requires_grad_(not freeze)
        return made

    def attach(self, worker: Worker, lr_scale: float = 1.0) -> None:
        """Creates the table in the worker's job, or finds it if another worker has created it.

        lr_scale: what the job's rate is multiplied by for the rows, if the module has no `lr` of its own. All that attach to
            the table must say the same.

        Weights that were loaded by load_state_dict() are the initial values: a table that others have begun stays as it is.
        """
        dtype = str(self._dtype).removeprefix("torch.")
        if worker.settings["mode"] == "sync":
            raise Error(
                f"embedding '{self.name}': a job in mode sync has no tables of rows, which are updated at once; use mode async "
                "or ssp (with one process they give what sync gives), or torch.nn.Embedding, whose weight is a dense parameter"
            )
        others = _attached.setdefault(worker, weakref.WeakValueDictionary())
        first = others.get(self.name, self)
        if first is not self and not (self._share or first._share):
            raise Error(
                f"embedding '{self.name}': {first} of this process has the table of that name; give this one another name, use "
                "that module twice, or pass share=True to train one table from both"
            )
        scale = lr_scale if self._lr is None else self._lr / worker.settings["lr"]
        if self._keyed:
            had_table = self._table is not None
            table = worker.table(
                self.name, self.embedding_dim, self.num_embeddings, rule=self._rule, evict=self._evict, ttl=self._ttl,
                admit_after=self._admit_after, initial_range=self._deviation * math.sqrt(3), seed=self._seed, dtype=dtype,
                lr_scale=scale,
            )  # fmt: skip
            if table.statistics().made == 0:  # those of a running job have been trained since, and some evicted
                if self._loaded is not None:
                    self._set_rows(table, self._loaded_ids, self._loaded)
                elif had_table:
                    raise self._lost()
            self._table, self._loaded = table, None
            others[self.name] = first
            return
        self._variable = worker.variable(
            self.name, self._fill, shape=(self.num_embeddings, self.embedding_dim), layout="inplace", rule=self._rule,
            dtype=dtype, lr_scale=scale,
        )  # fmt: skip
        self._loaded = None
        others[self.name] = first

    def _fill(self, out: "numpy.typing.NDArray[numpy.float32]") -> None:
        if self._loaded is not None:
            out[:] = self._loaded.numpy()
            return
        if self._variable is not None:
            raise self._lost()
        self._draw(out)

    def _draw(self, out: "numpy.typing.NDArray[numpy.float32]") -> None:
        if self._initializer is not None:
            with torch.no_grad():
                self._initializer(torch.from_numpy(out))
        else:
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

        With keyed=True, the rows that there are, in no particular order; state_dict() has their ids. Writing to the copy
        raises Error, because it would change no row: use assign(). The copy has no gradient.
        """
        found = self._values().as_subclass(_Copy)
        found.table = self._stand_in
        return found

    def _values(self) -> torch.Tensor:
        if self._keyed:
            return self._rows()[1]
        values = torch.zeros(self.num_embeddings, self.embedding_dim, dtype=torch.float32, device="cpu")
        if self._variable is not None:
            self._variable.pull(values)
        elif self._loaded is not None:
            values.copy_(self._loaded)
        else:
            self._draw(values.numpy())
        return values

    def assign(self, values: torch.Tensor, ids: Optional[torch.Tensor] = None) -> None:
        """Sets rows of the table, whose optimizer state begins anew.

        Before the embedding is in a job, the whole table of one that is not keyed can be set.

        Args:
            values: of shape (num_embeddings, embedding_dim), or with `ids` a row for each id.
            ids: the rows to set. None: all of them; not with keyed=True.

        Raises:
            ValueError: the shapes do not match, or ids are needed.
            Error: ids are given, and the embedding has not been attached.
        """
        if ids is None:
            if self._keyed or tuple(values.shape) != (self.num_embeddings, self.embedding_dim):
                raise ValueError(
                    f"embedding '{self.name}': assign() needs the ids of the rows, or values of the shape "
                    f"{(self.num_embeddings, self.embedding_dim)} where it is not keyed"
                )
            if not self._try_assign(values):
                self._variable, self._loaded = None, values.detach().to("cpu", torch.float32, copy=True)
            return
        ids = self._on_cpu(ids)
        values = values.detach().to("cpu", torch.float32).contiguous()
        if ids.ndim != 1 or tuple(values.shape) != (len(ids), self.embedding_dim):
            raise ValueError(f"embedding '{self.name}': assign() needs ids of one dimension and a row of {self.embedding_dim} for each")
        if self._keyed:
            self._set_rows(self.table, ids, values)
        else:
            self.variable.assign_rows(ids, values if self._dtype == torch.float32 else values.to(self._dtype), reset=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Pulls the rows `ids` (integers, any shape) and returns them as a tensor of shape ids.shape + (embedding_dim,).

        `ids` may be a tensor, a list, a NumPy array, or a series of pandas or Polars. The result is on the device of `ids`. Where gradients are computed, its own is remembered for push(). Raises TypeError
        for ids that are no integers, and Error if an id is out of range, which it cannot be with keyed=True.
        """
        if _is_exporting():
            raise Error(
                f"embedding '{self.name}': its table is in the job and cannot be exported; export the model with a "
                "torch.nn.Embedding whose weight is this one's `weight`"
            )
        device, ids = getattr(ids, "device", torch.device("cpu")), self._on_cpu(ids)
        rows = torch.empty(*ids.shape, self.embedding_dim, dtype=torch.float32, device="cpu")
        if ids.numel() != 0 and self._keyed:
            self.table.pull(ids, rows)
            if self._padding is not None:
                rows[ids == self._padding] = 0  # it has no row
        elif ids.numel() != 0:
            self.variable.pull_rows(ids, rows)
        rows = rows.to(device)
        if not self._stand_in.requires_grad or not torch.is_grad_enabled():
            return rows
        # Not a method of this module, which may be copied before the backward pass.
        take = functools.partial(_take, self._stand_in.given, ids.clone())  # the caller may fill its ids anew before push()
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
        ids = _as_tensor(ids)
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"embedding '{self.name}': ids is of {ids.dtype}, and torch.int64 is needed")
        return ids.detach().cpu().contiguous().to(torch.int64)

    @property
    def _stand_in(self) -> TableParameter:
        found = self._parameters["weight"]
        assert isinstance(found, TableParameter)
        return found

    def drop(self) -> None:
        """Discards the gradients computed since the last push(), for example of a batch that is not to count."""
        self._stand_in.grad = None

    def push(self) -> None:
        """Pushes the gradients computed since the last call.

        The gradients of repeated ids are summed first, so each row is updated once.
        """
        taken = self._stand_in.take_rows()
        if taken is None:
            return
        ids, gradients = taken[0], taken[1].cpu().contiguous()
        if self._keyed:
            self.table.push(ids, gradients)
        else:
            self.variable.push_rows(ids, gradients)

    # The table lies in no memory of this process.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._keyed:
            destination[prefix + "ids"], destination[prefix + "weight"] = self._rows()
        else:
            destination[prefix + "weight"] = self._values()

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
        others[prefix + "weight"] = self._stand_in  # without elements
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
        table = memo[id(self._stand_in)] = TableParameter(self._padding)
        table.requires_grad = self._stand_in.requires_grad
        own: dict[str, Any] = {"_share": True}
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
        others = {name: p for name, p in self._parameters.items() if name != "weight"}
        return {**self.__dict__, "_parameters": others, "_is_trained": self._stand_in.requires_grad}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({key: value for key, value in state.items() if key != "_is_trained"})
        self._parameters["weight"] = TableParameter(self._padding)
        self._stand_in.requires_grad = state["_is_trained"]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            raise AttributeError("weight of an embedding is a copy of its table: use embedding.assign(values)")
        super().__setattr__(name, value)

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
        name, num_embeddings, embedding_dim, settings: as for Embedding. Bags do not contain the id `padding_idx`.

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
        **settings: Any,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"mode='{mode}': choose sum, mean or max")
        super().__init__(name, num_embeddings, embedding_dim, **settings)
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
        unique, places = torch.unique(_as_tensor(ids), return_inverse=True)
        padding = None
        if self._padding is not None and bool((unique == self._padding).any()):
            padding = int((unique == self._padding).nonzero()[0])
        bags: torch.Tensor = torch.nn.functional.embedding_bag(
            places, super().forward(unique), None if offsets is None else _as_tensor(offsets), mode=self._mode, per_sample_weights=per_sample_weights,
            include_last_offset=self._include_last_offset, padding_idx=padding,
        )  # fmt: skip
        return bags
