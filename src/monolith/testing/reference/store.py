"""``ReferenceStore``: an ``EmbeddingStore`` over reference tables, the fake for code that trains on a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path

from numpy.typing import ArrayLike

from monolith.core.errors import CheckpointMissing, ConfigError
from monolith.embedding.arguments import check_known
from monolith.embedding.specs import TableSpec
from monolith.embedding.store import Ids, Manifest, Rows
from monolith.testing.reference.table import ReferenceTable, TableState

__all__ = ["ReferenceStore"]


class ReferenceStore:
    """Tables as dicts; snapshots stay in memory, under the path they were given."""

    def __init__(self, specs: Iterable[TableSpec]) -> None:
        tables = {spec.name: ReferenceTable(spec) for spec in specs}
        self.tables = dict(sorted(tables.items()))
        self._snapshots: dict[str, dict[str, TableState]] = {}

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """The tables, in sorted-name order."""
        return {name: table.spec for name, table in self.tables.items()}

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id."""
        return {name: self._table(name).lookup(ids[name]) for name in sorted(ids)}

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
        """Take one optimizer step per id."""
        if ids.keys() != grads.keys():
            raise ConfigError(f"ids name the tables {sorted(ids)}, grads {sorted(grads)}; give both the same")
        check_known("learning_rates", learning_rates, self.tables)
        check_known("counts", counts, self.tables)
        for name in sorted(ids):  # all or nothing: check every table before the first update
            self._table(name).check_rows(ids[name], grads[name])
        for name in sorted(ids):
            self._table(name).apply_gradients(
                ids[name],
                grads[name],
                counts=(counts or {}).get(name),
                learning_rates=(learning_rates or {}).get(name),
                time_s=time_s,
                step=step,
            )

    def snapshot(self, path: str | PathLike[str]) -> Manifest:
        """Keep a copy of all rows under ``path``."""
        states = {name: table.snapshot_state() for name, table in self.tables.items()}
        self._snapshots[fspath(path)] = states
        return Manifest(
            path=Path(path),
            rows={name: len(state.rows) for name, state in states.items()},
            max_time_s={name: state.max_time_s for name, state in states.items()},
        )

    def restore(self, path: str | PathLike[str]) -> None:
        """Replace all rows by those that ``snapshot`` kept under ``path``."""
        if fspath(path) not in self._snapshots:
            raise CheckpointMissing(f"there is no snapshot at {fspath(path)!r}; call snapshot first")
        for name, state in self._snapshots[fspath(path)].items():
            self.tables[name].restore_state(state)

    def _table(self, name: str) -> ReferenceTable:
        if name not in self.tables:
            raise ConfigError(f"there is no table {name!r}; the tables are {', '.join(self.tables)}")
        return self.tables[name]
