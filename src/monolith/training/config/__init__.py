"""The configuration of training: small sections by owner, and the configurations made of them."""

from __future__ import annotations

from monolith.training.config.checkpoint import CheckpointConfig
from monolith.training.config.cluster import ClusterConfig
from monolith.training.config.export import ExportConfig
from monolith.training.config.gradient import GradientConfig
from monolith.training.config.metrics import MetricsConfig
from monolith.training.config.pipeline import PipelineConfig
from monolith.training.config.publish import PublishConfig
from monolith.training.config.push import PushConfig
from monolith.training.config.retired import RETIRED
from monolith.training.config.run import RunConfig
from monolith.training.config.runner import RunnerConfig
from monolith.training.config.runtime import RuntimeConfig
from monolith.training.config.slow_start import slow_start_step
from monolith.training.config.tables import TableMemoryConfig
from monolith.training.config.tide import SaveTimer, TideWindow, is_available

__all__ = [
    # configs and their sections
    "CheckpointConfig",
    "ClusterConfig",
    "ExportConfig",
    "GradientConfig",
    "MetricsConfig",
    "PipelineConfig",
    "PublishConfig",
    "PushConfig",
    "RunConfig",
    "RunnerConfig",
    "RuntimeConfig",
    "TableMemoryConfig",
    # old and outside
    "RETIRED",
    # time
    "SaveTimer",
    "TideWindow",
    "is_available",
    "slow_start_step",
]
