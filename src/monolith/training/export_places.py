"""Where the exports of a run lie, and what the model is called there."""

from __future__ import annotations

from pathlib import Path

from monolith.features import Model
from monolith.training.config import RunConfig

__all__ = ["export_base", "export_name"]


def export_base(config: RunConfig) -> Path:
    """Return the folder of a run's exports: inside the run's folder unless the settings say otherwise."""
    return Path(config.model_dir) / config.export.export_dir_base


def export_name(config: RunConfig, model: Model) -> str:
    """Return what the model is called in serving."""
    return config.export.model_name or config.metrics.deep_insight_name or type(model).__name__.lower()
