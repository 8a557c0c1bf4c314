"""What a run publishes for servers while it trains. How it is written, and who reads it, is not known here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monolith.training.config._checks import check_choice, check_number, check_path

__all__ = ["PublishConfig"]


@dataclass(frozen=True, kw_only=True)
class PublishConfig:
    """Publishing of rows and dense weights as they are learnt."""

    publish_dir: str | Path | None = None
    """Folder to publish in; servers follow it (monolith serve --sync-from). None = nothing is published."""
    publish_interval_s: float = 1.0
    """Seconds between publishes."""
    publish_flavour: Literal["serving", "durable"] = "serving"
    """Form of rows: serving, as slices are served; durable, with optimizer state, for full_precision exports."""

    def __post_init__(self) -> None:
        check_path(self, "publish_dir")
        check_number(self, "publish_interval_s", above=0)
        check_choice(self, "publish_flavour", ("serving", "durable"))
