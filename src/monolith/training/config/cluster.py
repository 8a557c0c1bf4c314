"""Clusters: the processes of a job, how they find each other, and how long they wait."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from monolith.core.config_sections import subsection, time_s
from monolith.core.errors import ConfigError
from monolith.training.config._checks import (
    check_bool,
    check_choice,
    check_number,
    check_path,
    check_text,
    check_whole,
)

__all__ = [
    "AsynchronousMode",
    "ClusterConfig",
    "DiscoveryConfig",
    "DiscoveryType",
    "ListenConfig",
    "MemoryAction",
    "Mode",
    "PartialSyncMode",
    "PsConfig",
    "PsSecurityConfig",
    "RanksMode",
    "RetryConfig",
    "ServerType",
    "SoloMode",
    "SyncConfig",
    "WaitConfig",
    "refuse_cluster",
]

ServerType: TypeAlias = Literal["ps", "worker", "evaluator"]
MemoryAction: TypeAlias = Literal["stop", "evict", "evict_oldest", "hold"]
DiscoveryType: TypeAlias = Literal["file", "tf_config", "mlp", "zookeeper", "consul"]


@dataclass(frozen=True, slots=True)
class SoloMode:
    """One process holds the tables and trains."""


@dataclass(frozen=True, slots=True)
class AsynchronousMode:
    """Tables on parameter servers; each worker takes its steps alone."""

    dense_exchange_steps: int
    """Steps between exchanges of dense weights among workers."""


@dataclass(frozen=True, slots=True)
class PartialSyncMode:
    """Tables on parameter servers; workers sum their dense gradients at each step."""

    dense_exchange_steps: int
    """Steps between copies of the dense weights to the servers."""


@dataclass(frozen=True, slots=True)
class RanksMode:
    """Ranks that a launcher such as torchrun starts; each holds a shard of the tables, and all step together."""


Mode: TypeAlias = SoloMode | AsynchronousMode | PartialSyncMode | RanksMode
"""How the processes of a job train together."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """The switches that select a ``Mode``."""

    enable_sync_training: bool = False
    """This process is one of several ranks: each holds a shard of the tables, and all of them step together."""
    enable_partial_sync_training: bool = False
    """Tables on parameter servers; workers sum their dense gradients at each step and step together."""
    dense_exchange_steps: int = 1
    """Steps between exchanges of dense weights among workers; in partial sync, between copies to the servers."""
    fp16_exchange: bool = False
    """Tables' rows and gradients travel as float16 between processes: half the bytes; dense ones stay float32."""

    def __post_init__(self) -> None:
        check_bool(self, "enable_sync_training", "enable_partial_sync_training", "fp16_exchange")
        check_whole(self, "dense_exchange_steps", at_least=1)
        if self.enable_sync_training and self.enable_partial_sync_training:
            raise ConfigError(
                "enable_sync_training and enable_partial_sync_training are both True: in the first the ranks hold the "
                "tables, in the second servers do; give one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """Where a server of the job listens."""

    bind_host: str = "127.0.0.1"
    """Interface that a server listens on; the default is for this machine only."""
    bind_port: int = 0
    """Port that a server listens on; 0 = any free port."""
    advertised_host: str | None = None
    """Name under which other processes reach this process; None = bind_host."""

    def __post_init__(self) -> None:
        check_text(self, "bind_host", "advertised_host")
        check_whole(self, "bind_port", at_most=65535)


@dataclass(frozen=True, kw_only=True)
class DiscoveryConfig:
    """How the processes of a job find each other."""

    discovery_type: DiscoveryType | None = None
    """How processes find each other: file, tf_config, mlp, zookeeper or consul."""
    discovery_folder: str | Path | None = None
    """Folder that all processes see, for discovery by file; None = 'cluster' in the model folder."""
    tf_config: str | None = None
    """The cluster as TF_CONFIG JSON, for discovery by tf_config."""
    zk_server: str | None = None
    """ZooKeeper servers (host:port,...), for discovery by zookeeper."""
    consul_server: str | None = None
    """Agent (host:port), for discovery by consul; None = the address in the environment."""
    uuid: str | None = None
    """Name of the job in discovery."""
    discovery_service_type_ps: str = "ps"
    """Name of servers in discovery."""
    discovery_service_type_worker: str = "worker"
    """Name of workers in discovery."""
    discovery_operation_timeout_s: float = time_s(
        5.0, flat="discovery_operation_timeout_ms", unit_s=0.001, is_whole=True
    )
    """Timeout of one discovery call, in milliseconds."""
    discovery_cleanup_timeout_s: float = time_s(0.2, flat="discovery_cleanup_timeout_ms", unit_s=0.001, is_whole=True)
    """Timeout of each call that deregisters a process, in milliseconds."""
    heartbeat_interval_s: float | None = time_s(10.0, flat="heartbeat_interval_secs")
    """Seconds between heartbeats to discovery; None = no heartbeats."""

    def __post_init__(self) -> None:
        check_choice(self, "discovery_type", get_args(DiscoveryType))
        check_path(self, "discovery_folder")
        check_text(self, "tf_config", "zk_server", "consul_server", "uuid")
        check_text(self, "discovery_service_type_ps", "discovery_service_type_worker")
        check_number(self, "discovery_operation_timeout_s", "discovery_cleanup_timeout_s", above=0)
        check_number(self, "heartbeat_interval_s", above=0)


@dataclass(frozen=True, kw_only=True)
class PsSecurityConfig:
    """Token and TLS between workers and parameter servers."""

    ps_token_file: str | Path | None = None
    """File with the token that servers ask for."""
    ps_tls_cert: str | Path | None = None
    """Certificate of this process (PEM) towards servers or clients."""
    ps_tls_key: str | Path | None = None
    """Private key of the certificate (PEM)."""
    ps_tls_ca: str | Path | None = None
    """Authority (PEM) that the other side's certificate must be of; turns TLS on at a worker."""

    def __post_init__(self) -> None:
        for path in ("ps_token_file", "ps_tls_cert", "ps_tls_key", "ps_tls_ca"):
            check_path(self, path)


@dataclass(frozen=True, kw_only=True)
class WaitConfig:
    """How long the processes of a job wait for each other."""

    chief_timeout_s: float = time_s(1800.0, flat="chief_timeout_secs")
    """Seconds that the chief waits at the end for workers that still train."""
    operation_timeout_s: float | None = time_s(None, flat="operation_timeout_in_ms", unit_s=0.001, is_whole=True)
    """Deadline of one call between processes in milliseconds; None = the default of the call."""
    session_creation_timeout_s: float = time_s(7200.0, flat="session_creation_timeout_secs")
    """Seconds in which a worker must have found the servers, and ranks of synchronous training each other."""
    restore_sync_timeout_s: float = time_s(1800.0, flat="restore_sync_timeout_secs")
    """Seconds that workers wait for the chief to restore."""
    restore_sync_poll_interval_s: float = time_s(1.0, flat="restore_sync_poll_interval_ms", unit_s=0.001, is_whole=True)
    """Milliseconds between checks whether the chief has restored."""

    def __post_init__(self) -> None:
        check_number(self, "chief_timeout_s", "session_creation_timeout_s", "restore_sync_timeout_s", at_least=0)
        check_number(self, "operation_timeout_s", "restore_sync_poll_interval_s", above=0)


@dataclass(frozen=True, kw_only=True)
class RetryConfig:
    """How often a worker tries again."""

    max_retry_times: int = 6
    """Times that a worker reconnects after servers were replaced; a transient fault does not count."""
    retry_wait_s: float = time_s(5.0, flat="retry_wait_in_secs")
    """Seconds between two reconnects."""
    connect_retries: int = 6
    """Attempts to reach one server."""
    retry_backoff_s: float = time_s(0.5, flat="retry_backoff_ms", unit_s=0.001, is_whole=True)
    """Milliseconds before the second attempt to reach a server; the pause doubles each time."""

    def __post_init__(self) -> None:
        check_whole(self, "max_retry_times", "connect_retries")
        check_number(self, "retry_wait_s", at_least=0)
        check_number(self, "retry_backoff_s", above=0)


@dataclass(frozen=True, kw_only=True)
class PsConfig:
    """Recovery, shutdown, metrics and memory of the parameter servers."""

    partial_recovery: bool = True
    """A lost server recovers alone; False rolls all servers and workers back to the last checkpoint with it."""
    force_shutdown_ps: bool = False
    """Stop the servers of a streaming job when it ends; without it they stay for the next chief."""
    ps_metrics_port: int | None = None
    """Port of a server's /metrics and /healthz; 0 = any free port, None = not served."""
    ps_memory_limit_mb: int | None = None
    """Memory in MiB that the tables of one server may take; None = no limit."""
    ps_memory_action: MemoryAction = "stop"
    """When a server is nearly full: stop the job, evict (expired rows, else stop), evict_oldest (any rows) or hold."""

    def __post_init__(self) -> None:
        check_bool(self, "partial_recovery", "force_shutdown_ps")
        check_whole(self, "ps_metrics_port", at_most=65535)
        check_whole(self, "ps_memory_limit_mb", at_least=1)
        check_choice(self, "ps_memory_action", get_args(MemoryAction))


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The processes of a job, and the role of this process."""

    server_type: ServerType = "worker"
    """Role of this process: ps (holds tables), worker (trains) or evaluator (scores each new checkpoint)."""
    num_ps: int = 0
    """Parameter servers; 0 = the tables are in the worker's own process."""
    num_extra_ps: int = 0
    """Only 0: servers to choose the fastest from; a slow machine is for the scheduler to avoid."""
    num_redundant_ps: int = 0
    """Only 0: spare servers; a lost server is restarted in its place and recovers."""
    sync: SyncConfig = subsection(SyncConfig)
    listen: ListenConfig = subsection(ListenConfig)
    discovery: DiscoveryConfig = subsection(DiscoveryConfig)
    security: PsSecurityConfig = subsection(PsSecurityConfig)
    wait: WaitConfig = subsection(WaitConfig)
    retry: RetryConfig = subsection(RetryConfig)
    ps: PsConfig = subsection(PsConfig)

    def __post_init__(self) -> None:
        check_choice(self, "server_type", get_args(ServerType))
        check_whole(self, "num_ps", "num_extra_ps", "num_redundant_ps")
        if self.sync.fp16_exchange and isinstance(self.mode, SoloMode) and self.server_type == "worker":
            raise ConfigError(
                "fp16_exchange is True and num_ps is 0, expected parameter servers or ranks that exchange rows; give "
                "--num-ps or --enable-sync-training, or drop it"
            )

    @property
    def mode(self) -> Mode:
        """How the processes train together."""
        if self.sync.enable_sync_training:
            return RanksMode()
        if self.sync.enable_partial_sync_training:
            return PartialSyncMode(self.sync.dense_exchange_steps)
        return AsynchronousMode(self.sync.dense_exchange_steps) if self.num_ps > 0 else SoloMode()


def refuse_cluster(config: ClusterConfig) -> None:
    """Refuse the settings of a job of several processes, where one process would train alone.

    Raises:
        ConfigError: A setting asks for servers or ranks; the text names the remedy.
    """
    here = "and this Estimator trains in one process"
    match config.mode:
        case RanksMode():
            raise ConfigError(
                f"enable_sync_training is True, {here}; start the ranks with monolith launch torchrun, or give "
                "Estimator(group=Ranks(...))"
            )
        case PartialSyncMode():
            raise ConfigError(f"enable_partial_sync_training is True, {here}; start the job with monolith launch")
    if config.num_ps:
        raise ConfigError(
            f"num_ps is {config.num_ps}, {here}; start the job with monolith launch or monolith train, or give "
            "Estimator(store=RemoteStore(...))"
        )
    if config.server_type != "worker":
        raise ConfigError(f"server_type is {config.server_type!r}, {here}; start the job with monolith launch")
