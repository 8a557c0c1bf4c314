"""Options of ``monolith serve`` for models, ports, batches, loading and monitoring.

Each group returns the settings of the server that its options stand for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from monolith.core.errors import ConfigError
from monolith.core.storage import is_url

if TYPE_CHECKING:
    from monolith.serving import BatchSettings, ModelConfig

__all__ = [
    "BatchingOptions",
    "LoadingOptions",
    "ModelOptions",
    "MonitoringOptions",
    "NetworkOptions",
]

_PORT = "0 = any free port, -1 = off."
_METRICS_PATH = "/monitoring/prometheus/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Models to serve, and how often to look for new versions."""

    base_path: Annotated[
        str | None, typer.Argument(help="Folder or URL with the versions of one model; or use --model-config-file.")
    ] = None
    name: Annotated[str, typer.Option(help="Model name in requests.")] = "default"
    model_base_path: Annotated[str | None, typer.Option(help="Same as BASE_PATH.")] = None
    model_config_file: Annotated[
        Path | None, typer.Option(help="Text file with a ModelServerConfig of TensorFlow Serving, for many models.")
    ] = None
    config_poll_s: Annotated[
        float, typer.Option(min=0, help="Seconds between reads of --model-config-file; 0 = only at the start.")
    ] = 0.0
    version_poll_s: Annotated[
        float, typer.Option(min=0, help="Seconds between searches for new versions; 0 = only at the start.")
    ] = 1.0
    num_versions: Annotated[
        int, typer.Option(min=1, help="Number of newest versions to serve; use 2 for ps and dense parts in a roll-out.")
    ] = 1

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``.

        Raises:
            ConfigError: No option names a model, or two do.
        """
        return {
            "models": self._models(),
            "model_config_file": self.model_config_file,
            "model_config_poll_s": self.config_poll_s,
            "version_poll_s": self.version_poll_s,
        }

    def _models(self) -> list[ModelConfig]:
        from monolith.serving import ModelConfig, VersionPolicy

        if self.base_path and self.model_base_path and self.base_path != self.model_base_path:
            raise ConfigError(
                f"BASE_PATH is {self.base_path!r} and --model-base-path is {self.model_base_path!r}, expected one; "
                "leave one of them out"
            )
        folder = self.base_path or self.model_base_path
        if (folder is None) == (self.model_config_file is None):
            raise ConfigError(
                "expected one of BASE_PATH and --model-config-file; give the folder of a model's versions"
            )
        if folder is None:
            return []
        policy = VersionPolicy(count=self.num_versions)
        if is_url(folder):
            return [ModelConfig(name=self.name, url=folder, policy=policy)]
        return [ModelConfig(name=self.name, base_path=Path(folder), policy=policy)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Addresses of the server, and limits of its callers."""

    host: Annotated[str, typer.Option(help="Interface to listen on; the default is this machine only.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=-1, max=65535, help=f"gRPC port; {_PORT}")] = 8500
    rest_port: Annotated[int, typer.Option(min=-1, max=65535, help=f"Port of REST and metrics; {_PORT}")] = 8501
    max_calls: Annotated[int, typer.Option(min=1, help="Most open gRPC calls, and most REST connections.")] = 1024
    grpc_threads: Annotated[int, typer.Option(min=1, help="gRPC calls answered in parallel.")] = 64
    grpc_channel_arguments: Annotated[str, typer.Option(help="Arguments of the gRPC server: name=value,...")] = ""
    max_message_mb: Annotated[int, typer.Option(min=1, max=2047, help="Largest request or response in MiB.")] = 64
    request_timeout_s: Annotated[float, typer.Option(help="Timeout of a request in seconds.")] = 30.0
    native: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(help="Answer plain scores without Python: auto = where the machine and the model allow it."),
    ] = "auto"
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds that open requests get to finish after SIGTERM.")] = (
        10.0
    )

    @property
    def max_message_bytes(self) -> int:
        """Largest request or response."""
        return self.max_message_mb << 20

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``.

        Raises:
            ConfigError: The arguments of gRPC are invalid.
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
            "native": self.native,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """How requests are batched, and how many may wait."""

    batching: Annotated[bool, typer.Option(help="Compute waiting requests together, in batches.")] = True
    batching_parameters_file: Annotated[
        Path | None, typer.Option(help="Text file with BatchingParameters of TensorFlow Serving.")
    ] = None
    max_batch_rows: Annotated[int, typer.Option(min=1, help="Most rows of one batch.")] = 4096
    batch_wait_ms: Annotated[float, typer.Option(min=0, help="Longest wait of a batch for more requests, in ms.")] = 0.0
    model_threads: Annotated[
        int, typer.Option(min=0, help="Batches computed in parallel; 0 = one per core, and 2 with --native off.")
    ] = 0
    threads_per_call: Annotated[int, typer.Option(min=1, help="Threads that compute one batch.")] = 1
    max_queued_rows: Annotated[
        int, typer.Option(min=1, help="Most rows that may wait; further requests are rejected.")
    ] = 200_000

    def settings(self) -> BatchSettings:
        """Return the settings of the batching queue.

        Raises:
            ConfigError: The file of batching parameters is invalid.
        """
        from monolith.serving import BatchSettings
        from monolith.serving.requests.batching import parse_batching_parameters

        settings = BatchSettings(
            max_rows=self.max_batch_rows,
            wait_s=self.batch_wait_ms / 1e3,
            threads=self.model_threads,
            max_queued_rows=self.max_queued_rows,
        )
        if not self.batching:
            return replace(settings, max_rows=1, wait_s=0.0)
        file = self.batching_parameters_file
        return settings if file is None else parse_batching_parameters(file.read_text(), str(file), settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingOptions:
    """How versions are loaded."""

    load_threads: Annotated[int, typer.Option(min=1, help="Versions loaded in parallel.")] = 2
    load_retries: Annotated[int, typer.Option(min=0, help="Retries of a failed load.")] = 5
    load_retry_interval_s: Annotated[float, typer.Option(min=0, help="Seconds between these retries.")] = 60.0
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
    """Metrics, and a log of sampled requests."""

    monitoring_config_file: Annotated[
        Path | None, typer.Option(help="Text file with a MonitoringConfig of TensorFlow Serving: the path of /metrics.")
    ] = None
    request_log: Annotated[
        str, typer.Option(help="Write sampled requests to files whose names start with this path.")
    ] = ""
    request_log_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of requests to write to these files.")
    ] = 0.0
    log_requests: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Write the scored records, with request key, version and cut, to log://PATH/TOPIC or "
            "kafka://HOST:PORT/TOPIC, for monolith join.",
        ),
    ] = ""
    log_requests_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of requests to write to this stream.")
    ] = 1.0

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``.

        Raises:
            ConfigError: The monitoring file is invalid.
        """
        return {
            "log_requests": self.log_requests,
            "log_requests_rate": self.log_requests_rate,
            "metrics_path": _metrics_path(self.monitoring_config_file),
            "request_log_rate": self.request_log_rate,
            "request_log_prefix": self.request_log,
        }


def _channel_arguments(text: str) -> list[tuple[str, str | int]]:
    arguments: list[tuple[str, str | int]] = []
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise ConfigError(f"--grpc-channel-arguments has {part!r}, expected name=value; separate pairs by commas")
        arguments.append((key, int(value) if value.lstrip("-").isdigit() else value))
    return arguments


def _metrics_path(file: Path | None) -> str:
    from monolith.serving.api import messages

    if file is None:
        return _METRICS_PATH
    config = messages.MonitoringConfig()
    messages.parse_text(file.read_text(), config, str(file))
    return config.prometheus_config.path or _METRICS_PATH
