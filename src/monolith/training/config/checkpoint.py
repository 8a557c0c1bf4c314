"""Checkpoints: when a run saves them, which it keeps, and which it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monolith.core.config_sections import subsection, time_s
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

__all__ = ["CheckpointConfig", "RestoreConfig", "RetentionConfig", "TideConfig"]


@dataclass(frozen=True, kw_only=True)
class RetentionConfig:
    """Which checkpoints stay."""

    checkpoints_max_to_keep: int = 10
    """How many of the newest checkpoints are kept, besides exempt ones."""
    keep_checkpoint_every_s: float | None = time_s(24 * 3600.0, flat="keep_checkpoint_every_n_hours", unit_s=3600)
    """One checkpoint of each such span is never removed; None keeps no such checkpoint."""

    def __post_init__(self) -> None:
        check_whole(self, "checkpoints_max_to_keep", at_least=1)
        check_number(self, "keep_checkpoint_every_s", above=0)


@dataclass(frozen=True, kw_only=True)
class RestoreConfig:
    """Which state a run starts from."""

    restore_dir: str | Path | None = None
    """Model folder, checkpoint or snapshot (path or URL) to start from, when the own folder has no checkpoint yet."""
    restore_ckpt: str | None = None
    """Name of the checkpoint to start from instead of the latest; applied once."""
    clear_nn: bool = False
    """Initialize the dense part and restore only the tables; applied once."""
    grow_nn: bool = False
    """Keep each dense weight that fits, and pad matrices that new features made larger; excludes clear_nn."""
    continue_training: bool = False
    """With clear_nn, keep the step of the checkpoint instead of counting from 0."""
    reload_alias_map: Mapping[str, str] | None = None
    """Weights that changed their names: {new name: name in the checkpoint}; excludes clear_nn."""

    def __post_init__(self) -> None:
        check_path(self, "restore_dir")
        check_text(self, "restore_ckpt")
        check_bool(self, "clear_nn", "grow_nn", "continue_training")
        check_mapping(self, "reload_alias_map", text_values=True)
        if self.clear_nn and self.grow_nn:
            raise ConfigError(
                "grow_nn is True with clear_nn True; a cleared dense part has no weight to grow: give one of the two"
            )
        if self.clear_nn and self.reload_alias_map:
            raise ConfigError(
                f"{label(self, 'reload_alias_map')} with clear_nn True; "
                "a cleared dense part restores no weights, so give one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class TideConfig:
    """The daily window in which machines are plentiful; outside it, machines may be taken away."""

    tide_start_hour: int | None = None
    """Hour (UTC) at which the daily window of plentiful machines begins; None = no window."""
    tide_start_minute: int | None = None
    """Minute of that hour; None = 0."""
    tide_end_hour: int | None = None
    """Hour (UTC) at which the window ends; may be before the start, then the window spans midnight."""
    tide_end_minute: int | None = None
    """Minute of that hour; None = 0."""
    tide_save_s: float | None = time_s(None, flat="tide_save_secs")
    """Seconds between checkpoints outside the window, where machines may be taken away."""

    def __post_init__(self) -> None:
        check_number(self, "tide_save_s", above=0)
        check_whole(self, "tide_start_hour", "tide_end_hour", at_most=23)
        check_whole(self, "tide_start_minute", "tide_end_minute", at_most=59)
        if (self.tide_start_hour is None) != (self.tide_end_hour is None):
            missing = "tide_start_hour" if self.tide_start_hour is None else "tide_end_hour"
            raise ConfigError(f"{label(self, missing)}; a tide window needs both tide_start_hour and tide_end_hour")
        if self.tide_start_hour is None:
            for field in ("tide_start_minute", "tide_end_minute", "tide_save_s"):
                if getattr(self, field) is not None:
                    raise ConfigError(
                        f"{label(self, field)} without a tide window; give tide_start_hour and tide_end_hour too"
                    )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Saving, retention and restoring of checkpoints."""

    save_checkpoints_s: float | None = time_s(None, flat="save_checkpoints_secs")
    """Seconds between checkpoints; with neither this nor save_checkpoints_steps, only the end of a run is saved."""
    save_checkpoints_steps: int | None = None
    """Steps between checkpoints; excludes save_checkpoints_secs."""
    dense_only_save_checkpoints_s: float | None = time_s(None, flat="dense_only_save_checkpoints_secs")
    """Seconds between extra saves of the dense part alone."""
    dense_only_save_checkpoints_steps: int | None = None
    """Steps between extra saves of the dense part alone; excludes dense_only_save_checkpoints_secs."""
    background_save: bool = True
    """Write checkpoints while training continues; False pauses training until they are safe."""
    feature_eviction_on_save: bool = False
    """Remove expired rows from the tables with each save."""
    feature_evict_every_s: float | None = time_s(
        DEFAULT_EVICT_HOURS * 3600, flat="feature_evict_every_n_hours", unit_s=3600
    )
    """Event time between two evictions of expired rows, in tables that have an expiry; None = no schedule."""
    force_expiry: bool = False
    """Save and evict although most rows of a table have expired; otherwise refused: event times may be wrong."""
    retention: RetentionConfig = subsection(RetentionConfig)
    restore: RestoreConfig = subsection(RestoreConfig)
    tide: TideConfig = subsection(TideConfig)

    def __post_init__(self) -> None:
        check_number(self, "save_checkpoints_s", "dense_only_save_checkpoints_s", "feature_evict_every_s", above=0)
        check_whole(self, "save_checkpoints_steps", "dense_only_save_checkpoints_steps", at_least=1)
        refuse_both(self, "save_checkpoints_s", "save_checkpoints_steps")
        refuse_both(self, "dense_only_save_checkpoints_s", "dense_only_save_checkpoints_steps")
        check_bool(self, "background_save", "feature_eviction_on_save", "force_expiry")
