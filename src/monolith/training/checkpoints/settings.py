"""``CheckpointSettings``: the settings that a checkpointer reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

__all__ = ["CheckpointSettings"]


class CheckpointSettings(Protocol):
    """The fields of ``CheckpointConfig`` that control saving, retention and restoring."""

    @property
    def checkpoints_max_to_keep(self) -> int | None:
        """How many stay, exempt and spared ones not counted; None or 0 = all."""
        ...

    @property
    def keep_checkpoint_every_n_hours(self) -> float | None:
        """One per this time is never removed."""
        ...

    @property
    def restore_dir(self) -> str | Path | None:
        """Another run's folder to start from, while this run has no checkpoint."""
        ...

    @property
    def restore_ckpt(self) -> str | None:
        """The checkpoint to start from instead of the newest one; once."""
        ...

    @property
    def clear_nn(self) -> bool:
        """Restore only the tables, once; the dense part is initialized."""
        ...

    @property
    def continue_training(self) -> bool:
        """With ``clear_nn``: keep the step."""
        ...

    @property
    def reload_alias_map(self) -> Mapping[str, str] | None:
        """Weight (or module) of the model to the name it has in the checkpoint."""
        ...

    @property
    def background_save(self) -> bool:
        """Whether training continues while files are written."""
        ...

    @property
    def feature_eviction_on_save(self) -> bool:
        """Whether expired rows leave the tables with each save."""
        ...
