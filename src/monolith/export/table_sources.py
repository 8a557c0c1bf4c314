"""Sources of the rows of an export: tables in this process, a snapshot, or stores in other processes.

Each source writes the serving form of one shard at a time, so that an export never holds more than one shard.

* ``LiveTables``: tables of this process.
* ``SavedTables``: the snapshot of a checkpoint; training rows are converted while the files are read.
* Any other store writes a snapshot first: parameter servers and ranks write their own parts of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from monolith.artifacts.export_manifest import SharedTables
from monolith.core.errors import ConfigError
from monolith.core.scratch_folder import ScratchFolder
from monolith.embedding import EmbeddingStore, MultiTable, TableSpec
from monolith.embedding.snapshot import read_manifest
from monolith.export.options import ExportOptions
from monolith.export.shard_writer import ShardRequest, encode_specs, write_shard

__all__ = ["LiveTables", "SavedTables", "TableSource", "open_tables", "share_tables"]


class TableSource(Protocol):
    """Rows that can be written shard by shard in served form."""

    def write(self, folder: Path, shard: tuple[int, int], options: ExportOptions) -> Mapping[str, int]:
        """Write images of the ids with ``uint64(id) % count == index`` to a new folder; return rows by table."""
        ...


@dataclass(frozen=True, slots=True)
class LiveTables(TableSource):
    """The tables of this process."""

    tables: MultiTable

    @override
    def write(self, folder: Path, shard: tuple[int, int], options: ExportOptions) -> Mapping[str, int]:
        serving = self.tables.to_serving(
            skip_zero_rows=options.skip_zero_rows, full_precision=options.full_precision, shard=shard
        )
        serving.save_images(folder)
        return {name: len(serving[name]) for name in serving}


@dataclass(frozen=True, slots=True)
class SavedTables(TableSource):
    """The tables of a snapshot."""

    path: Path
    """Folder of the snapshot."""
    specs: Mapping[str, TableSpec]
    """Tables of the model; a table that the snapshot lacks is empty."""

    @override
    def write(self, folder: Path, shard: tuple[int, int], options: ExportOptions) -> Mapping[str, int]:
        return write_shard(
            ShardRequest(
                snapshot=str(self.path),
                target=str(folder),
                shard=shard,
                specs=encode_specs(self.specs.values()),
                skip_zero_rows=options.skip_zero_rows,
                full_precision=options.full_precision,
            )
        )


@contextmanager
def open_tables(store: EmbeddingStore | SavedTables) -> Iterator[TableSource]:
    """Yield the rows of a store; a store of other processes writes a temporary snapshot."""
    if isinstance(store, SavedTables):
        yield store
    elif isinstance(store, MultiTable):
        yield LiveTables(store)
    else:
        with ScratchFolder("monolith-export-") as folder:
            store.snapshot(folder)
            yield SavedTables(folder, store.specs)


def share_tables(store: EmbeddingStore | SavedTables, folder: Path, options: ExportOptions) -> SharedTables:
    """Return the reference of an export in ``folder`` to the tables of a checkpoint.

    Raises:
        ConfigError: The rows are not those of a checkpoint, the model has no tables, or a table needs its code.
    """
    if not isinstance(store, SavedTables):
        raise ConfigError(
            "shares_tables is True, and the rows are in memory, expected those of a checkpoint; give checkpoint=, or "
            "omit shares_tables (--share-tables)"
        )
    if not store.specs:
        raise ConfigError(
            "shares_tables is True, and the model has no tables, expected at least one; omit shares_tables "
            "(--share-tables)"
        )
    saved = {entry.name: entry for entry in read_manifest(store.path)}
    for name, spec in store.specs.items():
        entry = saved.get(name)
        if entry is None or entry.spec is None or TableSpec.from_json(json.dumps(entry.spec)).slices != spec.slices:
            reason = "lacks it" if entry is None else "has it with other slices, or a learning rate without a file form"
            raise ConfigError(
                f"shares_tables is True, and the checkpoint '{store.path}' cannot serve table {name!r}: it {reason}; "
                "omit shares_tables (--share-tables)"
            )
    return SharedTables(
        path=os.path.relpath(store.path.absolute(), folder.absolute()),
        generation=next(iter(saved.values())).generation,
        skip_zero_rows=options.skip_zero_rows,
        full_precision=options.full_precision,
    )
