"""Name the own container of a version 3 fleet and describe its services."""

from __future__ import annotations

import json

from monolith.agent.config import AgentConfig
from monolith.agent.hosts import OwnHost
from monolith.agent.records import Container, ContainerServiceInfo
from monolith.core.errors import ConfigError

__all__ = ["make_container", "make_service_info"]


def make_container(config: AgentConfig, host: OwnHost) -> Container:
    """Return the own container: its cluster, and its pod name or address.

    Raises:
        ConfigError: A name would break node paths.
    """
    cluster, number = config.container_cluster, config.environment.host.pod_name or host.name
    if "/" in cluster or ":" in cluster:
        raise ConfigError(
            f"container cluster is {cluster!r}, expected no '/' and no ':'; correct TCE_PSM, TCE_INTERNAL_IDC "
            "or TCE_CLUSTER"
        )
    if "/" in number:
        raise ConfigError(f"environment variable MY_POD_NAME is {number!r}, expected no '/'; correct it")
    return Container(cluster, number)


def make_service_info(config: AgentConfig, host: OwnHost) -> ContainerServiceInfo:
    """Return the addresses of the own container; ports must be chosen."""

    def address(port: int | None) -> str | None:
        return None if port is None else host.reachable_address(port)

    debug = {"layout_path": config.layout_path, "layout_filters": config.make_layout_filters().texts}
    return ContainerServiceInfo(
        grpc=address(config.ports.unified.tfs_port_grpc),
        http=address(config.ports.unified.tfs_port_http),
        archon=address(config.ports.unified.tfs_port_archon),
        agent=address(config.ports.agent_port),
        idc=config.environment.location.idc,
        debug_info=json.dumps(debug),
    )
