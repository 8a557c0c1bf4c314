"""A job of the command line with its place among the processes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from monolith.core.errors import ConfigError
from monolith.training.config.cluster import ClusterConfig
from monolith.training.config.job import JobConfig
from monolith.training.config.serving import ServingConfig

__all__ = ["ClusterJobConfig"]


@dataclass(frozen=True, kw_only=True)
class ClusterJobConfig(JobConfig, ClusterConfig, ServingConfig):
    """Everything that ``monolith train`` can be told; ``num_ps`` of 1 or more makes it a job of several processes."""

    def __post_init__(self) -> None:
        ClusterConfig.__post_init__(self)
        ServingConfig.__post_init__(self)
        JobConfig.__post_init__(self)
        if self.enable_partial_sync_training:
            self._check_team()
        if self.enable_sync_training:
            self._check_ranks()
        self._refuse_spare_servers()
        if self.enable_dynamic_sharding:
            self._check_shared_files()
        if self.ps_memory_action == "hold" and self.is_distributed and self.controller_port is None:
            raise ConfigError(
                "ps_memory_action is 'hold' and controller_port is None: nobody could let the workers go on; give "
                "controller_port 0, or ps_memory_action stop"
            )
        if self.server_type == "ps" or self.num_workers == 1 or not self.is_distributed:
            return
        if self.steps_per_eval is not None:
            raise ConfigError(
                f"steps_per_eval is {self.steps_per_eval} with {self.num_workers} workers; leave it out, and start a "
                "process with server_type evaluator, which scores every checkpoint"
            )

    def _check_team(self) -> None:
        """Refuse what does not go with workers that take every step together."""
        if self.num_ps == 0:
            raise ConfigError(
                "num_ps is 0 with enable_partial_sync_training, whose tables are on servers; give num_ps 1 or more, or "
                "enable_sync_training, whose ranks hold the tables"
            )
        for name, reason in (
            ("enable_sync_training", "there the ranks hold the tables, here servers do"),
            ("enable_dynamic_sharding", "a worker that waits for files would hold up all others"),
            ("kafka_topics", "a worker that waits for messages would hold up all others"),
            ("slow_start_steps", "no worker can begin later than the others"),
            ("enable_variable_postpush", "weights are the same at all workers after every step"),
        ):
            if value := getattr(self, name):
                raise ConfigError(
                    f"{name} is {value} with enable_partial_sync_training: {reason}; leave one of them out"
                )

    def _check_ranks(self) -> None:
        """Refuse what does not go with ranks, which hold the tables themselves and are told where they meet."""
        for name, value, is_given in (
            ("num_ps", self.num_ps, self.num_ps > 0),
            ("discovery_type", self.discovery_type, self.discovery_type is not None),
            ("server_type", self.server_type, self.server_type == "ps"),
        ):
            if is_given:
                raise ConfigError(
                    f"{name} is {value!r} with enable_sync_training; its ranks hold the tables and need no servers: "
                    f"leave {name} away"
                )
        if self.only_feature_engineering:
            raise ConfigError("only_feature_engineering trains nothing; leave enable_sync_training away")

    def _refuse_spare_servers(self) -> None:
        reasons = {
            "num_extra_ps": "servers are not measured against each other: let the scheduler avoid slow machines",
            "num_redundant_ps": "a lost server is started again in its place and recovers: launch --restart, or a "
            "StatefulSet",
        }
        for field, reason in reasons.items():
            if getattr(self, field):
                raise ConfigError(f"{field} is {getattr(self, field)}; only 0 is possible, because {reason}")

    def _check_shared_files(self) -> None:
        if not self.is_distributed:
            raise ConfigError("enable_dynamic_sharding is for a job of several workers and num_ps is 0; leave it out")
        if self.epochs != 1:
            raise ConfigError(
                f"epochs is {self.epochs} with enable_dynamic_sharding, which gives out every file once; run the job "
                "again for another pass, or leave one of them out"
            )

    @property
    def is_distributed(self) -> bool:
        """Whether the tables are in other processes."""
        return self.num_ps > 0

    @property
    def is_chief(self) -> bool:
        """Whether this process restores and saves."""
        return self.server_type == "worker" and self.index == 0

    def _check_index(self) -> None:
        # A role's own rules name the role; see DistributedConfig.
        if not self.is_distributed:
            super()._check_index()
