"""The original's configuration of a process in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from monolith.core.config_sections import fill_sections, section
from monolith.core.errors import ConfigError
from monolith.training.config._checks import label
from monolith.training.config.cluster import ClusterConfig
from monolith.training.config.retired import RETIRED
from monolith.training.config.run import RunConfig

__all__ = ["RunnerConfig"]


@dataclass(frozen=True, kw_only=True, init=False)
class RunnerConfig(RunConfig):
    """A ``RunConfig`` with the cluster that the process belongs to."""

    cluster: ClusterConfig = section(ClusterConfig)

    def __init__(self, **settings: Any) -> None:
        fill_sections(self, settings, RETIRED)
        self.__post_init__()

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_index()

    @override
    def check_index(self) -> None:
        if self.cluster.server_type != "ps":
            super().check_index()
        elif self.runtime.index >= (servers := self.cluster.num_ps):
            raise ConfigError(f"{label(self.runtime, 'index')} with {servers} servers in all; give 0 to {servers - 1}")
