"""The options of ``monolith serve`` about itself: models, ports, batches, loading and monitoring.

Each group makes the settings that the server takes. What they do there is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.serving import BatchSettings, ModelConfig

__all__ = [
    "BatchingOptions",
    "LoadingOptions",
    "ModelOptions",
    "MonitoringOptions",
    "NetworkOptions",
]

_PORT = "0 = any, -1 = not served."
_METRICS_PATH = "/monitoring/prometheus/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which models are served, and when they are looked for."""

    base_path: Annotated[Path | None, typer.Argument(help="Folder of a model's versions; or --model-config-file.")] = (
        None
    )
    name: Annotated[str, typer.Option(help="What clients call the model.")] = "default"
    model_base_path: Annotated[Path | None, typer.Option(help="The same as BASE_PATH.")] = None
    model_config_file: Annotated[
        Path | None, typer.Option(help="Models as a ModelServerConfig of TensorFlow Serving, as text.")
    ] = None
    config_poll_s: Annotated[float, typer.Option(min=0, help="Seconds between looks at that file; 0 = once.")] = 0.0
    version_poll_s: Annotated[float, typer.Option(min=0, help="Seconds between looks for versions; 0 = once.")] = 1.0
    num_versions: Annotated[
        int, typer.Option(min=1, help="Newest versions that are served; of ps and dense give 2, for roll-outs.")
    ] = 1

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``.

        Raises:
            ConfigError: No model is named, or in two ways.
        """
        return {
            "models": self._models(),
            "model_config_file": self.model_config_file,
            "model_config_poll_s": self.config_poll_s,
            "version_poll_s": self.version_poll_s,
        }

    def _models(self) -> list[ModelConfig]:
        from monolith.serving import ModelConfig, VersionPolicy

        folder = self.base_path or self.model_base_path
        if (folder is None) == (self.model_config_file is None):
            raise ConfigError("give either the folder of a model's versions or --model-config-file")
        if folder is None:
            return []
        return [ModelConfig(name=self.name, base_path=folder, policy=VersionPolicy(count=self.num_versions))]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Where the server listens, and what callers may take."""

    host: Annotated[str, typer.Option(help="Interface to listen on; the default is this machine only.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=-1, max=65535, help=f"Port of gRPC; {_PORT}")] = 8500
    rest_port: Annotated[int, typer.Option(min=-1, max=65535, help=f"Port of REST and metrics; {_PORT}")] = 8501
    max_calls: Annotated[int, typer.Option(min=1, help="Calls of gRPC, and connections of REST, at a time.")] = 1024
    grpc_threads: Annotated[int, typer.Option(min=1, help="Calls of gRPC answered at the same time.")] = 64
    grpc_channel_arguments: Annotated[str, typer.Option(help="Of gRPC: name=value,...")] = ""
    max_message_mb: Annotated[int, typer.Option(min=1, max=2047, help="Largest request or answer.")] = 64
    request_timeout_s: Annotated[float, typer.Option(help="Longest time for a request.")] = 30.0
    drain_s: Annotated[float, typer.Option(min=0, help="How long requests may go on after SIGTERM.")] = 10.0

    @property
    def max_message_bytes(self) -> int:
        """Largest request or answer."""
        return self.max_message_mb << 20

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``.

        Raises:
            ConfigError: The arguments of gRPC are none.
        """
        return {
            "host": self.host,
            "port": None if self.port < 0 else self.port,
            "rest_port": None if self.rest_port < 0 else self.rest_port,
            "max_calls": self.max_calls,
            "grpc_threads": self.grpc_threads,
            "grpc_options": _channel_arguments(self.grpc_channel_arguments),
            "max_message_bytes": self.max_message_bytes,
            "request_timeout_s": self.request_timeout_s,
            "drain_s": self.drain_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """How requests are computed together, and how many may wait."""

    batching: Annotated[bool, typer.Option(help="Compute requests that wait together.")] = True
    batching_parameters_file: Annotated[
        Path | None, typer.Option(help="BatchingParameters of TensorFlow Serving, as text.")
    ] = None
    max_batch_rows: Annotated[int, typer.Option(min=1, help="Rows computed in one call.")] = 4096
    batch_wait_ms: Annotated[float, typer.Option(min=0, help="How long a batch may wait for more requests.")] = 0.0
    model_threads: Annotated[int, typer.Option(min=1, help="Calls of models at the same time.")] = 2
    threads_per_call: Annotated[int, typer.Option(min=1, help="Threads of one call.")] = 1
    max_queued_rows: Annotated[int, typer.Option(min=1, help="Rows that may wait; then requests are refused.")] = (
        200_000
    )

    def settings(self) -> BatchSettings:
        """Return what the queue takes.

        Raises:
            ConfigError: The file says what cannot be.
        """
        from monolith.serving import BatchSettings
        from monolith.serving.batching import parse_batching_parameters

        given = BatchSettings(
            max_rows=self.max_batch_rows,
            wait_s=self.batch_wait_ms / 1e3,
            threads=self.model_threads,
            max_queued_rows=self.max_queued_rows,
        )
        if not self.batching:
            return replace(given, max_rows=1, wait_s=0.0)
        file = self.batching_parameters_file
        return given if file is None else parse_batching_parameters(file.read_text(), str(file), given)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingOptions:
    """How versions are loaded."""

    load_threads: Annotated[int, typer.Option(min=1, help="Versions loaded at the same time.")] = 2
    load_retries: Annotated[int, typer.Option(min=0, help="How often a failed load is tried again.")] = 5
    load_retry_interval_s: Annotated[float, typer.Option(min=0, help="Pause before that.")] = 60.0
    warm_up: Annotated[bool, typer.Option(help="Replay a version's warm-up requests before it is served.")] = True
    in_memory: Annotated[bool, typer.Option(help="Read tables into memory instead of mapping their files.")] = False
    verify: Annotated[
        Literal["background", "checksums", "sizes"],
        typer.Option(help="Check of mapped tables: after the swap, before it, or only their sizes and indexes."),
    ] = "background"

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``."""
        return {
            "load_threads": self.load_threads,
            "load_retries": self.load_retries,
            "load_retry_interval_s": self.load_retry_interval_s,
            "warm_up": self.warm_up,
            "verify_tables": self.verify == "background",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringOptions:
    """What others can see of the server's work."""

    monitoring_config_file: Annotated[
        Path | None, typer.Option(help="MonitoringConfig of TensorFlow Serving, as text: the path of the metrics.")
    ] = None
    request_log: Annotated[str, typer.Option(help="Begin of the names of files with sampled requests.")] = ""
    request_log_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of the requests in them.")] = 0.0

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``.

        Raises:
            ConfigError: The file says what cannot be.
        """
        return {
            "metrics_path": _metrics_path(self.monitoring_config_file),
            "request_log_rate": self.request_log_rate,
            "request_log_prefix": self.request_log,
        }


def _channel_arguments(text: str) -> list[tuple[str, str | int]]:
    found: list[tuple[str, str | int]] = []
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise ConfigError(f"--grpc-channel-arguments has {part!r}; write name=value,name=value")
        found.append((key, int(value) if value.lstrip("-").isdigit() else value))
    return found


def _metrics_path(file: Path | None) -> str:
    from monolith.serving import messages

    if file is None:
        return _METRICS_PATH
    found = messages.MonitoringConfig()
    messages.parse_text(file.read_text(), found, str(file))
    return found.prometheus_config.path or _METRICS_PATH
