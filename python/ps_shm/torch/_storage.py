"""Tables by key as the external storage of NVIDIA's dynamicemb."""

import importlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Optional

import numpy
import torch

from .. import Table, Worker

_READ_AT_ONCE = 65536  # rows


class _TableStorage:
    """What table_storage() returns a class of."""

    _worker: Worker
    _name: str
    _options: dict[str, Any]

    def __init__(self, options: Sequence[Any], optimizer: Any) -> None:
        for one in options:
            if one.embedding_dtype is not None and one.embedding_dtype != torch.float32:
                raise ValueError(f"table '{self._name}' holds float32, not {one.embedding_dtype}")
        self._optimizer = optimizer
        self._dims = [int(one.dim) for one in options]
        self._state_dims = [int(optimizer.get_state_dim(dim)) for dim in self._dims]
        self._initial = float(optimizer.get_initial_optim_states())
        # A row holds what dynamicemb's optimizer made of it, so no rule of the table's own is used.
        self.tables: list[Table] = [
            self._worker.table(
                f"{self._name}.{number}", dim + state, int(one.max_capacity), rule="add", initial_range=0.0, **self._options
            )
            for number, (one, dim, state) in enumerate(zip(options, self._dims, self._state_dims))
        ]

    def find(
        self,
        unique_keys: torch.Tensor,
        table_ids: torch.Tensor,
        copy_mode: Any,
        lfu_accumulated_frequency: Optional[torch.Tensor] = None,
    ) -> tuple[
        int,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        Optional[torch.Tensor],
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
    ]:
        """Looks keys up.

        Returns the number of the missing keys, these keys, their positions, tables and scores, which keys were found, the
        scores of all, and the rows: embeddings, padded, and for CopyMode.VALUE the optimizer's state behind them. Rows of
        missing keys are zeros.
        """
        device, most = unique_keys.device, self.max_embedding_dim()
        keys, tables = _on_cpu(unique_keys), _on_cpu(table_ids)
        has_state = copy_mode.value == "value"
        rows = torch.zeros(len(keys), self.max_value_dim() if has_state else most, dtype=torch.float32, device="cpu")
        founds = torch.zeros(len(keys), dtype=torch.bool, device="cpu")
        for number, table in enumerate(self.tables):
            places = (tables == number).nonzero().reshape(-1)
            if len(places) == 0:
                continue
            dim = self._dims[number]
            values = torch.empty(len(places), table.row_size, dtype=torch.float32, device="cpu")
            _, has_row = table.pull(keys[places], values)
            founds[places] = torch.from_numpy(has_row)
            rows[places, :dim] = values[:, :dim]
            if has_state:
                rows[places, most : most + self._state_dims[number]] = values[:, dim:]
        missing = (~founds).nonzero().reshape(-1)
        scores = torch.zeros(len(keys), dtype=torch.int64, device="cpu")
        missing_scores = None
        if lfu_accumulated_frequency is not None:
            given = _on_cpu(lfu_accumulated_frequency)
            scores[founds] = given[founds].to(torch.int64)
            missing_scores = given[missing].to(device)
        return (
            len(missing),
            keys[missing].to(device),
            missing.to(device),
            tables[missing].to(device),
            missing_scores,
            founds.to(device),
            scores.to(device),
            rows.to(device),
        )

    def insert(
        self,
        keys: torch.Tensor,
        table_ids: torch.Tensor,
        values: torch.Tensor,
        scores: Optional[torch.Tensor] = None,
        preserve_existing: bool = False,
    ) -> None:
        """Sets the rows of keys. `values` is padded as find() pads it, or has the rows of one table as they are.

        Scores are not kept: the table evicts by its own count. preserve_existing makes no difference: a key that is there
        keeps its place.
        """
        keys, tables, values = _on_cpu(keys), _on_cpu(table_ids), _on_cpu(values)
        for number, table in enumerate(self.tables):
            places = (tables == number).nonzero().reshape(-1)
            if len(places) == 0:
                continue
            dim, state, begin = self._dims[number], self._state_dims[number], self.max_embedding_dim()
            if values.shape[1] < begin + state:
                begin = dim
            own = torch.full((len(places), dim + state), self._initial, dtype=torch.float32, device="cpu")
            own[:, :dim] = values[places, :dim]
            if values.shape[1] >= begin + state:
                own[:, dim:] = values[places, begin : begin + state]
            table.assign(keys[places], own)

    def dump(
        self,
        table_id: int,
        meta_file_path: str,
        emb_key_path: str,
        embedding_file_path: str,
        score_file_path: Optional[str] = None,
        opt_file_path: Optional[str] = None,
        timestamp: int = 0,
        *,
        include_optim: bool = False,
        include_meta: bool = False,
        current_score: Optional[int] = None,
    ) -> None:
        """Writes the keys and rows of a table to files, as dynamicemb's own storage does."""
        if include_meta:
            with open(meta_file_path, "w", encoding="utf-8") as meta:
                json.dump(self._optimizer.get_opt_args(), meta)
        paths = [emb_key_path, embedding_file_path, opt_file_path if include_optim else None, score_file_path]
        files = [open(path, "wb") if path else None for path in paths]
        try:
            for batch in self.export_keys_values(torch.device("cpu"), table_id=table_id):
                for file, part in zip(files, batch):
                    if file is not None and part is not None:
                        file.write(part.numpy().tobytes())
        finally:
            for file in files:
                if file is not None:
                    file.close()

    def load(
        self,
        table_id: int,
        meta_file_path: Optional[str],
        emb_file_path: str,
        embedding_file_path: str,
        score_file_path: Optional[str] = None,
        opt_file_path: Optional[str] = None,
        include_optim: bool = False,
        timestamp: int = 0,
    ) -> None:
        """Reads what dump() wrote. The optimizer's state is used if it is one of the same optimizer; else it begins anew."""
        if meta_file_path and os.path.exists(meta_file_path):
            with open(meta_file_path, encoding="utf-8") as meta:
                given = json.load(meta)
            if given.get("opt_type") not in (None, self._optimizer.get_opt_args().get("opt_type")):
                include_optim = False
            if include_optim:
                self._optimizer.set_opt_args(given)
        dim, state = self._dims[table_id], self._state_dims[table_id]
        has_state = include_optim and state != 0 and bool(opt_file_path) and os.path.exists(str(opt_file_path))
        with open(emb_file_path, "rb") as keys_file, open(embedding_file_path, "rb") as rows_file:
            states_file = open(str(opt_file_path), "rb") if has_state else None
            try:
                while len(keys := _read(keys_file, numpy.int64, 1)):
                    parts = [_read(rows_file, numpy.float32, dim)]
                    if states_file is not None:
                        parts.append(_read(states_file, numpy.float32, state))
                    if any(len(part) != len(keys) for part in parts):
                        raise ValueError(f"{embedding_file_path} does not have a row for each key of {emb_file_path}")
                    values = torch.full((len(keys), dim + state), self._initial, dtype=torch.float32, device="cpu")
                    values[:, : dim + (state if states_file else 0)] = torch.cat(parts, dim=1)
                    self.tables[table_id].assign(keys.reshape(-1), values)
            finally:
                if states_file is not None:
                    states_file.close()

    def export_keys_values(
        self, device: torch.device, batch_size: int = _READ_AT_ONCE, table_id: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor], torch.Tensor]]:
        """Yields keys, embeddings, the optimizer's state (None if it has none) and scores, which are zeros."""
        saved = self.tables[table_id].export()
        dim, has_state = self._dims[table_id], self._state_dims[table_id] != 0
        for begin in range(0, len(saved.keys), batch_size):
            keys = torch.from_numpy(saved.keys[begin : begin + batch_size].view(numpy.int64)).to(device)
            rows = torch.from_numpy(saved.rows[begin : begin + batch_size]).to(device)
            states = rows[:, dim:].contiguous() if has_state else None
            yield keys, rows[:, :dim].contiguous(), states, torch.zeros_like(keys)

    def embedding_dtype(self) -> torch.dtype:
        """float32."""
        return torch.float32

    def embedding_dim(self, table_id: int) -> int:
        """The floats of an embedding."""
        return self._dims[table_id]

    def value_dim(self, table_id: int) -> int:
        """The floats of an embedding and its optimizer's state."""
        return self._dims[table_id] + self._state_dims[table_id]

    def max_embedding_dim(self) -> int:
        """The largest embedding_dim()."""
        return max(self._dims)

    def max_value_dim(self) -> int:
        """The floats of a row that find() returns with the optimizer's state."""
        return max(self._dims) + max(self._state_dims)

    def embedding_dims(self, on_device: bool = False) -> torch.Tensor:
        """embedding_dim() of all tables."""
        dims = torch.tensor(self._dims, dtype=torch.int64, device="cpu")
        return dims.cuda() if on_device else dims

    def all_dims_vec4(self) -> bool:
        """Whether all dimensions are multiples of four."""
        return all(dim % 4 == 0 and state % 4 == 0 for dim, state in zip(self._dims, self._state_dims))

    def init_optimizer_state(self) -> float:
        """What the optimizer's state of a new row is."""
        return self._initial


def _on_cpu(given: torch.Tensor) -> torch.Tensor:
    return given.detach().cpu().contiguous()


def _read(file: BinaryIO, kind: Any, width: int) -> torch.Tensor:
    read = numpy.frombuffer(file.read(_READ_AT_ONCE * width * numpy.dtype(kind).itemsize), dtype=kind)
    return torch.from_numpy(read.reshape(-1, width).copy())


def table_storage(
    worker: Worker, name: str, *, evict: str = "lfu", ttl: Optional[float] = None, touch_on_pull: bool = True
) -> type:
    """Returns a class for the option `external_storage` of dynamicemb (NVIDIA recsys-examples): its rows are in the job.

        options = DynamicEmbTableOptions(..., caching=True, external_storage=ps_shm.torch.table_storage(worker, "items"))

    dynamicemb keeps the rows that it uses in the GPU's memory and stores the others there. Row and optimizer state are one
    row of a table by key (Worker.table()), which is named NAME.0 for the first of the tables that dynamicemb groups. Several
    processes whose keys are not the same may use the same tables.

    The methods are those that dynamicemb of July 2026 calls. Embeddings are float32. Scores are not kept.

    Args:
        worker: whose job has the rows. It must live as long as the storage.
        name: the tables' names begin with it.
        evict, ttl, touch_on_pull: as for Worker.table(). Options of dynamicemb give the row size and the most rows.

    Raises:
        Nothing. An object of the class raises what Worker.table() does.
    """
    bases: tuple[type, ...] = (_TableStorage,)
    try:
        bases = (_TableStorage, importlib.import_module("dynamicemb.types").Storage)
    except ImportError:
        pass
    options = {"evict": evict, "ttl": ttl, "touch_on_pull": touch_on_pull}
    return type("TableStorage", bases, {"_worker": worker, "_name": name, "_options": options, "__doc__": _TableStorage.__doc__})
