"""``RankingHook``: measures groups and hours of a training, on rows before the model learned from them."""

from __future__ import annotations

from typing_extensions import override

from monolith.training.hooks.base import Hook
from monolith.training.metrics.ranking import RankingMetrics
from monolith.training.run import Run, StepResult

__all__ = ["RankingHook"]


class RankingHook(Hook):
    """Counts the rows of every step.

    Args:
        metrics: The metrics to update.
    """

    def __init__(self, metrics: RankingMetrics) -> None:
        self._metrics = metrics

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        self._metrics.update(result)
