"""``run_process``: runs one process of a job by its settings: its discovery and its role."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monolith.core.config_sections import replace_settings
from monolith.core.errors import ConfigError
from monolith.core.lifeline import end_with_starter
from monolith.core.stop_signals import stop_signals
from monolith.discovery import Discovery, DiscoverySettings, MlpDiscovery, TfConfigDiscovery, open_discovery
from monolith.discovery.address import split_address
from monolith.ps.config import ServerConfig
from monolith.rpc.security import Security, read_token
from monolith.training.cluster.config import from_cluster
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.lifecycle import Session, run_role
from monolith.training.config.cluster import PsSecurityConfig
from monolith.training.staging import stage_model_folder

__all__ = ["run_process", "security_of", "server_settings"]

logger = logging.getLogger(__name__)

SERVER_PATIENCE_S = 20.0
"""Seconds that a server outlives the process that started it, so that workers can save."""


def run_process(config: ClusterJobConfig, environment: Mapping[str, str]) -> dict[str, float] | None:
    """Run the process that the settings describe to its end; return its metrics, or None for a server.

    Args:
        config: The settings of the job and of this process; discovery by tf_config and mlp overrides role and index.
        environment: The variables of the process, for discovery and the lifeline.

    Raises:
        ConfigError: The settings are invalid, or name no discovery.
    """
    config = stage_model_folder(config, config.run.model_dir)
    end_with_starter(environment, patience_s=SERVER_PATIENCE_S if config.cluster.server_type == "ps" else 0.0)
    if config.cluster.server_type == "evaluator":
        return _evaluate(config)
    from_cluster(config.cluster, config.run.runtime).check()
    discovery = open_discovery(_discovery_settings(config), environment)
    if discovery is None:
        raise ConfigError(
            f"num_ps is {config.cluster.num_ps} and discovery_type is None; give the discovery of the processes: "
            "--discovery-type file, tf_config, mlp, zookeeper or consul"
        )
    config = _place(config, discovery)
    process = from_cluster(config.cluster, config.run.runtime)
    security = security_of(config.cluster.security)
    if config.cluster.server_type == "ps":
        from monolith.training.cluster.roles.server import serve

        settings = server_settings(config, security)
        with stop_signals() as endings:
            run_role(discovery, process, lambda session: serve(session, settings, endings))
        return None
    return run_role(discovery, process, lambda session: _train(session, config, security))


def server_settings(config: ClusterJobConfig, security: Security) -> ServerConfig:
    """Return the settings of the parameter server of this process."""
    from monolith.training.cluster.roles.server import server_config

    limit_mb = config.cluster.ps.ps_memory_limit_mb
    evict_s = config.run.checkpoint.feature_evict_every_s
    return replace_settings(
        server_config(from_cluster(config.cluster, config.run.runtime), security, config.run.model_dir),
        metrics_port=config.cluster.ps.ps_metrics_port,
        force_expiry=config.run.checkpoint.force_expiry,
        evict_every_hours=None if evict_s is None else evict_s / 3600,
        memory_limit_bytes=None if limit_mb is None else limit_mb << 20,
        when_full="evict_oldest" if config.cluster.ps.ps_memory_action == "evict_oldest" else None,
    )


def security_of(config: PsSecurityConfig) -> Security:
    """Return TLS and token of the servers."""
    files: dict[str, Any] = {
        field: None if path is None else Path(path)
        for field, path in (
            ("cert_file", config.ps_tls_cert),
            ("key_file", config.ps_tls_key),
            ("ca_file", config.ps_tls_ca),
        )
    }
    return Security(token=read_token(config.ps_token_file, "ps_token_file"), **files)


def _train(session: Session, config: ClusterJobConfig, security: Security) -> dict[str, float]:
    from monolith.training.cluster.roles.worker import train_worker
    from monolith.training.hooks import StopSignalHook

    return train_worker(session, config, security, hooks=[StopSignalHook()])


def _evaluate(config: ClusterJobConfig) -> dict[str, float]:
    """Evaluate every checkpoint of the chief, with tables in this process."""
    from monolith.training.runner import Job

    data = config.input.data if config.input.eval_data is None else config.input.eval_data
    last: dict[str, float] = {}
    for last in Job(replace_settings(config, data=data, eval_data=None)).evaluate_new_checkpoints():
        logger.info("checkpoint evaluated %s", " ".join(f"{name}={value:g}" for name, value in last.items()))
    return last


def _discovery_settings(config: ClusterJobConfig) -> DiscoverySettings:
    folder = config.cluster.discovery.discovery_folder
    if folder is None and config.cluster.discovery.discovery_type == "file" and config.run.model_dir:
        folder = Path(config.run.model_dir) / "cluster"
    return DiscoverySettings(
        discovery_type=config.cluster.discovery.discovery_type,
        job=config.cluster.discovery.uuid,
        folder=folder,
        tf_config=config.cluster.discovery.tf_config,
        zk_server=config.cluster.discovery.zk_server,
        consul_server=config.cluster.discovery.consul_server,
    )


def _place(config: ClusterJobConfig, discovery: Discovery) -> ClusterJobConfig:
    """Return the settings with role, index and address of a discovery that gets them from its platform."""
    if isinstance(discovery, TfConfigDiscovery):
        host, port = split_address(discovery.address)
    elif isinstance(discovery, MlpDiscovery):
        host, port = discovery.host, discovery.port
    else:
        return config
    role: Any = discovery.server_type
    return replace_settings(config, server_type=role, index=discovery.index, advertised_host=host, bind_port=port)
