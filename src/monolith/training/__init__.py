"""Training: the estimator, its loop, hooks, metrics, checkpoints and the runner behind ``monolith train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monolith.training.config import RunConfig, RunnerConfig

if TYPE_CHECKING:
    from monolith.training.estimator import Estimator

__all__ = ["Estimator", "RunConfig", "RunnerConfig"]


def __getattr__(name: str) -> Any:
    """Import ``Estimator``, which needs torch, on first use."""
    if name != "Estimator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from monolith.training.estimator import Estimator

    return Estimator
