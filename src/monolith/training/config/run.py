"""The configuration of a run, made of sections.

A component receives its own section: ``config.checkpoint``. Callers name fields alone; see
:mod:`monolith.core.config_sections`.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from monolith.core.config_sections import fill_sections, section
from monolith.core.errors import ConfigError
from monolith.training.config._checks import check_path, label
from monolith.training.config.checkpoint import CheckpointConfig
from monolith.training.config.export import ExportConfig
from monolith.training.config.gradient import GradientConfig
from monolith.training.config.metrics import MetricsConfig
from monolith.training.config.pipeline import PipelineConfig
from monolith.training.config.publish import PublishConfig
from monolith.training.config.push import PushConfig
from monolith.training.config.retired import RETIRED
from monolith.training.config.run_settings import RunSettings
from monolith.training.config.runtime import RuntimeConfig
from monolith.training.config.tables import TableMemoryConfig

if TYPE_CHECKING:
    from monolith.training.config.runner import RunnerConfig

__all__ = ["RunConfig"]


@dataclass(frozen=True, kw_only=True, init=False)
class RunConfig:
    """How one process trains a model.

    The constructor takes sections, single fields of them, or both.

    >>> config = RunConfig(model_dir="runs/ranker", save_checkpoints_steps=1000)
    >>> config.checkpoint.save_checkpoints_steps, config.checkpoint.retention.checkpoints_max_to_keep
    (1000, 10)
    """

    model_dir: str | Path = ""
    """Folder or URL of the run: checkpoints, summaries, exports. Empty = keep nothing."""
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    pipeline: PipelineConfig = section(PipelineConfig)
    gradient: GradientConfig = section(GradientConfig)
    metrics: MetricsConfig = section(MetricsConfig)
    runtime: RuntimeConfig = section(RuntimeConfig)
    tables: TableMemoryConfig = section(TableMemoryConfig)
    publish: PublishConfig = section(PublishConfig)
    push: PushConfig = section(PushConfig)
    export: ExportConfig = section(ExportConfig, name="serving")

    def __init__(self, **settings: Unpack[RunSettings]) -> None:
        fill_sections(self, settings, RETIRED)
        self.__post_init__()

    def __post_init__(self) -> None:
        if self.model_dir != "":
            check_path(self, "model_dir")
        if self.push.sync_targets and self.publish.publish_dir is None:
            if not self.model_dir:
                raise ConfigError(
                    f"{label(self.push, 'sync_targets')} without publish_dir or model_dir; the log of changed rows "
                    "needs a folder: give one of them"
                )
            folder = f"{os.fspath(self.model_dir).rstrip('/')}/published"
            object.__setattr__(self, "publish", dataclasses.replace(self.publish, publish_dir=folder))

    def to_runner_config(self, **settings: Any) -> RunnerConfig:
        """Return the same settings, defaults included, with those of a job of several processes.

        >>> RunConfig(seed=7).to_runner_config(num_ps=2).runtime.seed
        7
        """
        from monolith.training.config.runner import RunnerConfig  # it is a RunConfig

        kept = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return RunnerConfig(**(kept | settings))

    def check_index(self) -> None:
        """Refuse a worker whose index is not below ``num_workers``.

        Raises:
            ConfigError: It is not.
        """
        if self.runtime.index >= self.runtime.num_workers:
            raise ConfigError(
                f"{label(self.runtime, 'index')} with num_workers {self.runtime.num_workers}; give 0 to num_workers - 1"
            )
