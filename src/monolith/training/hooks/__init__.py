"""What runs beside the training loop, one hook per file. :mod:`base` says what a hook sees and when it is called."""

from __future__ import annotations

from monolith.training.hooks.action_file import ActionFileHook
from monolith.training.hooks.barrier import Barrier, BarrierHook
from monolith.training.hooks.base import Hook
from monolith.training.hooks.controller import ControllerHook
from monolith.training.hooks.export import ExportHook
from monolith.training.hooks.file_close import FileCloseHook
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
from monolith.training.hooks.store_health import StoreHealthHook
from monolith.training.hooks.summaries import SummaryHook
from monolith.training.hooks.throughput import Throughput, ThroughputHook
from monolith.training.hooks.tide_stop import TideStopHook
from monolith.training.run import HeadResult, Run, StepResult

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
    "SlowStartHook",
    "StopFileHook",
    "StopSignalHook",
    "StoreHealthHook",
    "TideStopHook",
    # measuring and showing
    "MemoryProfileHook",
    "ProfilerHook",
    "ProgressHook",
    "PrometheusHook",
    "SummaryHook",
    "Throughput",
    "ThroughputHook",
    "heap_profile_environment",
    # files
    "ExportHook",
    "FileCloseHook",
    "PredictionDumpHook",
    "PublishHook",
    "PushHook",
]
