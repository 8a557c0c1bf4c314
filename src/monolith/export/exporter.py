"""``export_model`` writes a model and its tables as a new version; an export is complete or absent."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import monolith
from monolith.artifacts.checkpoint_folder import pin_checkpoint
from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import (
    PROGRAM,
    TABLES,
    TORCH_PROGRAM,
    WARMUP,
    WEIGHTS,
    DenseProgram,
    ExportManifest,
    ServedTable,
)
from monolith.artifacts.remote_folder import artifact_url, is_staged, open_folder, push_folder
from monolith.core.clock import Clock, SystemClock
from monolith.core.durable_files import sync_folder
from monolith.core.errors import ConfigError, VersionConflict
from monolith.embedding import EmbeddingStore
from monolith.export.dense_part import DensePart
from monolith.export.options import ExportOptions
from monolith.export.signatures import dense_signatures, score_signatures, table_signatures
from monolith.export.table_sources import SavedTables, TableSource, open_tables, share_tables
from monolith.export.warmup import copy_warmup, write_warmup
from monolith.features import Declaration, Model

__all__ = ["export_model", "export_onnx"]

logger = logging.getLogger(__name__)


def export_model(
    model: Model,
    store: EmbeddingStore | SavedTables,
    base: str | os.PathLike[str],
    *,
    name: str,
    step: int,
    version: int | None = None,
    options: ExportOptions | None = None,
    warmup: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    follows_step: int | None = None,
    keep_steps: Collection[int] | None = None,
    clock: Clock | None = None,
) -> Path:
    """Write a version of a model below ``base``.

    Args:
        model: The model, with its present weights.
        store: Rows of the model: a store, or the tables of a checkpoint. They are read shard by shard.
        base: Folder or URL of the model's exports; it has versions, or sub-models with versions.
        name: Name of the model.
        step: Training step of the model.
        version: Number of the version; None takes unix seconds.
        options: Layout and precision.
        warmup: File of ``PredictionLog`` TFRecords for the warm-up of servers; None generates requests.
        overwrite: Replace an existing version.
        follows_step: Step of the checkpoint that controls the retention of this export; None means ``step``.
        keep_steps: Steps of existing checkpoints; earlier exports of other steps are removed. None keeps all.
        clock: Clock of the version number.

    Returns:
        Folder of the version; for a distributed export the folder of ``entry``. For a URL, its local copy.

    Raises:
        ConfigError: The model cannot be exported.
        ArtifactError: The export is complete locally, and its upload failed; the text names URL and folder.
        VersionConflict: The version exists.
    """
    chosen = options or ExportOptions()
    now_s = (clock or SystemClock()).now_s()
    folder = ExportFolder(open_folder(base))
    if chosen.shares_tables and is_staged(folder.root):
        raise ConfigError(
            f"shares_tables is True and base is {str(base)!r}, expected a local folder: a URL cannot refer to the "
            "tables of a checkpoint; drop --share-tables"
        )
    work = _Export(model, store, folder, name, step, chosen, None if warmup is None else Path(warmup), now_s)
    work.pins_tables = chosen.shares_tables and keep_steps is None
    if chosen.is_dense_only:
        work.use_tables_of(_newest_tables(folder, chosen.shards))
    paths = folder.add(
        version,
        work.sub_models,
        work.write,
        now_s=now_s,
        overwrite=overwrite,
        follows_step=follows_step,
        keep_steps=keep_steps,
    )
    path = paths[work.sub_models[0]]
    push_folder(folder.root)
    logger.info("model exported name=%s step=%d path=%s", name, step, artifact_url(path))
    return path


def export_onnx(
    model: Model, path: str | os.PathLike[str], *, options: ExportOptions | None = None, overwrite: bool = False
) -> DenseProgram:
    """Write only the dense part, as one ONNX file that includes its weights.

    Raises:
        ConfigError: The model cannot be exported.
        VersionConflict: The file exists.
    """
    target = Path(path)
    if options is not None and options.has_torch_program:
        raise ConfigError(
            "options have a torch program, expected none for a single ONNX file; drop --program and --torch-program"
        )
    if target.is_dir():
        raise ConfigError(f"path is the folder '{target}', expected a file such as '{target / 'model.onnx'}'")
    if target.exists() and not overwrite:
        raise VersionConflict(f"'{target}' exists; give another name, or overwrite=True (--overwrite)")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = DensePart(model)
    with tempfile.TemporaryDirectory(prefix=".temp-onnx-", dir=target.parent) as folder:
        made = Path(folder) / "model.onnx"
        described = part.write_single(made, options or ExportOptions())
        made.replace(target)
    sync_folder(target.parent)
    return described


def _newest_tables(folder: ExportFolder, shards: int) -> int | None:
    """Return the newest version that every shard has; None before the first."""
    common = set.intersection(*(set(folder.versions(f"ps_{index}")) for index in range(shards)))
    return max(common, default=None)


class _Export:
    """One export in progress."""

    def __init__(
        self,
        model: Model,
        store: EmbeddingStore | SavedTables,
        folder: ExportFolder,
        name: str,
        step: int,
        options: ExportOptions,
        warmup: Path | None,
        now_s: float,
    ) -> None:
        if not name:
            raise ConfigError("name is empty, expected the name of the model")
        self._model, self._store, self._folder = model, store, folder
        self._warmup, self._options = warmup, options
        self._declaration = _for_serving(model.declaration)
        self._tables_version: int | None = None
        self.pins_tables = False
        """Whether the checkpoint whose tables this export shares stays as long as the export."""
        self._header = ExportManifest(
            name=name,
            version=0,
            sub_model="standalone",
            global_step=step,
            exported_at_s=now_s,
            package_version=monolith.__version__,
            signatures={},
        )

    def use_tables_of(self, version: int | None) -> None:
        """Set the version whose tables an export without tables uses."""
        self._tables_version = version

    @property
    def sub_models(self) -> list[str]:
        """Names of the sub-models; the one that takes requests is first."""
        options = self._options
        if options.layout == "standalone":
            return [""]
        parts = [] if options.is_dense_only else [f"ps_{index}" for index in range(options.shards)]
        return ["entry", *(["dense_0"] if options.has_remote_dense else []), *parts]

    def write(self, staging: Path, version: int) -> dict[str, ExportManifest]:
        """Write all sub-models."""
        self._header = replace(self._header, version=version)
        if self.pins_tables and isinstance(self._store, SavedTables):
            # Before the export has its name: retention, or a kill, may come between the two.
            paths = [self._folder.path_of(version, sub) for sub in self.sub_models]
            pin_checkpoint(self._store.path.parent, [staging, *paths])
        part = DensePart(self._model)
        if self._options.layout == "standalone":
            program = self._write_dense(staging, part)
            with self._open_tables() as source:
                placed = self._place_tables(source, staging, "", (0, 1))
            return {"": replace(self._front(staging, part, program, placed.tables, has_tables=True), **placed.fields)}
        home = "dense_0" if self._options.has_remote_dense else "entry"
        program = self._write_dense(staging / home, part)
        known = self._describe_tables({})
        found = {"entry": self._front(staging / "entry", part, program, known, has_tables=False)}
        found["entry"] = replace(found["entry"], tables_version=self._tables_version)
        if self._options.has_remote_dense:
            found["entry"] = replace(found["entry"], dense=None)
            found["dense_0"] = replace(
                self._header,
                sub_model="dense",
                shard=(0, 1),
                signatures=dense_signatures(program.inputs, program.outputs),
                dense=program,
                has_torch_program=self._options.has_torch_program,
            )
        if not self._options.is_dense_only:
            found |= self._write_shards(staging)
        return found

    def _open_tables(self) -> AbstractContextManager[TableSource | None]:
        return nullcontext() if self._options.shares_tables else open_tables(self._store)

    def _front(
        self, folder: Path, part: DensePart, program: DenseProgram, tables: tuple[ServedTable, ...], has_tables: bool
    ) -> ExportManifest:
        """Write the warm-up requests of the sub-model that takes records; return its manifest."""
        scores = score_signatures(part.heads, part.outputs)
        warmup = folder / WARMUP
        warmup.parent.mkdir()
        if self._warmup is None:
            write_warmup(warmup, self._declaration, list(scores), self._header.name)
        else:
            copy_warmup(self._warmup, warmup, list(scores))
        options = self._options
        return replace(
            self._header,
            sub_model="standalone" if has_tables else "entry",
            shard=None if has_tables else (0, options.shards),
            signatures={**scores, **(table_signatures(tables) if has_tables else {})},
            declaration=json.loads(self._declaration.to_json()),
            heads=part.heads,
            tables=tables,
            has_tables=has_tables,
            dense=program,
            has_torch_program=options.has_torch_program and not options.has_remote_dense,
        )

    def _write_dense(self, folder: Path, part: DensePart) -> DenseProgram:
        (folder / PROGRAM).parent.mkdir()
        packed = part.write_torch(folder / TORCH_PROGRAM, self._options) if self._options.has_torch_program else None
        if packed is not None and self._options.program == "torch":
            return packed
        return part.write(folder / PROGRAM, folder / WEIGHTS, self._options)

    def _place_tables(self, source: TableSource | None, folder: Path, sub: str, shard: tuple[int, int]) -> _Placed:
        """Write the tables of one shard, or refer to those of the checkpoint."""
        if source is None:
            shared = share_tables(self._store, self._folder.path_of(self._header.version, sub), self._options)
            return _Placed(self._describe_tables({}), {"shared_tables": shared})
        return _Placed(self._describe_tables(source.write(folder / TABLES, shard, self._options)), {})

    def _describe_tables(self, rows: Mapping[str, int]) -> tuple[ServedTable, ...]:
        found = []
        for name, spec in sorted(self._store.specs.items()):
            served = spec.for_serving(self._options.full_precision)
            compressors = tuple((piece.dim, piece.compressor.kind) for piece in served.slices)
            found.append(ServedTable(name=name, dim=served.dim, rows=rows.get(name, 0), compressors=compressors))
        return tuple(found)

    def _write_shards(self, staging: Path) -> dict[str, ExportManifest]:
        count = self._options.shards
        found = {}
        with self._open_tables() as source:
            for index in range(count):
                sub = f"ps_{index}"
                placed = self._place_tables(source, staging / sub, sub, (index, count))
                found[sub] = replace(
                    self._header,
                    sub_model="ps",
                    shard=(index, count),
                    signatures=table_signatures(placed.tables, index),
                    tables=placed.tables,
                    has_tables=True,
                    **placed.fields,
                )
        return found


@dataclass(frozen=True, slots=True)
class _Placed:
    """The tables of one shard of an export, and the fields of its manifest that tell where they are."""

    tables: tuple[ServedTable, ...]
    fields: dict[str, Any]


def _for_serving(declaration: Declaration) -> Declaration:
    """Return the declaration without learning rates: some are functions, which a file cannot hold."""
    return replace(
        declaration,
        slices={
            table: {name: replace(piece, learning_rate=None) for name, piece in pieces.items()}
            for table, pieces in declaration.slices.items()
        },
        feature_list=None,
    )
