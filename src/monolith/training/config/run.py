"""The configuration of a run: all sections in one flat dataclass.

A ``RunConfig`` is a ``CheckpointConfig``, a ``PipelineConfig`` and so on, so each component asks for its own section
and is handed the whole. Where values come from is the affair of :mod:`monolith.core.config`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from monolith.core.config_fields import unknown_field
from monolith.core.errors import ConfigError
from monolith.training.config._checks import check_path, label
from monolith.training.config.checkpoint import CheckpointConfig
from monolith.training.config.cluster import ClusterConfig
from monolith.training.config.gradient import GradientConfig
from monolith.training.config.metrics import MetricsConfig
from monolith.training.config.pipeline import PipelineConfig
from monolith.training.config.publish import PublishConfig
from monolith.training.config.push import PushConfig
from monolith.training.config.retired import RETIRED
from monolith.training.config.runtime import RuntimeConfig
from monolith.training.config.serving import ServingConfig

__all__ = ["RunConfig", "RunnerConfig"]


@dataclass(frozen=True, kw_only=True)
class RunConfig(
    CheckpointConfig, PipelineConfig, GradientConfig, MetricsConfig, RuntimeConfig, PublishConfig, PushConfig
):
    """How one process trains a model.

    >>> config = RunConfig(model_dir="runs/ranker", save_checkpoints_steps=1000)
    >>> isinstance(config, CheckpointConfig), config.checkpoints_max_to_keep
    (True, 10)
    """

    model_dir: str | Path = ""
    """Folder of the run: checkpoints, summaries, exports. Empty = keep nothing."""

    def __new__(cls, **values: Any) -> Self:
        """Refuse a name that is no field the way a file would be refused, instead of with Python's ``TypeError``."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise unknown_field(name, known, RETIRED, place=cls.__name__, config_type=cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.model_dir != "":
            check_path(self, "model_dir")
        sections = CheckpointConfig, PipelineConfig, GradientConfig, MetricsConfig, RuntimeConfig, PublishConfig
        for section in (*sections, PushConfig):
            section.__post_init__(self)
        if self.sync_targets and self.publish_dir is None:
            if not self.model_dir:
                raise ConfigError(
                    f"{label(self, 'sync_targets')} without publish_dir or model_dir; the log of changed rows that is "
                    "pushed from needs a folder: give one of them"
                )
            object.__setattr__(self, "publish_dir", str(Path(self.model_dir) / "published"))
        self._check_index()

    def _check_index(self) -> None:
        if self.index >= self.num_workers:
            raise ConfigError(f"{label(self, 'index')} with num_workers {self.num_workers}; give 0 to num_workers - 1")

    def to_runner_config(self, **cluster: Any) -> RunnerConfig:
        """Return the same settings, defaults included, with those of a job of several processes.

        >>> RunConfig(seed=7).to_runner_config(num_ps=2).seed
        7
        """
        shared = {field.name for field in dataclasses.fields(self)} & {f.name for f in dataclasses.fields(RunnerConfig)}
        return RunnerConfig(**({name: getattr(self, name) for name in shared} | cluster))


@dataclass(frozen=True, kw_only=True)
class RunnerConfig(RunConfig, ClusterConfig, ServingConfig):
    """How a process takes part in a job of several, which may feed serving."""

    def __post_init__(self) -> None:
        for section in (ClusterConfig, ServingConfig, RunConfig):
            section.__post_init__(self)

    def _check_index(self) -> None:
        if self.server_type != "ps":
            super()._check_index()
        elif self.index >= (servers := self.num_ps + self.num_extra_ps + self.num_redundant_ps):
            raise ConfigError(f"{label(self, 'index')} with {servers} servers in all; give 0 to {servers - 1}")
