"""Settings of a model server, in sections by owner. Plain values, checked at construction."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from monolith.core.config_sections import fill_sections, section, subsection
from monolith.core.errors import ConfigError
from monolith.rpc.security import Security
from monolith.serving.requests.batching import BatchSettings
from monolith.serving.versions.model_config import ModelConfig

if TYPE_CHECKING:
    from monolith.serving.serving_settings import ServingSettings

__all__ = [
    "AccessConfig",
    "GrpcConfig",
    "LoadingConfig",
    "ModelSourceConfig",
    "MonitoringConfig",
    "RequestPathConfig",
    "RestConfig",
    "ServingConfig",
    "TimeoutConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSourceConfig:
    """Models to serve, and the scans for new versions."""

    models: Sequence[ModelConfig] = ()
    """Models to serve; or use ``model_config_file``."""
    model_config_file: Path | None = None
    """TensorFlow Serving's ModelServerConfig in protobuf text."""
    model_config_poll_s: float = 0.0
    """Seconds between two reads of that file; 0 reads it only at the start."""
    version_poll_s: float = 1.0
    """Seconds between two scans for new versions; 0 scans only at the start."""

    def __post_init__(self) -> None:
        _check_seconds(self, "model_config_poll_s", "version_poll_s")
        if self.models and self.model_config_file is not None:
            raise ConfigError("models and model_config_file are set, expected only one of them")
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ConfigError(f"models are {names}, expected unique names")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Calls that change a server."""

    allow_assign: bool = False
    """Accept assignments without an admin token, and with one also for versions that follow a publisher."""
    allow_reload: bool = False
    """Accept a reload of models without an admin token."""
    model_roots: Sequence[Path] = ()
    """Folders for the base paths of a reload; empty means the parents of the configured base paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    """Bounds of gRPC; ``max_message_bytes`` and ``max_calls`` also bound REST."""

    max_message_bytes: int = 64 << 20
    """Largest gRPC message, and largest REST body."""
    max_calls: int = 1024
    """Concurrent gRPC calls, and REST connections; further ones are refused."""
    grpc_threads: int = 64
    """Threads that read and answer gRPC calls; further calls wait, up to ``max_calls``."""
    grpc_options: Sequence[tuple[str, str | int]] = ()
    """Further gRPC channel arguments."""

    def __post_init__(self) -> None:
        _check_positive(self, "max_message_bytes", "max_calls", "grpc_threads")
        if self.max_message_bytes >= 1 << 31:
            raise ConfigError(f"max_message_bytes is {self.max_message_bytes!r}, expected less than 2 GiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestConfig:
    """Bounds of REST."""

    rest_max_pending_bytes: int = 256 << 20
    """Bytes of all REST bodies that wait for a response; further requests get 503."""
    rest_max_values: int = 1 << 20
    """Largest number of JSON values in a REST body."""

    def __post_init__(self) -> None:
        _check_positive(self, "rest_max_pending_bytes", "rest_max_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutConfig:
    """Timeouts of requests and connections."""

    request_timeout_s: float = 30.0
    """Timeout of a request; a client's deadline may be shorter."""
    idle_timeout_s: float = 60.0
    """Timeout of an idle REST connection."""
    read_timeout_s: float = 10.0
    """Time for a REST client to send a request."""
    drain_s: float = 10.0
    """Time for current requests to finish when the server stops."""

    def __post_init__(self) -> None:
        for name in ("request_timeout_s", "idle_timeout_s", "read_timeout_s"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected a finite number above 0")
        _check_seconds(self, "drain_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingConfig:
    """Loading of versions."""

    load_threads: int = 2
    """Versions loaded in parallel."""
    load_retries: int = 5
    """Retries of a failed load."""
    load_retry_interval_s: float = 60.0
    """Pause before a retry."""
    warm_up: bool = True
    """Replay the warm-up requests of a version before it is served."""
    verify_tables: bool = True
    """Check the checksums of mapped tables in the background, and unload a damaged version."""

    def __post_init__(self) -> None:
        _check_positive(self, "load_threads")
        _check_not_negative(self, "load_retries", "load_retry_interval_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringConfig:
    """The metrics page and the request log."""

    metrics_path: str = "/monitoring/prometheus/metrics"
    """Path of the Prometheus page, besides /metrics."""
    request_log_rate: float = 0.0
    """Share of requests to log; the config of a model has precedence."""
    request_log_prefix: str = ""
    """Path prefix of the log files."""
    log_requests: str = ""
    """Stream (log://PATH/TOPIC or kafka://HOST:PORT/TOPIC) for the scored records, with request key and version."""
    log_requests_rate: float = 1.0
    """Share of requests to write to the stream."""

    def __post_init__(self) -> None:
        if not self.metrics_path.startswith("/"):
            raise ConfigError(f"metrics_path is {self.metrics_path!r}, expected a path that begins with /")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPathConfig:
    """The way of a request: native or Python, and its timeouts."""

    native: Literal["auto", "on", "off"] = "auto"
    """``auto`` uses the native path where the machine and the settings allow it; ``on`` requires it."""
    native_io_threads: int = 0
    """Threads that read and write connections; 0 = one per four cores."""
    timeouts: TimeoutConfig = subsection(TimeoutConfig)

    def __post_init__(self) -> None:
        if self.native not in ("auto", "on", "off"):
            raise ConfigError(f"native is {self.native!r}, expected 'auto', 'on' or 'off'")
        _check_not_negative(self, "native_io_threads")

    @property
    def io_threads(self) -> int:
        """Threads of connections on this machine."""
        return self.native_io_threads or max(1, len(os.sched_getaffinity(0)) // 4)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class ServingConfig:
    """Settings of one model server. The constructor takes sections, single fields of them, or both.

    >>> ServingConfig(port=0, drain_s=1.0).request_path.timeouts.drain_s
    1.0
    """

    host: str = "127.0.0.1"
    """Interface to listen on; the default is loopback. Use token and TLS on other interfaces."""
    port: int | None = 8500
    """gRPC port; 0 selects a free port, None disables gRPC."""
    rest_port: int | None = 8501
    """Port of REST, health and metrics; 0 selects a free port, None disables REST."""
    security: Security = field(default_factory=Security)
    """TLS and tokens of both ports."""
    batching: BatchSettings = field(default_factory=BatchSettings)
    """Bounds of batches and of the queue."""
    sources: ModelSourceConfig = section(ModelSourceConfig)
    access: AccessConfig = section(AccessConfig)
    grpc: GrpcConfig = section(GrpcConfig)
    rest: RestConfig = section(RestConfig)
    loading: LoadingConfig = section(LoadingConfig)
    monitoring: MonitoringConfig = section(MonitoringConfig)
    request_path: RequestPathConfig = section(RequestPathConfig)

    def __init__(self, **settings: Unpack[ServingSettings]) -> None:
        fill_sections(self, settings, {})
        for name in ("port", "rest_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 1 << 16:
                raise ConfigError(f"{name} is {port!r}, expected 0 (any) to 65535")
        if self.port is None and self.rest_port is None:
            raise ConfigError("port and rest_port are None, expected at least one port")


def _check_positive(owner: object, *names: str) -> None:
    for name in names:
        if getattr(owner, name) < 1:
            raise ConfigError(f"{name} is {getattr(owner, name)!r}, expected at least 1")


def _check_seconds(owner: object, *names: str) -> None:
    for name in names:  # a thread cannot wait for infinity
        if not (getattr(owner, name) >= 0 and math.isfinite(getattr(owner, name))):
            raise ConfigError(f"{name} is {getattr(owner, name)!r}, expected a finite number from 0")


def _check_not_negative(owner: object, *names: str) -> None:
    for name in names:
        if not getattr(owner, name) >= 0:
            raise ConfigError(f"{name} is {getattr(owner, name)!r}, expected 0 or more")
