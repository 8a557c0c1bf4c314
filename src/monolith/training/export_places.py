"""Where the exports of a run lie, and what the model is called there."""

from __future__ import annotations

from pathlib import Path

from monolith.artifacts.remote_folder import open_folder
from monolith.core.storage import is_url
from monolith.features import Model
from monolith.training.config import RunConfig

__all__ = ["export_base", "export_name"]


def export_base(config: RunConfig) -> Path:
    """Return the folder of a run's exports: in the run's folder unless ``export_dir_base`` is absolute or a URL."""
    base = str(config.export.export_dir_base)
    return open_folder(base) if is_url(base) else Path(config.model_dir) / base


def export_name(config: RunConfig, model: Model) -> str:
    """Return what the model is called in serving."""
    return config.export.model_name or config.metrics.deep_insight_name or type(model).__name__.lower()
