"""Exports that a run writes while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from monolith.training.config._checks import check_bool, check_path, check_text

__all__ = ["ExportConfig"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Exports of a model in training."""

    model_name: str | None = None
    """Name of the model in serving; None = deep_insight_name, else the name of the task."""
    export_when_saving: bool = False
    """Export the model with every checkpoint."""
    export_dir_base: str | Path = "exported_models"
    """Folder of the exports, inside the model folder unless absolute."""
    warmup_file: str | Path | None = None
    """File of recorded requests that each export carries for warm-up; None = generated requests."""
    skip_zero_embedding_when_serving: bool = False
    """Leave rows of zeros out of exports."""

    def __post_init__(self) -> None:
        check_text(self, "model_name")
        check_bool(self, "export_when_saving", "skip_zero_embedding_when_serving")
        check_path(self, "export_dir_base")
        check_path(self, "warmup_file")
