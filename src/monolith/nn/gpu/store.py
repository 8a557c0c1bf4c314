"""``GpuStore``: the rows of a model on a GPU, as an ``EmbeddingStore``.

Snapshots, the delta log, exports and published cuts come from a copy of the tables in host memory. ``host_tables``
brings the copy up to date: it moves the rows that changed since the last call, and no others. Files and servers see no
difference from tables in host memory. The copy takes as much host memory as such tables.

One thread trains; another thread may call ``host_tables`` between two steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import MultiTable, TableSpec
from monolith.embedding.multi_table import RestoreReport
from monolith.embedding.snapshot import TableCut
from monolith.embedding.store import Ids, Manifest, Rows
from monolith.nn.gpu.table import GpuTable

__all__ = ["GpuStore"]


class GpuStore:
    """Several tables on one GPU with the interface of ``MultiTable`` that training needs.

    Args:
        specs: The tables, with different names.
        device: The GPU.
        force_expiry: Let saves and evictions drop any share of the rows; see ``Table.evict``.

    Raises:
        ConfigError: There is no GPU, or a spec needs a part that GPU tables do not have.
    """

    def __init__(
        self, specs: Iterable[TableSpec], device: str | torch.device = "cuda", *, force_expiry: bool = False
    ) -> None:
        self._copy = MultiTable(specs, force_expiry=force_expiry)
        self._device = torch.device(device)
        self._force_expiry = force_expiry
        self._tables = {name: GpuTable(spec, self._device) for name, spec in self._copy.specs.items()}

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """Name to spec, in sorted-name order."""
        return self._copy.specs

    def __getitem__(self, name: str) -> GpuTable:
        try:
            return self._tables[name]
        except KeyError:
            raise ConfigError(f"table is {name!r}, expected one of {', '.join(self._tables)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all tables on the GPU."""
        return sum(table.memory_bytes for table in self._tables.values())

    # --- steps ---

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id; see ``EmbeddingStore.pull``."""
        rows = {name: self[name].lookup(self._upload(ids[name])) for name in sorted(ids)}
        copies = {name: torch.empty(each.shape, pin_memory=True) for name, each in rows.items()}
        for name, each in rows.items():
            copies[name].copy_(each, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()
        return {name: each.numpy() for name, each in copies.items()}

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id; see ``EmbeddingStore.push``. The call does not wait for the GPU."""
        if ids.keys() != grads.keys():
            raise ConfigError(
                f"grads are of the tables {sorted(grads)}, expected {sorted(ids)}, the tables of the ids; give both"
            )
        for name, keys in ids.items():  # all of them before the first update
            shape, expected = np.shape(grads[name]), (len(keys), self[name].dim)
            if shape != expected:
                raise DimensionMismatch(f"gradients of table {name!r} have shape {shape}, expected {expected}")
        for name in sorted(ids):
            sightings = (counts or {}).get(name)
            self[name].apply_gradients(
                self._upload(ids[name]),
                self._upload(grads[name]),
                learning_rates=(learning_rates or {}).get(name),
                time_s=time_s,
                step=step,
                counts=None if sightings is None else torch.from_numpy(np.asarray(sightings).astype(np.int64)),
            )

    def _upload(self, array: NDArray[np.int64] | Rows) -> torch.Tensor:
        """Return a copy on the GPU, by an asynchronous transfer from pinned memory."""
        return torch.tensor(np.asarray(array)).pin_memory().to(self._device, non_blocking=True)

    # --- removals ---

    def delete(self, ids: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.bool_]]:
        """Remove rows by table; return for each id whether it had a row."""
        existed = {}
        for name, each in ids.items():
            keys = torch.from_numpy(np.asarray(each, np.int64)).to(self._device)
            existed[name] = self[name].contains(keys).cpu().numpy()
            self[name].delete(keys)
        return existed

    def evict(self, now_s: int | None = None, *, force: bool = False) -> int:
        """Remove the expired rows of all tables, each by its own clock unless ``now_s`` is given.

        Raises:
            ExpiryRefused: As ``Table.evict``, for any table.
        """
        force = force or self._force_expiry
        return sum(table.evict(now_s, force=force) for table in self._tables.values())

    # --- the copy in host memory ---

    def host_tables(self) -> MultiTable:
        """Bring the copy of all tables up to date, and return it. Do not change it."""
        for name, table in self._tables.items():
            table.copy_changes_to(self._copy[name])
        return self._copy

    def cut(self) -> TableCut:
        """Return a cut of all tables, to be written while training continues."""
        return self._tables_to_save().cut()

    def snapshot(self, path: str | PathLike[str]) -> Manifest:
        """Write all tables to ``path``, whole or not at all."""
        return self._tables_to_save().save(path)

    def _tables_to_save(self) -> MultiTable:
        tables = self.host_tables()
        for name, table in self._tables.items():
            table.copy_admission_to(tables[name])
        return tables

    def restore(self, path: str | PathLike[str]) -> RestoreReport:
        """Replace all rows by those of a snapshot; see ``MultiTable.restore``."""
        report = self._copy.restore(path)
        for name in self._tables:
            table = GpuTable(self.specs[name], self._device)
            table.add_rows_of(self._copy[name])
            table.drain_touched()  # the copy has these rows
            self._tables[name] = table
        return report
