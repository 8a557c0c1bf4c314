"""``DistributedConfig``: the settings of one process of a job, and the rules that they must satisfy.

Plain values: no discovery, no transport. The rules and their texts are those of the original system; each rule is
checked for the roles that it concerns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from monolith.core.errors import ConfigError
from monolith.sync.push_targets import canonical_target
from monolith.training.config.cluster import ClusterConfig
from monolith.training.config.runtime import RuntimeConfig

__all__ = ["DistributedConfig", "Role", "from_cluster"]

Role: TypeAlias = Literal["ps", "worker", "evaluator"]
"""The role of a process; worker 0 is the chief."""


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """The settings of one process of a job. ``check`` raises for the first rule that they break."""

    role: Role = "worker"
    """The role of the process."""
    index: int = 0
    """The index of the process within its role."""
    num_ps: int = 1
    """Parameter servers of the job."""
    num_workers: int = 1
    """Workers of the job, the chief included."""
    bind_host: str = "127.0.0.1"
    """Interface that the process listens on."""
    bind_port: int = 0
    """Port; 0 = any free port."""
    advertised_host: str = ""
    """Name by which other processes reach it, if that is not ``bind_host``."""
    discovery_service_type_ps: str = "ps"
    """Service type of servers in discovery."""
    discovery_service_type_worker: str = "worker"
    """Service type of workers in discovery."""
    table_name: str = "emb"
    """Table of single-table calls; the tables of a model have other names."""
    dim: int = 64
    """Columns of a table that a single-table call creates without a dimension."""
    connect_retries: int = 6
    """Queries for the servers after the first."""
    retry_backoff_ms: int = 500
    """Milliseconds between two queries."""
    barrier_timeout_ms: int = 10_000
    """Timeout of a barrier."""
    discovery_operation_timeout_ms: int = 5_000
    """Timeout of a discovery call."""
    discovery_cleanup_timeout_ms: int = 200
    """Timeout of each call of the discovery cleanup."""
    heartbeat_interval_s: float | None = 10.0
    """Seconds between heartbeats to discovery; None = no heartbeats."""
    parameter_sync_targets: Sequence[str] = ()
    """Serving processes that receive changed rows: host:port, or http(s)://host:port."""
    parameter_sync_interval_ms: int = 200
    """Milliseconds between two pushes."""
    parameter_sync_model_name: str = "default"
    """Name of the model at the targets."""
    parameter_sync_signature_name: str = "serving_default"
    """Name of the signature at the targets."""

    @property
    def service_type(self) -> str:
        """The service type of this process in discovery; an evaluator is not registered."""
        types = {"ps": self.discovery_service_type_ps, "worker": self.discovery_service_type_worker}
        return types.get(self.role, self.role)

    @property
    def service_id(self) -> str:
        """The id of this process in discovery: ``ps-0``, ``worker-1``."""
        return f"{self.role}-{self.index}"

    def check(self) -> None:
        """Check every rule of the role, in a fixed order.

        Raises:
            ConfigError: A rule is broken; the text names the first.
        """
        is_ps, is_worker = self.role == "ps", self.role == "worker"
        _require(self.num_ps > 0, "num_ps > 0")
        _require(self.num_workers > 0, "num_workers > 0")
        self._check_index(is_ps, is_worker)
        _require(self.dim > 0, "dim > 0")
        if is_worker:
            _require(
                self.connect_retries <= 0 or self.retry_backoff_ms > 0, "retry_backoff_ms > 0 when connect_retries > 0"
            )
            _require(self.barrier_timeout_ms > 0, "barrier_timeout_ms > 0")
        _require(self.discovery_operation_timeout_ms > 0, "discovery_operation_timeout > 0")
        _require(self.discovery_cleanup_timeout_ms > 0, "discovery_cleanup_timeout > 0")
        beats = self.heartbeat_interval_s
        _require(beats is None or beats > 0, "heartbeat_interval > 0 when configured")
        self._check_name("discovery_service_type_ps")
        if is_worker:
            self._check_name("discovery_service_type_worker")
            types = {self.discovery_service_type_ps.lower(), self.discovery_service_type_worker.lower()}
            _require(len(types) == 2, "distinct discovery_service_type_ps and discovery_service_type_worker")
        self._check_name("table_name")
        if is_ps:
            self._check_sync()

    def _check_index(self, is_ps: bool, is_worker: bool) -> None:
        if is_ps:
            where = f"index < num_ps for ps role (index={self.index} num_ps={self.num_ps})"
            _require(0 <= self.index < self.num_ps, where)
        if is_worker:
            where = f"index < num_workers for worker role (index={self.index} num_workers={self.num_workers})"
            _require(0 <= self.index < self.num_workers, where)

    def _check_name(self, field: str, when: str = "") -> None:
        value: str = getattr(self, field)
        _require(bool(value.strip()), f"non-empty {field}{when}")
        _require(value == value.strip(), f"{field} without leading/trailing whitespace{when}")
        _require(not any(sign.isspace() for sign in value), f"{field} without whitespace characters{when}")

    def _check_sync(self) -> None:
        if not self.parameter_sync_targets:
            return
        when = " when parameter_sync_targets are configured"
        _require(self.parameter_sync_interval_ms > 0, f"parameter_sync_interval > 0{when}")
        for target in self.parameter_sync_targets:
            _require(bool(target.strip()), "non-empty parameter_sync_targets entries")
            _require(target == target.strip(), "parameter_sync_targets entries without leading/trailing whitespace")
        seen: set[str] = set()
        for target in self.parameter_sync_targets:
            try:
                canonical = canonical_target(target)
            except ValueError as error:
                raise ConfigError(
                    f"distributed config has invalid parameter_sync_targets entry `{target}`: {error}"
                ) from error
            _require(canonical not in seen, "unique parameter_sync_targets entries")
            seen.add(canonical)
        self._check_name("parameter_sync_model_name", when)
        self._check_name("parameter_sync_signature_name", when)


def from_cluster(cluster: ClusterConfig, process: RuntimeConfig) -> DistributedConfig:
    """Return the settings of one process, from those of its job."""
    return DistributedConfig(
        role=cluster.server_type,
        index=process.index,
        num_ps=cluster.num_ps,
        num_workers=process.num_workers,
        bind_host=cluster.bind_host,
        bind_port=cluster.bind_port,
        advertised_host=cluster.advertised_host or "",
        discovery_service_type_ps=cluster.discovery_service_type_ps,
        discovery_service_type_worker=cluster.discovery_service_type_worker,
        connect_retries=cluster.connect_retries,
        retry_backoff_ms=cluster.retry_backoff_ms,
        discovery_operation_timeout_ms=cluster.discovery_operation_timeout_ms,
        discovery_cleanup_timeout_ms=cluster.discovery_cleanup_timeout_ms,
        heartbeat_interval_s=cluster.heartbeat_interval_secs,
    )


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise ConfigError(f"distributed config requires {what}")
