"""What runs beside the training loop, one hook per file. :mod:`base` says what a hook sees and when it is called."""

from __future__ import annotations

from monolith.training.hooks.base import HeadResult, Hook, Run, StepResult
from monolith.training.hooks.prediction_dump import PredictionDumpHook
from monolith.training.hooks.progress import ProgressHook
from monolith.training.hooks.prometheus import PrometheusHook
from monolith.training.hooks.summaries import SummaryHook

__all__ = [
    "HeadResult",
    "Hook",
    "PredictionDumpHook",
    "ProgressHook",
    "PrometheusHook",
    "Run",
    "StepResult",
    "SummaryHook",
]
