"""Training: the estimator, its loop, hooks, metrics, checkpoints and the runner behind ``monolith train``."""

from __future__ import annotations
