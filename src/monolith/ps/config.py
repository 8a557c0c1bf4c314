"""What a parameter server is told when it starts. Plain values; its tables come from the model that connects."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from monolith.core.errors import ConfigError
from monolith.rpc.security import Security

__all__ = ["ServerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One server among ``shards``."""

    index: int = 0
    """Which shard it holds, from 0."""
    shards: int = 1
    """Servers of the job."""
    host: str = "127.0.0.1"
    """Interface to listen on; the default is this machine only. Others should not reach it without token or TLS."""
    advertised_host: str = ""
    """Name under which others reach it, where that is not ``host``."""
    port: int = 0
    """Port of gRPC; 0 lets the system choose."""
    data_plane: bool = True
    """Offer the native data plane too; never done with TLS, which it does not speak."""
    data_port: int = 0
    """TCP port of the data plane; 0 lets the system choose."""
    max_connections: int = 1024
    """Connections that each of its listeners serves, one thread each."""
    security: Security = field(default_factory=Security)
    """TLS and token."""
    threads: int = 16
    """gRPC calls answered at the same time, those that wait at barriers aside."""
    max_barrier_waiters: int = 512
    """Callers that may wait at barriers at the same time."""
    max_message_bytes: int = 256 << 20
    """Largest request or answer, in gRPC and in the data plane."""
    default_dim: int = 16
    """Columns of a table that a single-table call makes without saying how many."""
    memory_limit_bytes: int | None = None
    """Memory that all tables may take together; None = no limit."""
    cut_lease_s: float = 600.0
    """How long a cut that nobody saves holds on to old rows."""
    recover_from: Path | None = None
    """Snapshot to take this shard's rows from before serving, whatever number of shards wrote it."""
    delta_log: Path | None = None
    """Folder of this server's delta log: what it learns is there ``delta_interval_s`` later, and recovered from there
    after a crash. None = what was learnt since the last checkpoint is lost with the process."""
    delta_interval_s: float = 1.0
    """Seconds from one segment of the log to the next: at most that much of what was acknowledged is lost."""
    hold_lease_s: float = 10.0
    """How long pushes are held back for a checkpoint of all servers whose taker does not come back."""
    metrics_port: int | None = None
    """Port of /metrics (Prometheus) and /healthz, on ``host``; 0 lets the system choose, None = not served."""

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 <= self.index < self.shards:
            raise ConfigError(f"index is {self.index} of {self.shards} servers; give 0 to {max(self.shards - 1, 0)}")
        for name in ("port", "data_port", "metrics_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 1 << 16:
                raise ConfigError(f"{name} is {port}; give 0 (any) to 65535")
        for name in ("threads", "max_connections", "max_barrier_waiters", "default_dim", "max_message_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.max_message_bytes >= 1 << 31:
            raise ConfigError(f"max_message_bytes is {self.max_message_bytes}; gRPC carries less than 2 GiB")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 1:
            raise ConfigError(f"memory_limit_bytes is {self.memory_limit_bytes}; give at least 1, or None")
        for name in ("cut_lease_s", "hold_lease_s", "delta_interval_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number above 0")
