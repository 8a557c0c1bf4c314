"""``GpuStore``: the rows of a model on a GPU, as an ``EmbeddingStore``.

Snapshots, the delta log, exports and published cuts come from a copy of the tables in host memory. ``host_tables``
brings the copy up to date: it moves the rows that changed since the last call, and no others. Files and servers see no
difference from tables in host memory. The copy takes as much host memory as such tables.

Threads may call all methods concurrently: one call at a time changes or reads the tables. All calls use the current
stream of their thread. It must be the same stream in all threads, such as the default stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding import MultiTable, TableSpec
from monolith.embedding.arguments import check_known
from monolith.embedding.multi_table import RestoreReport
from monolith.embedding.snapshot import TableCut
from monolith.embedding.store import Ids, Manifest, Rows
from monolith.embedding.wiring import Wiring
from monolith.nn.gpu.device import GpuDevice, open_device
from monolith.nn.gpu.keyed_rows import DistinctPlaces
from monolith.nn.gpu.layout_read import GpuReader
from monolith.nn.gpu.layouts import GpuLayouts, GpuPlan
from monolith.nn.gpu.table import GpuTable, read_together, update_together

__all__ = ["GpuStore"]


class GpuStore:
    """Several tables on one GPU with the interface of ``MultiTable`` that training needs.

    Args:
        specs: The tables, with different names.
        device: The GPU.
        host_bytes: Host memory per table for rows that have no room on the GPU; see ``GpuTable``.
        force_expiry: Let saves and evictions drop any share of the rows; see ``Table.evict``.

    Raises:
        ConfigError: There is no GPU, or a spec needs a part that GPU tables do not have.
    """

    def __init__(
        self,
        specs: Iterable[TableSpec],
        device: str | torch.device | GpuDevice = "cuda",
        *,
        host_bytes: int | None = None,
        force_expiry: bool = False,
    ) -> None:
        ordered = sorted(specs, key=lambda spec: spec.name)
        unbounded = [replace(spec, max_bytes=None, when_full="refuse") for spec in ordered]  # budgets are of the GPU
        self._copy = MultiTable(unbounded, force_expiry=force_expiry)  # refuses equal names
        self._specs = {spec.name: spec for spec in ordered}
        self._device = open_device(device)
        self._force_expiry = force_expiry
        self._host_bytes = host_bytes
        self._lock = threading.RLock()
        self._tables = {name: self._make_table(spec) for name, spec in self._specs.items()}

    def _make_table(self, spec: TableSpec) -> GpuTable:
        return GpuTable(spec, self._device, host_bytes=None if spec.max_bytes is None else self._host_bytes)

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """Name to spec, in sorted-name order."""
        return self._specs

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
        with self._lock:
            rows = {name: self[name].lookup(self._device.upload(ids[name])) for name in sorted(ids)}
        copies = {name: self._device.make_host_tensor(*each.shape, dtype=each.dtype) for name, each in rows.items()}
        for name, each in rows.items():
            copies[name].copy_(each, non_blocking=True)
        self._device.synchronize()
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
        check_known("learning_rates", learning_rates, self._specs)
        check_known("counts", counts, self._specs)
        for name, keys in ids.items():  # all of them before the first update
            shape, expected = np.shape(grads[name]), (len(keys), self[name].dim)
            if shape != expected:
                raise DimensionMismatch(f"gradients of table {name!r} have shape {shape}, expected {expected}")
        for name in sorted(ids):
            sightings = (counts or {}).get(name)
            with self._lock:
                self[name].apply_gradients(
                    self._device.upload(ids[name]),
                    self._device.upload(grads[name]),
                    learning_rates=(learning_rates or {}).get(name),
                    time_s=time_s,
                    step=step,
                    counts=None if sightings is None else torch.from_numpy(np.asarray(sightings).astype(np.int64)),
                )

    # --- steps whose rows stay on the GPU ---

    def open_layouts(self, wiring: Wiring) -> GpuReader:
        """Return the reader of a model, which fills its layouts on the GPU."""
        is_deterministic = any(spec.deterministic for spec in self._specs.values())
        return GpuReader(self, GpuLayouts(wiring, self._device, in_order=is_deterministic), self._device)

    def read_plan(self, plan: GpuPlan, rows: Sequence[Tensor]) -> list[DistinctPlaces]:
        """Read the rows of a plan, (U, D) per table, and return their places."""
        with self._lock:
            calls = [self[name].prepare_read(plan.ids(number), rows[number]) for number, name in enumerate(plan.tables)]
            read_together(calls)
        return [call.places for call in calls]

    def push_distinct(
        self,
        places: Mapping[str, DistinctPlaces],
        grads: Mapping[str, Tensor],
        counts: Mapping[str, Tensor],
        *,
        time_s: int,
        step: int,
    ) -> None:
        """Take one optimizer step per id of ``read_plan``; the call does not wait for the GPU."""
        with self._lock:
            calls = {
                name: self[name].prepare_update(each, grads[name], time_s=time_s, step=step, counts=counts.get(name))
                for name, each in places.items()
                if each.ids.shape[0]
            }
            update_together(calls.values(), step)
            for name, call in calls.items():
                self[name].finish_update(call.places.ids.shape[0])

    # --- removals ---

    def delete(self, ids: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.bool_]]:
        """Remove rows by table; return for each id whether it had a row."""
        existed = {}
        for name, each in ids.items():
            keys = self._device.upload(np.asarray(each, np.int64))
            with self._lock:
                existed[name] = self[name].contains(keys).cpu().numpy()
                self[name].delete(keys)
        return existed

    def evict(self, now_s: int | None = None, *, force: bool = False) -> int:
        """Remove the expired rows of all tables, each by its own clock unless ``now_s`` is given.

        Raises:
            ExpiryRefused: As ``Table.evict``, for any table.
        """
        force = force or self._force_expiry
        with self._lock:
            return sum(table.evict(now_s, force=force) for table in self._tables.values())

    # --- the copy in host memory ---

    def host_tables(self) -> MultiTable:
        """Bring the copy of all tables up to date, and return it. Do not change it."""
        with self._lock:
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
        with self._lock:
            tables = self.host_tables()
            for name, table in self._tables.items():
                table.copy_admission_to(tables[name])
            return tables

    def restore(self, path: str | PathLike[str]) -> RestoreReport:
        """Replace all rows by those of a snapshot; see ``MultiTable.restore``."""
        with self._lock:
            report = self._copy.restore(path)
            for name in self._tables:
                table = self._make_table(self.specs[name])
                table.add_rows_of(self._copy[name])
                table.drain_touched()  # the copy has these rows
                self._tables[name] = table
            return report
