"""Where the exports of a run lie, and what the model is called there."""

from __future__ import annotations

from pathlib import Path

from monolith.features import Model
from monolith.training.config import RunConfig, ServingConfig

__all__ = ["export_base", "export_name"]


def export_base(config: RunConfig) -> Path:
    """Return the folder of a run's exports: inside the run's folder unless the settings say otherwise."""
    base = config.export_dir_base if isinstance(config, ServingConfig) else ServingConfig().export_dir_base
    return Path(config.model_dir) / base


def export_name(config: RunConfig, model: Model) -> str:
    """Return what the model is called in serving."""
    given = config.model_name if isinstance(config, ServingConfig) else None
    return given or config.deep_insight_name or type(model).__name__.lower()
