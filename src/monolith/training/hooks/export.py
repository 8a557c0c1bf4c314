"""Exports the model with every checkpoint, for servers that poll the folder of its versions."""

from __future__ import annotations

import logging
from pathlib import Path

from monolith.artifacts import CheckpointFolder, read_manifest
from monolith.training.config import ServingConfig
from monolith.training.export_places import export_base, export_name
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["ExportHook"]

logger = logging.getLogger(__name__)


class ExportHook(Hook):
    """After each full checkpoint: a standalone export, which is removed when its checkpoint is.

    A checkpoint is written while training goes on; the export holds the model as it is when that is done, a few steps
    later. An export that fails is logged and counted, and training goes on: the checkpoint is safe.
    """

    def __init__(self) -> None:
        self.failures = 0
        """Exports that failed."""

    def after_save(self, run: Run, path: Path) -> None:
        """Export."""
        from monolith.export import ExportOptions, export_model

        saved = read_manifest(path)
        if saved.kind != "full":
            return
        serving = run.config if isinstance(run.config, ServingConfig) else ServingConfig()
        try:
            export_model(
                run.model,
                run.store,
                export_base(run.config),
                name=export_name(run.config, run.model),
                step=run.step,
                options=ExportOptions(skip_zero_rows=serving.skip_zero_embedding_when_serving),
                warmup=serving.warmup_file,
                follows_step=saved.step,
                keep_steps={each.step for each in CheckpointFolder(path.parent).saved()},
                clock=run.clock,
            )
        except Exception:
            self.failures += 1
            logger.exception("export failed step=%d failures=%d", run.step, self.failures)
