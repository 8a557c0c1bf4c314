"""``DistributedConfig``: the settings of one process of a job, and the rules that they must satisfy.

Plain values: no discovery, no transport. The rules and their texts are those of the original system; each rule is
checked for the roles that it concerns. They name fields as users write them, in milliseconds; fields hold seconds.
``PushConfig`` has the rules of synchronization targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from monolith.core.config_sections import fill_sections, section, time_s
from monolith.core.errors import ConfigError
from monolith.training.config.cluster import ClusterConfig, ListenConfig
from monolith.training.config.runtime import RuntimeConfig

__all__ = ["DistributedConfig", "Role", "from_cluster"]

Role: TypeAlias = Literal["ps", "worker", "evaluator"]
"""The role of a process; worker 0 is the chief."""


@dataclass(frozen=True, kw_only=True)
class ProcessDiscovery:
    """The registration of the process, and the timeouts of discovery."""

    discovery_service_type_ps: str = "ps"
    """Service type of servers in discovery."""
    discovery_service_type_worker: str = "worker"
    """Service type of workers in discovery."""
    discovery_operation_timeout_s: float = time_s(
        5.0, flat="discovery_operation_timeout_ms", unit_s=0.001, is_whole=True
    )
    """Timeout of a discovery call."""
    discovery_cleanup_timeout_s: float = time_s(0.2, flat="discovery_cleanup_timeout_ms", unit_s=0.001, is_whole=True)
    """Timeout of each call of the discovery cleanup."""
    heartbeat_interval_s: float | None = 10.0
    """Seconds between heartbeats to discovery; None = no heartbeats."""


@dataclass(frozen=True, kw_only=True)
class ServerSearchConfig:
    """How a worker looks for the servers."""

    connect_retries: int = 6
    """Queries for the servers after the first."""
    retry_backoff_s: float = time_s(0.5, flat="retry_backoff_ms", unit_s=0.001, is_whole=True)
    """Seconds between two queries."""
    barrier_timeout_s: float = time_s(10.0, flat="barrier_timeout_ms", unit_s=0.001, is_whole=True)
    """Timeout of a barrier."""


@dataclass(frozen=True, kw_only=True)
class SingleTableConfig:
    """The table of single-table calls; the tables of a model have other names."""

    table_name: str = "emb"
    """Name of the table."""
    dim: int = 64
    """Columns of a table that a single-table call creates without a dimension."""


@dataclass(frozen=True, kw_only=True, init=False)
class DistributedConfig:
    """The settings of one process of a job. ``check`` raises for the first rule that they break.

    The constructor takes sections, single fields of them, or both.
    """

    role: Role = "worker"
    """The role of the process."""
    index: int = 0
    """The index of the process within its role."""
    num_ps: int = 1
    """Parameter servers of the job."""
    num_workers: int = 1
    """Workers of the job, the chief included."""
    listen: ListenConfig = section(ListenConfig)
    discovery: ProcessDiscovery = section(ProcessDiscovery)
    search: ServerSearchConfig = section(ServerSearchConfig)
    table: SingleTableConfig = section(SingleTableConfig)

    def __init__(self, **settings: Any) -> None:
        fill_sections(self, settings, {})

    @property
    def service_type(self) -> str:
        """The service type of this process in discovery; an evaluator is not registered."""
        names = self.discovery
        types = {"ps": names.discovery_service_type_ps, "worker": names.discovery_service_type_worker}
        return types.get(self.role, self.role)

    @property
    def service_id(self) -> str:
        """The id of this process in discovery: ``ps-0``, ``worker-1``."""
        return f"{self.role}-{self.index}"

    @property
    def advertised_host(self) -> str:
        """The host by which other processes reach this process."""
        return self.listen.advertised_host or self.listen.bind_host

    def check(self) -> None:
        """Check every rule of the role, in a fixed order.

        Raises:
            ConfigError: A rule is broken; the text names the first.
        """
        is_ps, is_worker = self.role == "ps", self.role == "worker"
        _require(self.num_ps > 0, "num_ps > 0")
        _require(self.num_workers > 0, "num_workers > 0")
        self._check_index(is_ps, is_worker)
        _require(self.table.dim > 0, "dim > 0")
        if is_worker:
            search = self.search
            _require(
                search.connect_retries <= 0 or search.retry_backoff_s > 0,
                "retry_backoff_ms > 0 when connect_retries > 0",
            )
            _require(search.barrier_timeout_s > 0, "barrier_timeout_ms > 0")
        self._check_discovery(is_worker)
        _check_name(self.table, "table_name")

    def _check_discovery(self, is_worker: bool) -> None:
        discovery = self.discovery
        _require(discovery.discovery_operation_timeout_s > 0, "discovery_operation_timeout > 0")
        _require(discovery.discovery_cleanup_timeout_s > 0, "discovery_cleanup_timeout > 0")
        interval_s = discovery.heartbeat_interval_s
        _require(interval_s is None or interval_s > 0, "heartbeat_interval > 0 when configured")
        _check_name(discovery, "discovery_service_type_ps")
        if is_worker:
            _check_name(discovery, "discovery_service_type_worker")
            types = {discovery.discovery_service_type_ps.lower(), discovery.discovery_service_type_worker.lower()}
            _require(len(types) == 2, "distinct discovery_service_type_ps and discovery_service_type_worker")

    def _check_index(self, is_ps: bool, is_worker: bool) -> None:
        if is_ps:
            where = f"index < num_ps for ps role (index={self.index} num_ps={self.num_ps})"
            _require(0 <= self.index < self.num_ps, where)
        if is_worker:
            where = f"index < num_workers for worker role (index={self.index} num_workers={self.num_workers})"
            _require(0 <= self.index < self.num_workers, where)


def from_cluster(cluster: ClusterConfig, process: RuntimeConfig) -> DistributedConfig:
    """Return the settings of one process, from those of its job."""
    discovery = cluster.discovery
    return DistributedConfig(
        role=cluster.server_type,
        index=process.index,
        num_ps=cluster.num_ps,
        num_workers=process.num_workers,
        listen=cluster.listen,
        discovery=ProcessDiscovery(
            discovery_service_type_ps=discovery.discovery_service_type_ps,
            discovery_service_type_worker=discovery.discovery_service_type_worker,
            discovery_operation_timeout_s=discovery.discovery_operation_timeout_s,
            discovery_cleanup_timeout_s=discovery.discovery_cleanup_timeout_s,
            heartbeat_interval_s=discovery.heartbeat_interval_s,
        ),
        search=ServerSearchConfig(
            connect_retries=cluster.retry.connect_retries, retry_backoff_s=cluster.retry.retry_backoff_s
        ),
    )


def _check_name(owner: object, field: str) -> None:
    value: str = getattr(owner, field)
    _require(bool(value.strip()), f"non-empty {field}")
    _require(value == value.strip(), f"{field} without leading/trailing whitespace")
    _require(not any(sign.isspace() for sign in value), f"{field} without whitespace characters")


def _require(is_met: bool, rule: str) -> None:
    if not is_met:
        raise ConfigError(f"distributed config requires {rule}")
