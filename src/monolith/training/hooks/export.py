"""``ExportHook``: exports the model with every checkpoint, for servers that poll the folder of its versions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from monolith.artifacts import CheckpointFolder, read_manifest
from monolith.artifacts.export_folder import ExportFolder
from monolith.core.errors import CheckpointMissing
from monolith.embedding import EmbeddingStore, MultiTable
from monolith.training.checkpoints.choice import CHECKPOINTS
from monolith.training.checkpoints.files import TABLES
from monolith.training.export_places import export_base, export_name
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

if TYPE_CHECKING:
    from monolith.export import ExportOptions, SavedTables

__all__ = ["ExportHook"]

logger = logging.getLogger(__name__)


class ExportHook(Hook):
    """Writes an export after each full checkpoint, and the dense part of a distributed one after each dense-only save.

    The export holds the dense weights at the time the checkpoint is complete, a few steps after its cut. Rows in this
    process are exported as of the same time. Rows on servers or ranks come from the checkpoint, shard by shard.
    Retention removes the export with its checkpoint; a dense-only export goes with the checkpoint whose tables it uses.
    A failed export is logged and counted; the checkpoint stays, and training continues.
    """

    def __init__(self) -> None:
        self.failures = 0
        """Exports that failed."""

    @override
    def after_save(self, run: Run, path: Path) -> None:
        options = _options(run)
        with self._counting_failures(run):
            try:
                saved = read_manifest(path)
            except CheckpointMissing:  # retention removed it; a later one is in place, and is exported next
                logger.info("export skipped, checkpoint removed path=%s", path)
                return
            if saved.kind == "full":
                _export(run, _rows_of(run.store, path, options), options, follows_step=saved.step)

    @override
    def after_dense_save(self, run: Run, path: Path) -> None:
        options = _options(run, is_dense_only=True)
        if options.layout == "standalone":
            return  # a standalone export includes its tables
        with self._counting_failures(run):
            if not ExportFolder(export_base(run.config)).versions("ps_0"):
                return
            newest = CheckpointFolder(run.model_dir / CHECKPOINTS).newest()
            if newest is not None:
                _export(run, run.store, options, follows_step=newest.step)

    @contextmanager
    def _counting_failures(self, run: Run) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.failures += 1
            logger.exception("export failed step=%d failures=%d", run.step, self.failures)


def _export(run: Run, rows: EmbeddingStore | SavedTables, options: ExportOptions, *, follows_step: int) -> None:
    from monolith.export import export_model

    steps = {each.step for each in CheckpointFolder(run.model_dir / CHECKPOINTS).saved()}
    if options.shares_tables:
        steps.discard(follows_step)  # a second save of a step replaces the tables that earlier exports share
    export_model(
        run.model,
        rows,
        export_base(run.config),
        name=export_name(run.config, run.model),
        step=run.step,
        options=options,
        warmup=run.config.export.warmup_file,
        follows_step=follows_step,
        keep_steps=steps,
        clock=run.clock,
    )


def _options(run: Run, *, is_dense_only: bool = False) -> ExportOptions:
    from monolith.export import ExportOptions

    config = run.config.export
    is_distributed = config.export_layout == "distributed"
    shards = config.export_shards or getattr(run.store, "shards", 1)
    return ExportOptions(
        layout=config.export_layout,
        shards=shards if is_distributed else 1,
        has_remote_dense=config.export_remote_dense,
        is_dense_only=is_dense_only and is_distributed,
        shares_tables=config.export_shares_tables and not is_dense_only,
        skip_zero_rows=config.skip_zero_embedding_when_serving,
    )


def _rows_of(store: EmbeddingStore, checkpoint: Path, options: ExportOptions) -> EmbeddingStore | SavedTables:
    """Return the rows to export: those of this process, or else those of the checkpoint."""
    from monolith.export import SavedTables

    if isinstance(store, MultiTable) and not options.shares_tables:
        return store
    return SavedTables(checkpoint / TABLES, store.specs)
