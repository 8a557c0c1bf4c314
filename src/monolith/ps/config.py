"""Configuration of a parameter server, in sections by owner. The tables come from the model that connects."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, get_args

from monolith.core.config_sections import fill_sections, section
from monolith.core.errors import ConfigError
from monolith.embedding.expiry import DEFAULT_EVICT_HOURS
from monolith.embedding.specs import WhenFull
from monolith.rpc.security import Security

if TYPE_CHECKING:
    from monolith.ps.server_settings import ServerSettings

__all__ = ["PsLimits", "PsListenConfig", "PsRecoveryConfig", "PsTableConfig", "ServerConfig"]

_LONGEST_S = 1e9
"""The clocks of the threads cannot wait much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PsListenConfig:
    """Interfaces and ports of a server."""

    host: str = "127.0.0.1"
    """Interface to listen on; the default is this machine only. Use token and TLS on other interfaces."""
    advertised_host: str = ""
    """Host that clients dial, if it is not ``host``."""
    port: int = 0
    """Port of gRPC; 0 lets the system choose."""
    data_plane: bool = True
    """Whether to offer the native data plane; off with TLS, which it lacks."""
    data_port: int = 0
    """TCP port of the data plane; 0 lets the system choose."""
    metrics_port: int | None = None
    """Port of /metrics (Prometheus) and /healthz, on ``host``; 0 lets the system choose, None = not served."""

    def __post_init__(self) -> None:
        for name in ("port", "data_port", "metrics_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 1 << 16:
                raise ConfigError(f"{name} is {port}; give 0 (any) to 65535")

    @property
    def dialed_host(self) -> str:
        """The host that clients dial."""
        return self.advertised_host or self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class PsLimits:
    """Bounds of calls, connections and messages."""

    threads: int = 16
    """Concurrent gRPC calls, without those that wait at barriers."""
    max_barrier_waiters: int = 512
    """Concurrent waiters at barriers."""
    max_connections: int = 1024
    """Limit of connections per data-plane listener; each has a thread."""
    max_message_bytes: int = 256 << 20
    """Limit of one request and one response, over gRPC and the data plane."""
    max_inflight_bytes: int = 1 << 30
    """Memory that the requests of all connections of one data-plane listener may take together."""

    def __post_init__(self) -> None:
        _check_positive(
            self, "threads", "max_connections", "max_barrier_waiters", "max_message_bytes", "max_inflight_bytes"
        )
        if self.max_message_bytes >= 1 << 31:
            raise ConfigError(f"max_message_bytes is {self.max_message_bytes}; gRPC carries less than 2 GiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class PsTableConfig:
    """Tables of a server: memory, expiry and cuts."""

    force_expiry: bool = False
    """Save and evict although most rows of a table have expired; otherwise refused: event times may be wrong."""
    evict_every_hours: float | None = DEFAULT_EVICT_HOURS
    """Event hours between two evictions of expired rows; None = evict only on request."""
    default_dim: int = 16
    """Columns of a table that a single-table call creates without a width."""
    memory_limit_bytes: int | None = None
    """Memory limit of all tables together; None = no limit."""
    when_full: WhenFull | None = None
    """Reaction of a full table, in place of that of its spec: refuse new ids, or evict_oldest; None = as its spec."""
    cut_lease_s: float = 600.0
    """Lease of a pending cut: how long it keeps old rows without a save."""
    hold_lease_s: float = 10.0
    """Lease of a hold: how long a joint cut delays pushes if its client dies."""

    def __post_init__(self) -> None:
        _check_positive(self, "default_dim")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 1:
            raise ConfigError(f"memory_limit_bytes is {self.memory_limit_bytes}; give at least 1, or None")
        if self.when_full not in (None, *get_args(WhenFull)):
            raise ConfigError(f"when_full is {self.when_full!r}, expected 'refuse', 'evict_oldest' or None")
        _check_durations(self, "cut_lease_s", "hold_lease_s")
        if self.evict_every_hours is not None:
            _check_above_zero(self, "evict_every_hours")


@dataclass(frozen=True, slots=True, kw_only=True)
class PsRecoveryConfig:
    """The state that a restarted server recovers."""

    recover_from: Path | None = None
    """Snapshot to recover this shard's rows from; any number of shards may have written it."""
    delta_log: Path | None = None
    """Folder of this server's delta log, which a restart replays. The log is at most ``delta_interval_s`` behind.
    None = a crash loses all updates since the last checkpoint."""
    discard_log: bool = False
    """Whether to start without the log of another number of servers, which is set aside, although no checkpoint exists.
    """
    delta_interval_s: float = 1.0
    """Seconds between two segments of the log; a crash loses at most that much of the acknowledged updates."""

    def __post_init__(self) -> None:
        _check_durations(self, "delta_interval_s")


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class ServerConfig:
    """One server among ``shards``. The constructor takes sections, single fields of them, or both.

    >>> ServerConfig(index=1, shards=2, port=4000).listen.port
    4000
    """

    index: int = 0
    """Index of the shard, from 0."""
    shards: int = 1
    """Number of servers of the job."""
    security: Security = field(default_factory=Security)
    """TLS and token."""
    listen: PsListenConfig = section(PsListenConfig)
    limits: PsLimits = section(PsLimits)
    tables: PsTableConfig = section(PsTableConfig)
    recovery: PsRecoveryConfig = section(PsRecoveryConfig)

    def __init__(self, **settings: Unpack[ServerSettings]) -> None:
        fill_sections(self, settings, {})
        if self.shards < 1 or not 0 <= self.index < self.shards:
            raise ConfigError(f"index is {self.index} of {self.shards} servers; give 0 to {max(self.shards - 1, 0)}")


def _check_positive(owner: object, *names: str) -> None:
    for name in names:
        if getattr(owner, name) < 1:
            raise ConfigError(f"{name} is {getattr(owner, name)}; give at least 1")


def _check_above_zero(owner: object, *names: str) -> None:
    for name in names:
        if not getattr(owner, name) > 0:
            raise ConfigError(f"{name} is {getattr(owner, name)}; give a number above 0")


def _check_durations(owner: object, *names: str) -> None:
    for name in names:
        if not 0 < getattr(owner, name) <= _LONGEST_S:
            raise ConfigError(
                f"{name} is {getattr(owner, name)}, expected a number above 0 and at most {_LONGEST_S:g}; give seconds"
            )
