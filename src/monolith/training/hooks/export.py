"""``ExportHook``: exports the model with every checkpoint, for servers that poll the folder of its versions."""

from __future__ import annotations

import logging
from pathlib import Path

from typing_extensions import override

from monolith.artifacts import CheckpointFolder, read_manifest
from monolith.embedding import EmbeddingStore, MultiTable
from monolith.training.checkpoints.files import TABLES
from monolith.training.export_places import export_base, export_name
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["ExportHook"]

logger = logging.getLogger(__name__)


class ExportHook(Hook):
    """Writes a standalone export after each full checkpoint. Retention removes the export with its checkpoint.

    The export holds the dense weights at the time the checkpoint is complete, a few steps after its cut. Rows in this
    process are exported as of the same time. Rows on servers or ranks come from the checkpoint, which one process can
    read alone. A failed export is logged and counted; the checkpoint stays, and training continues.
    """

    def __init__(self) -> None:
        self.failures = 0
        """Exports that failed."""

    @override
    def after_save(self, run: Run, path: Path) -> None:
        from monolith.export import ExportOptions, export_model

        saved = read_manifest(path)
        if saved.kind != "full":
            return
        config = run.config.export
        try:
            export_model(
                run.model,
                _rows_of(run.store, path),
                export_base(run.config),
                name=export_name(run.config, run.model),
                step=run.step,
                options=ExportOptions(skip_zero_rows=config.skip_zero_embedding_when_serving),
                warmup=config.warmup_file,
                follows_step=saved.step,
                keep_steps={each.step for each in CheckpointFolder(path.parent).saved()},
                clock=run.clock,
            )
        except Exception:
            self.failures += 1
            logger.exception("export failed step=%d failures=%d", run.step, self.failures)


def _rows_of(store: EmbeddingStore, checkpoint: Path) -> EmbeddingStore:
    """Return the rows to export: those of this process, or else those of the checkpoint."""
    if isinstance(store, MultiTable):
        return store
    tables = MultiTable(spec.for_serving() for spec in store.specs.values())
    tables.restore(checkpoint / TABLES)
    return tables
