"""When a run saves its state, what it keeps, and what it starts from. How that is written is not known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monolith.core.errors import ConfigError
from monolith.embedding.expiry import DEFAULT_EVICT_HOURS
from monolith.training.config._checks import (
    check_bool,
    check_mapping,
    check_number,
    check_path,
    check_text,
    check_whole,
    label,
    refuse_both,
)

__all__ = ["CheckpointConfig"]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Saving, retention and restoring of checkpoints."""

    save_checkpoints_secs: float | None = None
    """Seconds between checkpoints; with neither this nor save_checkpoints_steps, only the end of a run is saved."""
    save_checkpoints_steps: int | None = None
    """Steps between checkpoints; excludes save_checkpoints_secs."""
    checkpoints_max_to_keep: int = 10
    """How many of the newest checkpoints are kept, besides exempt ones."""
    keep_checkpoint_every_n_hours: float | None = 24.0
    """One checkpoint of each such span is kept for good; None spares none."""
    dense_only_save_checkpoints_secs: float | None = None
    """Seconds between extra saves of the dense part alone."""
    dense_only_save_checkpoints_steps: int | None = None
    """Steps between extra saves of the dense part alone; excludes dense_only_save_checkpoints_secs."""
    restore_dir: str | Path | None = None
    """Model folder of another run to start from, when the own one has no checkpoint yet."""
    restore_ckpt: str | None = None
    """Name of the checkpoint to start from instead of the latest; taken once."""
    clear_nn: bool = False
    """Start the dense part afresh and restore only the tables; taken once."""
    continue_training: bool = False
    """With clear_nn, keep the step of the checkpoint instead of counting from 0."""
    reload_alias_map: Mapping[str, str] | None = None
    """Weights that changed their names: {new name: name in the checkpoint}; excludes clear_nn."""
    tide_start_hour: int | None = None
    """Hour (UTC) at which the daily window of plentiful machines begins; None = no window."""
    tide_start_minute: int | None = None
    """Minute of that hour; None = 0."""
    tide_end_hour: int | None = None
    """Hour (UTC) at which the window ends; may be before the start, then the window spans midnight."""
    tide_end_minute: int | None = None
    """Minute of that hour; None = 0."""
    tide_save_secs: float | None = None
    """Seconds between checkpoints outside the window, where machines may be taken away."""
    background_save: bool = True
    """Write checkpoints while training goes on; False stops it until they are safe."""
    feature_eviction_on_save: bool = False
    """Remove expired rows from the tables with each save."""
    feature_evict_every_n_hours: float | None = DEFAULT_EVICT_HOURS
    """Event hours between two evictions of expired rows, in tables that have an expiry; None = no schedule."""
    force_expiry: bool = False
    """Save and evict although most rows of a table have expired; otherwise refused: event times may be wrong."""

    def __post_init__(self) -> None:
        check_number(self, "save_checkpoints_secs", "dense_only_save_checkpoints_secs", "tide_save_secs", above=0)
        check_whole(self, "save_checkpoints_steps", "dense_only_save_checkpoints_steps", at_least=1)
        refuse_both(self, "save_checkpoints_secs", "save_checkpoints_steps")
        refuse_both(self, "dense_only_save_checkpoints_secs", "dense_only_save_checkpoints_steps")
        check_whole(self, "checkpoints_max_to_keep", at_least=1)
        check_number(self, "keep_checkpoint_every_n_hours", "feature_evict_every_n_hours", above=0)
        check_path(self, "restore_dir")
        check_text(self, "restore_ckpt")
        check_bool(self, "clear_nn", "continue_training", "background_save", "feature_eviction_on_save", "force_expiry")
        check_mapping(self, "reload_alias_map", text_values=True)
        if self.clear_nn and self.reload_alias_map:
            raise ConfigError(
                f"{label(self, 'reload_alias_map')} with clear_nn True; "
                "a cleared dense part restores no weights, so give one of the two"
            )
        self._check_tide()

    def _check_tide(self) -> None:
        check_whole(self, "tide_start_hour", "tide_end_hour", at_most=23)
        check_whole(self, "tide_start_minute", "tide_end_minute", at_most=59)
        if (self.tide_start_hour is None) != (self.tide_end_hour is None):
            missing = "tide_start_hour" if self.tide_start_hour is None else "tide_end_hour"
            raise ConfigError(f"{label(self, missing)}; a tide window needs both tide_start_hour and tide_end_hour")
        if self.tide_start_hour is None:
            for field in ("tide_start_minute", "tide_end_minute", "tide_save_secs"):
                if getattr(self, field) is not None:
                    raise ConfigError(
                        f"{label(self, field)} without a tide window; give tide_start_hour and tide_end_hour too"
                    )
