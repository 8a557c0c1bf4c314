"""Which processes make up a job, and how they find, await and outlive one another. No transport is known here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from monolith.core.errors import ConfigError
from monolith.training.config._checks import (
    check_bool,
    check_choice,
    check_number,
    check_path,
    check_text,
    check_whole,
)

__all__ = ["ClusterConfig", "DiscoveryType", "MemoryAction", "ServerType", "refuse_cluster"]

ServerType: TypeAlias = Literal["ps", "worker", "evaluator"]
MemoryAction: TypeAlias = Literal["stop", "evict", "hold"]
DiscoveryType: TypeAlias = Literal["file", "tf_config", "mlp", "zookeeper", "consul"]


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Roles, discovery, waiting and retries of a job of several processes."""

    server_type: ServerType = "worker"
    """What this process is: ps (holds tables), worker (trains) or evaluator (scores each new checkpoint)."""
    bind_host: str = "127.0.0.1"
    """Interface that a server listens on; the default is for this machine only."""
    bind_port: int = 0
    """Port that a server listens on; 0 = any free one."""
    advertised_host: str | None = None
    """Name under which others reach this process; None = bind_host."""
    num_ps: int = 0
    """Parameter servers; 0 = the tables are in the worker's own process."""
    num_extra_ps: int = 0
    """Only 0: servers to choose the fastest from; a slow machine is for the scheduler to avoid."""
    num_redundant_ps: int = 0
    """Only 0: spare servers; a lost server is started again in its place, and recovers."""
    discovery_type: DiscoveryType | None = None
    """How processes find each other: file, tf_config, mlp, zookeeper or consul."""
    discovery_folder: str | Path | None = None
    """Folder that all processes see, for discovery by file; None = 'cluster' in the model folder."""
    tf_config: str | None = None
    """The cluster as TF_CONFIG JSON, for discovery by tf_config."""
    zk_server: str | None = None
    """ZooKeeper servers (host:port,...), for discovery by zookeeper."""
    consul_server: str | None = None
    """Agent (host:port), for discovery by consul; None = what the environment says."""
    uuid: str | None = None
    """Name of the job in discovery."""
    discovery_service_type_ps: str = "ps"
    """What servers are called in discovery."""
    discovery_service_type_worker: str = "worker"
    """What workers are called in discovery."""
    discovery_operation_timeout_ms: int = 5000
    """Milliseconds that one call of discovery may take."""
    discovery_cleanup_timeout_ms: int = 200
    """Milliseconds that each call may take with which a process leaves discovery."""
    heartbeat_interval_secs: float | None = 10.0
    """Seconds between signs of life to discovery; None = none."""
    ps_token_file: str | Path | None = None
    """File with the token that servers ask for."""
    ps_tls_cert: str | Path | None = None
    """Certificate of this process (PEM) towards servers or clients."""
    ps_tls_key: str | Path | None = None
    """Its private key (PEM)."""
    ps_tls_ca: str | Path | None = None
    """Authority (PEM) that the other side's certificate must be of; turns TLS on at a worker."""
    dense_exchange_steps: int = 1
    """Steps between exchanges of dense weights among workers; in partial sync, between copies to the servers."""
    chief_timeout_secs: float = 1800
    """Seconds that the chief waits at the end for workers still at work."""
    operation_timeout_in_ms: int | None = None
    """Deadline of one call between processes in milliseconds; None = the default of the call."""
    session_creation_timeout_secs: float = 7200
    """Seconds in which a worker must have found the servers, and ranks of synchronous training each other."""
    max_retry_times: int = 6
    """Times that a worker comes back after servers were replaced; a passing fault counts for none."""
    retry_wait_in_secs: float = 5
    """Seconds between such attempts."""
    connect_retries: int = 6
    """Attempts to reach one server."""
    retry_backoff_ms: int = 500
    """Milliseconds before the second of these attempts; the pause doubles each time."""
    restore_sync_timeout_secs: float = 1800
    """Seconds that workers wait for the chief to restore."""
    restore_sync_poll_interval_ms: int = 1000
    """Milliseconds between looks whether it has."""
    partial_recovery: bool = True
    """A lost server recovers alone; False takes all servers and workers back to the last checkpoint with it."""
    force_shutdown_ps: bool = False
    """End the servers with the job also where it reads a stream: those stay for the next chief otherwise."""
    ps_metrics_port: int | None = None
    """Port of a server's /metrics and /healthz; 0 = any free one, None = not served."""
    ps_memory_limit_mb: int | None = None
    """Memory in MiB that the tables of one server may take; None = no limit."""
    ps_memory_action: MemoryAction = "stop"
    """When a server is nearly full: stop (save and end the job), evict (expired rows; stop if too few) or hold."""
    enable_sync_training: bool = False
    """This process is one of several ranks: each holds a shard of the tables, and all of them step together."""
    enable_partial_sync_training: bool = False
    """Tables on parameter servers, and the dense gradients of all workers added up at each step: they step together."""

    def __post_init__(self) -> None:
        check_choice(self, "server_type", get_args(ServerType))
        check_whole(self, "num_ps", "num_extra_ps", "num_redundant_ps", "max_retry_times", "connect_retries")
        check_choice(self, "discovery_type", get_args(DiscoveryType))
        check_text(self, "tf_config", "zk_server", "consul_server", "uuid", "bind_host", "advertised_host")
        check_text(self, "discovery_service_type_ps", "discovery_service_type_worker")
        check_whole(self, "bind_port", "ps_metrics_port", at_most=65535)
        check_whole(self, "discovery_operation_timeout_ms", "discovery_cleanup_timeout_ms", at_least=1)
        check_whole(self, "dense_exchange_steps", at_least=1)
        check_number(self, "heartbeat_interval_secs", above=0)
        for path in ("discovery_folder", "ps_token_file", "ps_tls_cert", "ps_tls_key", "ps_tls_ca"):
            check_path(self, path)
        check_number(self, "chief_timeout_secs", "session_creation_timeout_secs", "retry_wait_in_secs", at_least=0)
        check_number(self, "restore_sync_timeout_secs", at_least=0)
        check_whole(self, "operation_timeout_in_ms", "restore_sync_poll_interval_ms", at_least=1)
        check_whole(self, "retry_backoff_ms", at_least=1)
        check_bool(self, "partial_recovery", "force_shutdown_ps")
        check_whole(self, "ps_memory_limit_mb", at_least=1)
        check_choice(self, "ps_memory_action", get_args(MemoryAction))
        check_bool(self, "enable_sync_training", "enable_partial_sync_training")


def refuse_cluster(config: object) -> None:
    """Refuse the settings of a job of several processes, where one process would train alone.

    Raises:
        ConfigError: A setting asks for servers, ranks or features without training; the text names the remedy.
    """
    if not isinstance(config, ClusterConfig):
        return
    remedies = {
        "num_ps": "start the job with monolith launch or monolith train, or give Estimator(store=RemoteStore(...))",
        "enable_sync_training": "start the ranks with monolith launch torchrun, or give Estimator(group=Ranks(...))",
        "enable_partial_sync_training": "start the job with monolith launch or monolith train",
        "only_feature_engineering": "write features with monolith train, or train without it",
    }
    for name, remedy in remedies.items():
        if value := getattr(config, name, None):
            raise ConfigError(f"{name} is {value!r}, and this Estimator trains in one process; {remedy}")
    if config.server_type != "worker":
        raise ConfigError(
            f"server_type is {config.server_type!r}, and this Estimator trains in one process, expected 'worker'; "
            "start the job with monolith launch or monolith train"
        )
