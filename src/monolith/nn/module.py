"""``TableModule``: the base of all modules here, with their state in checkpoints, refusals, and the event clock."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from typing_extensions import override

from monolith.core.errors import ArtifactError, ConfigError, SchemaMismatch
from monolith.embedding import MultiTable, TableSpec
from monolith.nn.gpu import GpuTableSet
from monolith.nn.gpu.rank_set import GpuRankTableSet
from monolith.nn.host import HostTableSet
from monolith.nn.operators import read_bags, read_rows
from monolith.nn.ranks import RankTableSet
from monolith.nn.snapshots import load_snapshot, write_snapshot
from monolith.nn.table_set import InputColumn, TableSet

__all__ = ["RowsNotSavedWarning", "TableModule"]

_STATE_VERSION = 1


class RowsNotSavedWarning(UserWarning):
    """A ``state_dict`` was taken whose rows are in no snapshot."""


class TableModule(torch.nn.Module):
    """A module whose weights are rows of tables, not parameters.

    Args:
        specs: The tables.
        columns: The inputs.
        device: Device of the rows.
        group: Processes over which the rows are sharded; None keeps them in this process.
        host_bytes: Host memory per table for rows that have no room on a GPU; None = no rows there.
    """

    def __init__(
        self,
        specs: Sequence[TableSpec],
        columns: Sequence[InputColumn],
        *,
        device: str | torch.device,
        group: ProcessGroup | None = None,
        host_bytes: int | None = None,
    ) -> None:
        super().__init__()
        place = torch.device(device)
        if place.type not in ("cpu", "cuda"):
            raise ConfigError(f"device is {str(device)!r}, expected 'cpu' or 'cuda'; choose one")
        if host_bytes is not None and place.type == "cpu":
            raise ConfigError(f"host_bytes is {host_bytes}, expected None with device='cpu': all rows are there")
        self._tables: TableSet
        if group is not None and place.type == "cuda":
            self._tables = GpuRankTableSet(specs, columns, place, group, host_bytes=host_bytes)
        elif group is not None:
            self._tables = RankTableSet(specs, columns, group)
        elif place.type == "cpu":
            self._tables = HostTableSet(specs, columns)
        else:
            self._tables = GpuTableSet(specs, columns, place, host_bytes=host_bytes)
        self._saved: tuple[str, Path, int] | None = None

    # --- the tables ---

    @property
    def store(self) -> MultiTable:
        """The tables in host memory, for direct use: sizes, single rows, export. With ``group``, those of this rank.

        Raises:
            ConfigError: The rows are on a GPU.
        """
        if not isinstance(self._tables, HostTableSet):
            raise ConfigError(f"rows are on {self._tables.device}, not in host memory; use table_set.tables")
        return self._tables.own_rows

    @property
    def table_set(self) -> TableSet:
        """The tables with their updates; ``TableOptimizer`` uses it."""
        return self._tables

    @property
    def steps(self) -> int:
        """Updates so far."""
        return self._tables.step

    @property
    def event_time_s(self) -> int:
        """Unix seconds that the next updates record with their rows; tables with an expiry need it."""
        return self._tables.time_s

    @event_time_s.setter
    def event_time_s(self, seconds: int) -> None:
        self._tables.time_s = seconds

    @override
    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze the rows, or let them learn again.

        A call on a model around this module does not reach it: torch asks its parameters only.
        """
        self._tables.anchor.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)

    def _read_bags(self, values: Sequence[Tensor], offsets: Sequence[Tensor]) -> list[Tensor]:
        device = self._tables.device
        values, offsets = [each.to(device) for each in values], [each.to(device) for each in offsets]
        return read_bags(self._tables, values, offsets, training=self._is_learning())

    def _read_rows(self, ids: Sequence[Tensor]) -> list[Tensor]:
        return read_rows(self._tables, [each.to(self._tables.device) for each in ids], training=self._is_learning())

    def _is_learning(self) -> bool:
        if not (self.training and torch.is_grad_enabled() and self._tables.anchor.requires_grad):
            return False
        distributed = torch.distributed
        if self._tables.peers.is_sharded:
            return True
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise ConfigError(
                f"{type(self).__name__} trains in a group of {distributed.get_world_size()} processes, and its rows "
                "are of this process only; each process would learn other rows. Use a collection with group=, which "
                "shards the rows over processes"
            )
        return True

    # --- checkpoints of torch ---

    @override
    def get_extra_state(self) -> dict[str, Any]:
        tables = self._tables
        rows = tables.row_counts()
        saved = self._saved if self._saved is not None and self._saved[2] == tables.step else None
        if saved is None and any(rows.values()):
            warnings.warn(
                f"state_dict of {type(self).__name__} holds no rows: the {sum(rows.values())} rows changed since the "
                "last snapshot. Call mt.nn.save(module, folder) before state_dict()",
                RowsNotSavedWarning,
                stacklevel=2,
            )
        return {
            "version": _STATE_VERSION,
            "specs": [spec.to_json() for spec in tables.specs.values()],
            "rows": rows,
            "step": tables.step,
            "snapshot": None if saved is None else {"id": saved[0], "path": str(saved[1])},
        }

    @override
    def set_extra_state(self, state: Any) -> None:
        if not isinstance(state, dict) or state.get("version") != _STATE_VERSION:
            version = state.get("version") if isinstance(state, dict) else state
            raise ArtifactError(
                f"state of {type(self).__name__} has version {version!r}, expected {_STATE_VERSION}; load it with the "
                "release that wrote it"
            )
        ours = {name: spec.dim for name, spec in self._tables.specs.items()}
        theirs = {spec.name: spec.dim for spec in map(TableSpec.from_json, state["specs"])}
        if ours != theirs:
            raise SchemaMismatch(f"tables of the module are {ours}, those of the state {theirs}; make an equal module")
        reference = state["snapshot"]
        if reference is None:
            if any(state["rows"].values()):
                raise ArtifactError(
                    f"the state holds no rows, and its module had {state['rows']}; save it again with "
                    "mt.nn.save(module, folder) before state_dict()"
                )
            return
        if self._saved is not None and self._saved[0] == reference["id"] and self._saved[2] == self._tables.step:
            return  # mt.nn.load brought these rows
        if not Path(reference["path"]).is_dir():
            raise ArtifactError(
                f"snapshot {reference['path']!r} of the state is missing; if it was moved, call "
                "mt.nn.load(module, folder) before load_state_dict()"
            )
        self.load_rows(Path(reference["path"]))

    def save_rows(self, folder: Path) -> None:
        """Write the rows and the number of the step to a new folder; ``mt.nn.save`` calls it."""
        step = self._tables.step  # of the rows: another thread may train during the write
        self._saved = (write_snapshot(self._tables, folder), folder.absolute(), step)

    def load_rows(self, folder: Path) -> None:
        """Replace all rows by those of ``save_rows``."""
        self._saved = (load_snapshot(self._tables, folder), folder.absolute(), self._tables.step)

    @override
    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ConfigError(
            f"{type(self).__name__} cannot be pickled or copied: its rows are in a table. Use mt.nn.save(module, "
            "folder) with torch.save(module.state_dict()), and make a new module for mt.nn.load"
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce_ex__(2)
