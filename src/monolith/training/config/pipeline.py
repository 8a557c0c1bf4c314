"""Overlap of the parts of a step. Each setting names the staleness that it costs; 0 and False are exact."""

from __future__ import annotations

from dataclasses import dataclass

from monolith.training.config._checks import check_bool, check_whole

__all__ = ["PipelineConfig"]


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Overlap of reading, looking up, computing and updating."""

    batch_prefetch_capacity: int = 2
    """Batches read ahead of the step; costs no staleness, 0 = off."""
    embedding_prefetch_capacity: int = 0
    """Batches whose rows are looked up ahead: rows may be that many steps old, 0 = off."""
    enable_embedding_postpush: bool = False
    """Push a step's row gradients during the next step: rows are one step older."""
    enable_variable_postpush: bool = False
    """Apply a step's dense gradients during the next step: weights are one step older."""
    max_event_ahead_s: int | None = 86_400
    """Seconds by which an event time may be ahead of the clock; later ones are clamped. None = any number."""

    def __post_init__(self) -> None:
        check_whole(self, "batch_prefetch_capacity", "embedding_prefetch_capacity", "max_event_ahead_s")
        check_bool(self, "enable_embedding_postpush", "enable_variable_postpush")
