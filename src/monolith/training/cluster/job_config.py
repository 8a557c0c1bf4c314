"""``ClusterJobConfig``: the settings of ``monolith train``, with the role of the process in a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from monolith.core.config_sections import read_setting, section
from monolith.core.errors import ConfigError
from monolith.training.config.cluster import ClusterConfig, PartialSyncMode, RanksMode
from monolith.training.config.job import JobConfig

__all__ = ["ClusterJobConfig"]


@dataclass(frozen=True, kw_only=True, init=False)
class ClusterJobConfig(JobConfig):
    """All settings of ``monolith train``; with ``num_ps`` of 1 or more, the job has several processes."""

    cluster: ClusterConfig = section(ClusterConfig)

    @override
    def __post_init__(self) -> None:
        if not self.is_distributed:  # with servers, DistributedConfig names the role in its rules
            super().__post_init__()
        match self.cluster.mode:
            case PartialSyncMode():
                self._check_partial_sync()
            case RanksMode():
                self._check_ranks()
        if self.run.runtime.only_feature_engineering and self.is_distributed:
            raise ConfigError(
                f"only_feature_engineering is True with num_ps {self.cluster.num_ps}: it writes features and trains no "
                "tables; omit num_ps, or omit only_feature_engineering"
            )
        self._refuse_spare_servers()
        if self.is_distributed:
            self._refuse_local_limits()
        if self.input.enable_dynamic_sharding:
            self._check_shared_files()
        runtime = self.run.runtime
        if self.cluster.ps.ps_memory_action == "hold" and self.is_distributed and runtime.controller_port is None:
            raise ConfigError(
                "ps_memory_action is 'hold' and controller_port is None, so no operator could resume the workers; give "
                "controller_port 0, or ps_memory_action stop"
            )
        if self.cluster.server_type == "ps" or runtime.num_workers == 1 or not self.is_distributed:
            return
        if self.model.steps_per_eval is not None:
            raise ConfigError(
                f"steps_per_eval is {self.model.steps_per_eval} with {runtime.num_workers} workers; omit it, and start "
                "a process with server_type evaluator, which scores every checkpoint"
            )

    def _check_partial_sync(self) -> None:
        """Refuse settings that do not fit partially synchronous workers."""
        if self.cluster.num_ps == 0:
            raise ConfigError(
                "num_ps is 0 with enable_partial_sync_training, whose tables are on servers; give num_ps 1 or more, or "
                "enable_sync_training, whose ranks hold the tables"
            )
        for name, reason in (
            ("enable_dynamic_sharding", "a worker that waits for files would block all others"),
            ("kafka_topics", "a worker that waits for messages would block all others"),
            ("slow_start_steps", "all workers start together"),
            ("enable_variable_postpush", "weights are equal at all workers after every step"),
        ):
            if value := read_setting(self, name):
                raise ConfigError(f"{name} is {value} with enable_partial_sync_training: {reason}; omit one of them")

    def _check_ranks(self) -> None:
        """Refuse settings that do not fit ranks, which hold the tables and get their address from the launcher."""
        discovery_type = self.cluster.discovery.discovery_type
        for name, value, is_given in (
            ("num_ps", self.cluster.num_ps, self.cluster.num_ps > 0),
            ("discovery_type", discovery_type, discovery_type is not None),
            ("server_type", self.cluster.server_type, self.cluster.server_type == "ps"),
        ):
            if is_given:
                raise ConfigError(
                    f"{name} is {value!r} with enable_sync_training; its ranks hold the tables and need no servers: "
                    f"omit {name}"
                )
        if self.run.runtime.only_feature_engineering:
            raise ConfigError("only_feature_engineering is True, which trains nothing; omit enable_sync_training")

    def _refuse_local_limits(self) -> None:
        for field, remedy in (
            ("table_memory_limit_mb", "ps_memory_limit_mb"),
            ("when_tables_full", "ps_memory_limit_mb and ps_memory_action evict_oldest"),
        ):
            if (value := getattr(self.run.tables, field)) is not None:
                raise ConfigError(
                    f"{field} is {value!r} with num_ps {self.cluster.num_ps}, expected tables in this process; servers "
                    f"have {remedy}"
                )

    def _refuse_spare_servers(self) -> None:
        reasons = {
            "num_extra_ps": "servers are not compared by speed: let the scheduler avoid slow machines",
            "num_redundant_ps": "a lost server is restarted in its place and recovers: launch --restart, or a "
            "StatefulSet",
        }
        for field, reason in reasons.items():
            if value := getattr(self.cluster, field):
                raise ConfigError(f"{field} is {value}, expected 0, because {reason}")

    def _check_shared_files(self) -> None:
        if not self.is_distributed:
            raise ConfigError(
                "enable_dynamic_sharding is True and num_ps is 0, expected a job of several workers; omit it"
            )
        if self.input.epochs not in (None, 1):
            raise ConfigError(
                f"epochs is {self.input.epochs} with enable_dynamic_sharding, which reads every file once; run the job "
                "again for another pass, or omit one of them"
            )

    @property
    def is_distributed(self) -> bool:
        """Whether the tables are in other processes."""
        return self.cluster.num_ps > 0

    @property
    def is_chief(self) -> bool:
        """Whether this process restores and saves."""
        return self.cluster.server_type == "worker" and self.run.runtime.index == 0
