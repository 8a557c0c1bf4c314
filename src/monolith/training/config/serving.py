"""What a job hands to serving while it trains: its names there, exports, parameter synchronisation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from monolith.training.config._checks import check_bool, check_path, check_text, check_whole

__all__ = ["ServingConfig"]


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """Export and synchronisation of a model in training."""

    model_name: str | None = None
    """Name of the model in serving; None = deep_insight_name, else the name of the task."""
    base_name: str | None = None
    """Name of the family of models in the serving registry."""
    bzid: str | None = None
    """Name of the business unit in the serving registry."""
    enable_parameter_sync: bool = False
    """Send changed rows to serving all the time."""
    export_when_saving: bool = False
    """Export the model with every checkpoint."""
    export_dir_base: str | Path = "exported_models"
    """Folder of the exports, inside the model folder unless absolute."""
    warmup_file: str | Path | None = None
    """File of requests that an export carries for warming up."""
    skip_zero_embedding_when_serving: bool = False
    """Leave rows of zeros out of what is served."""
    max_rpc_deadline_millis: int = 30_000
    """Deadline of one lookup at a serving parameter server, in milliseconds."""

    def __post_init__(self) -> None:
        check_text(self, "model_name", "base_name", "bzid")
        check_bool(self, "enable_parameter_sync", "export_when_saving", "skip_zero_embedding_when_serving")
        check_path(self, "export_dir_base")
        check_path(self, "warmup_file")
        check_whole(self, "max_rpc_deadline_millis", at_least=1)
