"""The keywords of ``ServingConfig`` for type checkers: its sections and their fields, as users name them.

Written by ``scripts/write_config_reference.py``; change the sections, not this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from monolith.rpc.security import Security
from monolith.serving.config import (
    AccessConfig,
    GrpcConfig,
    LoadingConfig,
    ModelSourceConfig,
    MonitoringConfig,
    RequestPathConfig,
    RestConfig,
)
from monolith.serving.requests.batching import BatchSettings
from monolith.serving.versions.model_config import ModelConfig

__all__ = ["ServingSettings"]


class ServingSettings(TypedDict, total=False):
    """Keywords of ``ServingConfig``."""

    sources: ModelSourceConfig
    access: AccessConfig
    grpc: GrpcConfig
    rest: RestConfig
    loading: LoadingConfig
    monitoring: MonitoringConfig
    request_path: RequestPathConfig
    host: str
    port: int | None
    rest_port: int | None
    security: Security
    batching: BatchSettings
    models: Sequence[ModelConfig]
    model_config_file: Path | None
    model_config_poll_s: float
    version_poll_s: float
    allow_assign: bool
    allow_reload: bool
    model_roots: Sequence[Path]
    max_message_bytes: int
    max_calls: int
    grpc_threads: int
    grpc_options: Sequence[tuple[str, str | int]]
    rest_max_pending_bytes: int
    rest_max_values: int
    load_threads: int
    load_retries: int
    load_retry_interval_s: float
    warm_up: bool
    verify_tables: bool
    metrics_path: str
    request_log_rate: float
    request_log_prefix: str
    log_requests: str
    log_requests_rate: float
    native: Literal["auto", "on", "off"]
    native_io_threads: int
    request_timeout_s: float
    idle_timeout_s: float
    read_timeout_s: float
    drain_s: float
