"""Sections of the configuration of an agent, and ``DeployType``.

Plain values with the names, units and defaults of the configuration file. ``AgentConfig`` applies the rules, because
most of them concern several sections and name the line of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monolith.core.config_sections import subsection
from monolith.core.errors import ConfigError

__all__ = [
    "SERVER_FIELDS",
    "DenseServiceConfig",
    "DeployType",
    "FetchConfig",
    "LayoutConfig",
    "PortConfig",
    "RoughSortConfig",
    "ServerFlags",
    "ServiceConfig",
    "SupervisionConfig",
    "VersionConfig",
]


class DeployType(StrEnum):
    """Which servers a container runs."""

    PS = "ps"
    ENTRY = "entry"
    DENSE = "dense"
    MIXED = "mixed"
    UNIFIED = "unified"

    def server_type(self, wanted: str | None) -> str:
        """Return the server type of a call to this container.

        Args:
            wanted: The type that the caller asks for; None or ``mixed`` = the container's own.

        Raises:
            ConfigError: The container has no such server, or has several and the caller names none.
        """
        own = None if self is DeployType.MIXED else self.value
        asked = None if wanted in (None, DeployType.MIXED.value) else wanted
        if (own is None and asked is None) or (own is not None and asked not in (None, own)):
            raise ConfigError(
                f"server type is {wanted!r} and deploy_type is {self.value!r}: DeployType and ServerType is not "
                "compatable!; ask for a server type that the container runs"
            )
        return own or str(asked)


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """The service that the agent belongs to, and its place in it."""

    bzid: str | None = None
    base_name: str | None = None
    base_path: str | None = None
    num_ps: int = 1
    num_shard: int | None = None
    deploy_type: DeployType | None = None
    replica_id: int | None = None
    """-1 after reading = take a sequence number from ZooKeeper."""
    stand_alone_serving: bool = False
    zk_servers: str | None = None
    agent_version: int = 1
    dc_aware: bool = False


@dataclass(frozen=True, kw_only=True)
class EntryPorts:
    """Ports of the entry server."""

    tfs_entry_port: int | None = None
    tfs_entry_http_port: int | None = None
    tfs_entry_archon_port: int | None = None


@dataclass(frozen=True, kw_only=True)
class PsPorts:
    """Ports of the PS server."""

    tfs_ps_port: int | None = None
    tfs_ps_http_port: int | None = None
    tfs_ps_archon_port: int | None = None


@dataclass(frozen=True, kw_only=True)
class DensePorts:
    """Ports of the dense server."""

    tfs_dense_port: int | None = None
    tfs_dense_http_port: int | None = None
    tfs_dense_archon_port: int | None = None


@dataclass(frozen=True, kw_only=True)
class UnifiedPorts:
    """Ports of the unified server."""

    tfs_port_archon: int | None = None
    tfs_port_grpc: int | None = None
    tfs_port_http: int | None = None


@dataclass(frozen=True, kw_only=True)
class PortConfig:
    """Ports of the agent and of its servers; None = from the environment, or a free port."""

    agent_port: int | None = None
    proxy_port: int | None = None
    entry: EntryPorts = subsection(EntryPorts)
    ps: PsPorts = subsection(PsPorts)
    dense: DensePorts = subsection(DensePorts)
    unified: UnifiedPorts = subsection(UnifiedPorts)


@dataclass(frozen=True, kw_only=True)
class DenseServiceConfig:
    """Servers of the dense part."""

    dense_alone: bool = False
    dense_service_num: int = 3


@dataclass(frozen=True, kw_only=True)
class SupervisionConfig:
    """Start and supervision of the servers."""

    update_model_status_interval: int = 1
    max_waiting_sec: int = 1200
    preload_jemalloc: bool = True
    use_metrics: bool = True


@dataclass(frozen=True, kw_only=True)
class VersionConfig:
    """Versions of a model that a server loads."""

    version_policy: str = "latest"
    version_data: int = 1


@dataclass(frozen=True, kw_only=True)
class FetchConfig:
    """Calls of the entry server to the PS servers."""

    fetch_ps_timeout_ms: int = 200
    fetch_ps_long_conn_num: int = 100
    fetch_ps_long_conn_enable: bool = True
    fetch_ps_retry: int = 2
    aio_thread_num: int = 30
    file_system_poll_wait_seconds_ps: int = 0


@dataclass(frozen=True, kw_only=True)
class RoughSortConfig:
    """The rough-sort model that a server loads beside the others."""

    rough_sort_model_name: str | None = None
    rough_sort_model_local_path: str | None = None
    rough_sort_model_loaded_server: str | None = "entry"
    rough_sort_model_p2p_path: str | None = None
    rough_sort_resource_constrained: bool = False


@dataclass(frozen=True, kw_only=True)
class LayoutConfig:
    """The layout that the agent serves."""

    layout_pattern: str | None = None
    layout_filters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServerBatchFlags:
    """Batching flags of the server."""

    enable_batching: bool = False
    batching_parameters_file: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServerLoadFlags:
    """Flags of the server for loading versions."""

    allow_version_labels_for_unavailable_models: bool = False
    num_load_threads: int = 0
    num_unload_threads: int = 0
    max_num_load_retries: int = 5
    load_retry_interval_micros: int = 60_000_000
    file_system_poll_wait_seconds: int = 1
    flush_filesystem_caches: bool = True
    enable_model_warmup: bool = True


@dataclass(frozen=True, kw_only=True)
class ServerGrpcFlags:
    """gRPC flags of the server."""

    ssl_config_file: str | None = None
    grpc_channel_arguments: str | None = None
    grpc_max_threads: int = 0


@dataclass(frozen=True, kw_only=True)
class TensorflowFlags:
    """Flags of the server that concern TensorFlow."""

    tensorflow_session_parallelism: int = 0
    tensorflow_intra_op_parallelism: int = 0
    tensorflow_inter_op_parallelism: int = 0
    platform_config_file: str | None = None
    per_process_gpu_memory_fraction: float = 0.0
    allow_growth: bool = True
    saved_model_tags: str | None = None
    version: str | None = None
    remove_unused_fields_from_bundle_metagraph: bool = True
    enable_signature_method_name_check: bool = False
    xla_cpu_compilation_enabled: bool = False
    enable_profiler: bool = True


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Fields that are flags of the server; ``SERVER_FIELDS`` has their order."""

    batching: ServerBatchFlags = subsection(ServerBatchFlags)
    loading: ServerLoadFlags = subsection(ServerLoadFlags)
    grpc: ServerGrpcFlags = subsection(ServerGrpcFlags)
    tensorflow: TensorflowFlags = subsection(TensorflowFlags)


SERVER_FIELDS = (
    "enable_batching",
    "allow_version_labels_for_unavailable_models",
    "batching_parameters_file",
    "num_load_threads",
    "num_unload_threads",
    "max_num_load_retries",
    "load_retry_interval_micros",
    "file_system_poll_wait_seconds",
    "flush_filesystem_caches",
    "tensorflow_session_parallelism",
    "tensorflow_intra_op_parallelism",
    "tensorflow_inter_op_parallelism",
    "ssl_config_file",
    "platform_config_file",
    "per_process_gpu_memory_fraction",
    "allow_growth",
    "saved_model_tags",
    "grpc_channel_arguments",
    "grpc_max_threads",
    "enable_model_warmup",
    "version",
    "remove_unused_fields_from_bundle_metagraph",
    "enable_signature_method_name_check",
    "xla_cpu_compilation_enabled",
    "enable_profiler",
)
"""Fields that are flags of the server, in the order of the flags."""
