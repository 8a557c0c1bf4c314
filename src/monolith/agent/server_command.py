"""Build the command lines of the servers that an agent starts.

Main types: ``serve_command`` for ``monolith serve``, ``foreign_command`` and ``foreign_unified_command`` for a
``tensorflow_model_server``. All return argument lists, so no value is ever split at blanks.

Invariant: MONOLITH_TFS_BINARY names a foreign server; without it an agent starts ``monolith serve``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from monolith.agent.config import SERVING_HOME, AgentConfig
from monolith.agent.environment import AgentEnvironment
from monolith.agent.records import ServerType
from monolith.agent.settings import SERVER_FIELDS, DeployType
from monolith.core.config_sections import read_setting
from monolith.core.errors import ConfigError

__all__ = [
    "CONFIG_POLL_S",
    "check_server",
    "foreign_command",
    "foreign_unified_command",
    "has_grpc_remote_operator",
    "serve_command",
]

CONFIG_POLL_S = 60
"""Seconds between reads of the model config file by a unified server; a safety net beside the reload call."""

_REMOTE_OPERATOR = b"PredictionServiceGrpc"
# No flags of a stock server.
_NEVER_PASSED_ON = ("allow_growth", "version")


def check_server(environment: AgentEnvironment) -> str | None:
    """Return the path of the foreign server, or None for ``monolith serve``.

    Raises:
        ConfigError: The server cannot be run.
    """
    binary = environment.foreign_server
    if binary is None:
        if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("onnxruntime") is None:
            raise ConfigError(
                "monolith serve cannot run without grpcio and onnxruntime; install monolith[serve], or set "
                "MONOLITH_TFS_BINARY to a tensorflow_model_server"
            )
        return None
    found = shutil.which(binary)
    if found is None:
        raise ConfigError(
            f"MONOLITH_TFS_BINARY is {binary!r}, expected a program that can be run; correct it, or unset it to start "
            "monolith serve"
        )
    return os.path.abspath(found)


def has_grpc_remote_operator(binary: str | None) -> bool:
    """Return True if a server asks remote sub-models through gRPC; ``monolith serve`` (None) does."""
    if binary is None:
        return True
    overlap = len(_REMOTE_OPERATOR) - 1
    tail = b""
    with Path(binary).open("rb") as file:
        while part := file.read(1 << 20):
            if _REMOTE_OPERATOR in tail + part:
                return True
            tail = part[-overlap:]
    return False


def foreign_command(
    config: AgentConfig,
    server_type: str,
    *,
    binary: str,
    model_config_file: str,
    platform_config_file: str | None = None,
) -> list[str]:
    """Return the command of a foreign server of version 1 or 2.

    Args:
        config: The configuration.
        server_type: ps, entry or dense.
        binary: The program.
        model_config_file: File with the models.
        platform_config_file: Path that ``write_platform_config`` returned; None = the usual path.
    """
    kind = config.service.deploy_type.server_type(server_type) if config.service.deploy_type else server_type
    name = config.environment.location.service_name or ""
    log = "log4j"
    if config.service.deploy_type is DeployType.MIXED and kind != ServerType.ENTRY:
        name, log = f"{name}_{kind}", f"log4j_{kind}"
    flags: list[tuple[str, object]] = [
        ("model_config_file", model_config_file),
        ("archon_rpc_psm", name),
        ("archon_rpc_cluster", config.environment.location.cluster_flag),
        ("metrics_namespace_prefix", name),
        ("log_conf", f"../conf/{log}.properties"),
        ("port", config.port_of(kind)),
        ("rest_api_port", config.http_port_of(kind)),
        ("archon_port", config.archon_port_of(kind)),
    ]
    if kind in (ServerType.ENTRY, ServerType.DENSE):
        flags += [
            ("archon_entry_to_ps_rpc_timeout", config.fetch.fetch_ps_timeout_ms),
            ("archon_entry_to_ps_long_conn_num", config.fetch.fetch_ps_long_conn_num),
            ("archon_entry_to_ps_rpc_retry", config.fetch.fetch_ps_retry),
            ("archon_async_dispatcher_threads", config.fetch.aio_thread_num),
        ]
        if not config.fetch.fetch_ps_long_conn_enable:
            flags.append(("archon_entry_to_ps_long_conn_enable", False))
    if config.service.agent_version != 1:
        flags.append(("model_config_file_poll_wait_seconds", 0))
    platform = (
        platform_config_file
        or config.server.tensorflow.platform_config_file
        or f"{SERVING_HOME}/conf/platform_config_file.cfg"
    )
    poll_s = config.fetch.file_system_poll_wait_seconds_ps if _is_fixed_ps(config, kind) else None
    return [binary, *_spell(flags), *_spell(_server_flags(config, platform, poll_s))]


def foreign_unified_command(
    config: AgentConfig, *, binary: str, model_config_file: str, platform_config_file: str | None = None
) -> list[str]:
    """Return the command of a foreign server of version 3."""
    name = config.environment.location.service_name or ""
    flags: list[tuple[str, object]] = [
        ("model_config_file", model_config_file),
        ("port", config.ports.unified.tfs_port_grpc),
        ("rest_api_port", config.ports.unified.tfs_port_http),
        ("model_config_file_poll_wait_seconds", CONFIG_POLL_S),
        ("archon_port", config.ports.unified.tfs_port_archon),
        ("archon_rpc_psm", name),
        ("archon_rpc_cluster", config.environment.location.cluster_flag),
        ("metrics_namespace_prefix", name),
    ]
    if not has_grpc_remote_operator(binary):
        flags.append(("archon_entry_to_ps_rpc_timeout", config.fetch.fetch_ps_timeout_ms))
    flags += [("conf_file", "conf/service.conf"), ("log_conf", "conf/log4j.properties")]
    platform = platform_config_file or config.server.tensorflow.platform_config_file or "conf/platform_config_file.cfg"
    return [binary, *_spell(flags), *_spell(_server_flags(config, platform, None))]


def serve_command(
    config: AgentConfig,
    server_type: str,
    *,
    model_config_file: str,
    listen_address: str = "0.0.0.0",
    addresses_file: str | None = None,
    batching_parameters_file: str | None = None,
    admin_token_file: str | None = None,
) -> list[str]:
    """Return the command of ``monolith serve``.

    Args:
        config: The configuration.
        server_type: ps, entry, dense or unified.
        model_config_file: File with the models.
        listen_address: Interface to listen on.
        addresses_file: File with the addresses of other sub-models, for a server that may have an entry.
        batching_parameters_file: File with batching parameters, where the configuration names none.
        admin_token_file: File with the token of the agent, with which it reloads models of any folder.
    """
    poll_s = config.server.loading.file_system_poll_wait_seconds
    if _is_fixed_ps(config, server_type):
        poll_s = config.fetch.file_system_poll_wait_seconds_ps
    arguments = [
        *(sys.executable, "-m", "monolith", "serve"),
        *("--host", listen_address),
        *("--model-config-file", model_config_file),
        *("--config-poll-s", str(CONFIG_POLL_S if config.service.agent_version == 3 else 0)),
        *("--port", str(config.port_of(server_type))),
        *("--rest-port", str(config.http_port_of(server_type))),
        *("--version-poll-s", str(poll_s)),
        "--batching" if config.server.batching.enable_batching else "--no-batching",
        *("--load-retries", str(config.server.loading.max_num_load_retries)),
        *("--load-retry-interval-s", f"{config.server.loading.load_retry_interval_micros / 1e6:g}"),
        "--warm-up" if config.server.loading.enable_model_warmup else "--no-warm-up",
    ]
    optional: list[tuple[str, object]] = [
        ("--batching-parameters-file", config.server.batching.batching_parameters_file or batching_parameters_file),
        ("--load-threads", config.server.loading.num_load_threads),
        ("--ssl-config-file", config.server.grpc.ssl_config_file),
        ("--grpc-channel-arguments", config.server.grpc.grpc_channel_arguments),
        ("--grpc-threads", config.server.grpc.grpc_max_threads),
        ("--admin-token-file", admin_token_file),
        ("--model-root", admin_token_file and "/"),
    ]
    if server_type in (ServerType.ENTRY, DeployType.UNIFIED):
        optional.append(("--remote-file", addresses_file))
        if config.is_given("fetch_ps_timeout_ms"):
            optional.append(("--remote-timeout-ms", config.fetch.fetch_ps_timeout_ms))
    for flag, value in optional:
        if value:
            arguments += [flag, str(value)]
    return arguments


def _is_fixed_ps(config: AgentConfig, server_type: str) -> bool:
    return config.service.agent_version == 1 and server_type == ServerType.PS


def _server_flags(config: AgentConfig, platform: str, poll_s: int | None) -> list[tuple[str, object]]:
    """Return the fields of the server that differ from their defaults, in order; ``poll_s`` is always passed on."""
    defaults = AgentConfig()
    flags: list[tuple[str, object]] = []
    for name in SERVER_FIELDS:
        value = read_setting(config, name)
        if name == "platform_config_file":
            flags.append((name, platform))
        elif name == "file_system_poll_wait_seconds" and poll_s is not None:
            flags.append((name, poll_s))
        elif name not in _NEVER_PASSED_ON and value != read_setting(defaults, name):
            flags.append((name, value))
    return flags


def _spell(flags: list[tuple[str, object]]) -> list[str]:
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in flags]
