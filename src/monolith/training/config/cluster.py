"""Which processes make up a job, and how they find, await and outlive one another. No transport is known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from monolith.training.config._checks import check_bool, check_choice, check_number, check_text, check_whole

__all__ = ["ClusterConfig", "DiscoveryType", "ServerType"]

ServerType: TypeAlias = Literal["ps", "worker"]
DiscoveryType: TypeAlias = Literal["file", "tf_config", "mlp", "zookeeper", "consul"]


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Roles, discovery, waiting and retries of a job of several processes."""

    server_type: ServerType = "worker"
    """What this process is: ps (holds tables) or worker (trains)."""
    num_ps: int = 0
    """Parameter servers; 0 = the tables are in the worker's own process."""
    num_extra_ps: int = 0
    """Further servers to start and measure: the fastest num_ps of all are used."""
    num_redundant_ps: int = 0
    """Spare servers that take the place of lost ones."""
    discovery_type: DiscoveryType | None = None
    """How processes find each other: file, tf_config, mlp, zookeeper or consul."""
    tf_config: str | None = None
    """The cluster as TF_CONFIG JSON, for discovery by tf_config."""
    zk_server: str | None = None
    """ZooKeeper servers (host:port,...), for discovery by zookeeper."""
    uuid: str | None = None
    """Name of the job in discovery."""
    chief_timeout_secs: float = 1800
    """Seconds that the chief waits at the end for workers still at work."""
    operation_timeout_in_ms: int | None = None
    """Deadline of one call between processes in milliseconds; None = the default of the call."""
    session_creation_timeout_secs: float = 7200
    """Seconds in which all processes must have found each other."""
    max_retry_times: int = 6
    """Times that a worker comes back after servers were replaced; a passing fault counts for none."""
    retry_wait_in_secs: float = 5
    """Seconds between such attempts."""
    connect_retries: int = 6
    """Attempts to reach one server."""
    retry_backoff_ms: int = 500
    """Milliseconds before the second of these attempts; the pause doubles each time."""
    barrier_timeout_ms: int = 10_000
    """Milliseconds that workers wait for each other at a barrier."""
    restore_sync_timeout_secs: float = 1800
    """Seconds that workers wait for the chief to restore."""
    restore_sync_poll_interval_ms: int = 1000
    """Milliseconds between looks whether it has."""
    partial_recovery: bool = True
    """A lost server returns to its last checkpoint alone; False takes all servers back with it."""
    force_shutdown_ps: bool = False
    """End the servers with the job even where parameters are synchronised to serving."""
    enable_sync_training: bool = False
    """Each worker holds a shard of the tables and all workers step together."""
    enable_partial_sync_training: bool = False
    """Tables on parameter servers, dense gradients averaged over the workers at each step."""
    tf_grpc_worker_cache_threads: int | None = None
    """Exported to child processes as TF_GRPC_WORKER_CACHE_THREADS."""
    monolith_grpc_worker_service_handler_multiplier: float | None = None
    """Exported to child processes as MONOLITH_GRPC_WORKER_SERVICE_HANDLER_MULTIPLIER."""

    def __post_init__(self) -> None:
        check_choice(self, "server_type", get_args(ServerType))
        check_whole(self, "num_ps", "num_extra_ps", "num_redundant_ps", "max_retry_times", "connect_retries")
        check_choice(self, "discovery_type", get_args(DiscoveryType))
        check_text(self, "tf_config", "zk_server", "uuid")
        check_number(self, "chief_timeout_secs", "session_creation_timeout_secs", "retry_wait_in_secs", at_least=0)
        check_number(self, "restore_sync_timeout_secs", at_least=0)
        check_whole(self, "operation_timeout_in_ms", "restore_sync_poll_interval_ms", at_least=1)
        check_whole(self, "retry_backoff_ms", "barrier_timeout_ms", "tf_grpc_worker_cache_threads", at_least=1)
        check_bool(self, "partial_recovery", "force_shutdown_ps")
        check_bool(self, "enable_sync_training", "enable_partial_sync_training")
        check_number(self, "monolith_grpc_worker_service_handler_multiplier", above=0)
