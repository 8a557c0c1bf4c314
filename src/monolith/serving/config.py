"""What a model server is told when it starts. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monolith.core.errors import ConfigError
from monolith.rpc.security import Security
from monolith.serving.batching import BatchSettings
from monolith.serving.model_config import ModelConfig

__all__ = ["ServingConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """One model server."""

    models: Sequence[ModelConfig] = ()
    """The models; or ``model_config_file``."""
    model_config_file: Path | None = None
    """A ModelServerConfig of TensorFlow Serving, as text."""
    model_config_poll_s: float = 0.0
    """How often that file is read again; 0 = only at the start."""
    version_poll_s: float = 1.0
    """How often the folders are looked at for new versions; 0 = only at the start."""
    host: str = "127.0.0.1"
    """Interface to listen on; the default is this machine only. Others should not reach it without token or TLS."""
    port: int | None = 8500
    """Port of gRPC; 0 lets the system choose, None = not served."""
    rest_port: int | None = 8501
    """Port of REST, health and metrics; 0 lets the system choose, None = not served."""
    security: Security = field(default_factory=Security)
    """TLS and token, of both."""
    batching: BatchSettings = field(default_factory=BatchSettings)
    """How requests are gathered."""
    max_message_bytes: int = 64 << 20
    """Largest request or answer of gRPC, and largest body of REST."""
    max_calls: int = 1024
    """Calls of gRPC under way, and connections of REST; further ones are refused."""
    grpc_threads: int = 64
    """Calls of gRPC that are read, waited for and answered at the same time; the rest of ``max_calls`` waits."""
    grpc_options: Sequence[tuple[str, str | int]] = ()
    """Further channel arguments of gRPC."""
    request_timeout_s: float = 30.0
    """Longest time for a request; a client's own deadline may be shorter."""
    idle_timeout_s: float = 60.0
    """How long a connection of REST may say nothing between two requests."""
    read_timeout_s: float = 10.0
    """How long a client of REST may take to send a request, once begun."""
    drain_s: float = 10.0
    """How long requests under way may go on when the server stops."""
    load_threads: int = 2
    """Versions that are loaded at the same time."""
    load_retries: int = 5
    """How often a version that failed to load is tried again."""
    load_retry_interval_s: float = 60.0
    """How long it waits before that."""
    warm_up: bool = True
    """Replay the warm-up requests of a version before it is served."""
    metrics_path: str = "/monitoring/prometheus/metrics"
    """Where Prometheus finds the numbers, besides /metrics."""
    request_log_rate: float = 0.0
    """Share of the requests that are logged; a model's own config comes first."""
    request_log_prefix: str = ""
    """Begin of the names of the log's files, with their folder."""

    def __post_init__(self) -> None:
        for name in ("port", "rest_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 1 << 16:
                raise ConfigError(f"{name} is {port}; give 0 (any) to 65535")
        if self.port is None and self.rest_port is None:
            raise ConfigError("port and rest_port are both None; give at least one")
        for name in ("max_message_bytes", "max_calls", "grpc_threads", "load_threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.max_message_bytes >= 1 << 31:
            raise ConfigError(f"max_message_bytes is {self.max_message_bytes}; gRPC carries less than 2 GiB")
        for name in ("request_timeout_s", "idle_timeout_s", "read_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number above 0")
        for name in ("model_config_poll_s", "version_poll_s", "drain_s", "load_retries", "load_retry_interval_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; give 0 or more")
        if not self.metrics_path.startswith("/"):
            raise ConfigError(f"metrics_path is {self.metrics_path!r}; it must begin with /")
        if self.models and self.model_config_file is not None:
            raise ConfigError("models and model_config_file are both given; give one of them")
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ConfigError(f"models are {names}; give each another name")
