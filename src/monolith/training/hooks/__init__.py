"""Hooks, which run beside the training loop, one per file. :mod:`base` defines when each method is called.

Hooks that no default list contains come from ``monolith.compat``, which is imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from monolith.training.hooks.base import Hook
from monolith.training.hooks.controller import ControllerHook
from monolith.training.hooks.early_stopping import EarlyStoppingHook
from monolith.training.hooks.experiment import ExperimentHook
from monolith.training.hooks.expiry import ExpiryHook
from monolith.training.hooks.export import ExportHook
from monolith.training.hooks.forget import ForgetHook
from monolith.training.hooks.memory_profile import MemoryProfileHook, heap_profile_environment
from monolith.training.hooks.prediction_dump import PredictionDumpHook
from monolith.training.hooks.profiler import ProfilerHook
from monolith.training.hooks.progress import ProgressHook
from monolith.training.hooks.prometheus import PrometheusHook
from monolith.training.hooks.publish import PublishHook
from monolith.training.hooks.push import PushHook
from monolith.training.hooks.slow_start import SlowStartHook
from monolith.training.hooks.stop_file import StopFileHook
from monolith.training.hooks.stop_signal import StopSignalHook
from monolith.training.hooks.summaries import SummaryHook
from monolith.training.hooks.table_memory import TableMemoryHook
from monolith.training.hooks.throughput import ThroughputHook
from monolith.training.run import HeadResult, Run, StepResult

if TYPE_CHECKING:
    from monolith.compat.hooks import (
        ActionFileHook,
        Barrier,
        BarrierHook,
        FileCloseHook,
        StoreHealthHook,
        TideStopHook,
    )

__all__ = [
    # the seam
    "HeadResult",
    "Hook",
    "Run",
    "StepResult",
    # steering
    "ActionFileHook",
    "Barrier",
    "BarrierHook",
    "ControllerHook",
    "EarlyStoppingHook",
    "ForgetHook",
    "SlowStartHook",
    "StopFileHook",
    "StopSignalHook",
    "StoreHealthHook",
    "TideStopHook",
    # measuring and showing
    "ExperimentHook",
    "MemoryProfileHook",
    "ProfilerHook",
    "ProgressHook",
    "PrometheusHook",
    "SummaryHook",
    "TableMemoryHook",
    "ThroughputHook",
    "heap_profile_environment",
    # files
    "ExpiryHook",
    "ExportHook",
    "FileCloseHook",
    "PredictionDumpHook",
    "PublishHook",
    "PushHook",
]

_COMPAT = ("ActionFileHook", "Barrier", "BarrierHook", "FileCloseHook", "StoreHealthHook", "TideStopHook")


def __getattr__(name: str) -> Any:
    """Import a hook of ``monolith.compat`` on first use."""
    if name not in _COMPAT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("monolith.compat.hooks"), name)
