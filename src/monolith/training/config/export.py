"""Exports that a run writes while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monolith.core.errors import ConfigError
from monolith.training.config._checks import check_bool, check_choice, check_path, check_text, check_whole, label

__all__ = ["ExportConfig"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Exports of a model in training."""

    model_name: str | None = None
    """Name of the model in serving; None = deep_insight_name, else the name of the task."""
    export_when_saving: bool = False
    """Export the model with every checkpoint."""
    export_layout: Literal["standalone", "distributed"] = "standalone"
    """Form of these exports: standalone is one folder, distributed has an entry and sub-models ps_<i>."""
    export_shards: int | None = None
    """Number of ps sub-models of a distributed export; None = the number of servers or ranks."""
    export_remote_dense: bool = False
    """Put the dense part of a distributed export into the sub-model dense_0."""
    export_shares_tables: bool = False
    """Let exports refer to the tables of the checkpoint instead of copying them; servers convert them at load."""
    export_dir_base: str | Path = "exported_models"
    """Folder of the exports, inside the model folder unless absolute or a URL."""
    warmup_file: str | Path | None = None
    """File of recorded requests that each export carries for warm-up; None = generated requests."""
    skip_zero_embedding_when_serving: bool = False
    """Leave rows of zeros out of exports."""

    def __post_init__(self) -> None:
        check_text(self, "model_name")
        check_bool(
            self,
            "export_when_saving",
            "export_remote_dense",
            "export_shares_tables",
            "skip_zero_embedding_when_serving",
        )
        check_choice(self, "export_layout", ("standalone", "distributed"))
        check_whole(self, "export_shards", at_least=1)
        if self.export_layout == "standalone":
            for name in ("export_shards", "export_remote_dense"):
                if getattr(self, name):
                    raise ConfigError(f"{label(self, name)} with export_layout 'standalone'; give distributed")
        check_path(self, "export_dir_base")
        check_path(self, "warmup_file")
