"""``open_discovery``: makes the ``Discovery`` of a job from settings and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from monolith.core.clock import Clock
from monolith.core.errors import ConfigError
from monolith.discovery.base import Discovery, checked_name
from monolith.discovery.consul import ConsulDiscovery
from monolith.discovery.consul_agent import consul_agent
from monolith.discovery.file import FileDiscovery
from monolith.discovery.mlp import MlpDiscovery
from monolith.discovery.tf_config import TfConfigDiscovery
from monolith.discovery.zookeeper import ZooKeeperDiscovery

__all__ = ["DiscoverySettings", "DiscoveryType", "open_discovery"]

DiscoveryType: TypeAlias = Literal["file", "tf_config", "mlp", "zookeeper", "consul"]


@dataclass(frozen=True, kw_only=True)
class DiscoverySettings:
    """Settings of discovery."""

    discovery_type: DiscoveryType | None = None
    """Name of the backend; None = a job of one process."""
    job: str | None = None
    """Name of the job: below /monolith in ZooKeeper, the service in Consul."""
    folder: str | os.PathLike[str] | None = None
    """Folder of the service files, for file."""
    tf_config: str | None = None
    """The cluster as JSON, for tf_config; None = the variable TF_CONFIG."""
    zk_server: str | None = None
    """host:port,... for zookeeper; None = the variable zk_servers."""
    zk_root: str = "/monolith"
    """The path above the jobs, for zookeeper."""
    consul_server: str | None = None
    """host:port or URL of the agent, for consul; None = from the environment."""

    def __post_init__(self) -> None:
        if self.discovery_type is not None and self.discovery_type not in get_args(DiscoveryType):
            raise ConfigError(
                f"discovery_type is {self.discovery_type!r}; give one of {', '.join(get_args(DiscoveryType))}"
            )
        if self.job is not None:
            checked_name("job", self.job)


def open_discovery(
    settings: DiscoverySettings, environment: Mapping[str, str], *, clock: Clock | None = None
) -> Discovery | None:
    """Return the discovery of a job, not yet connected; None for a job of one process.

    Args:
        settings: Backend and its address.
        environment: The process's variables: TF_CONFIG, MLP_*, zk_servers, ZK_AUTH, CONSUL_HTTP_* and TCE_HOST_IP.
        clock: Measures pauses.

    Raises:
        ConfigError: A setting of the backend is missing or invalid.
    """
    match settings.discovery_type:
        case None:
            return None
        case "file":
            if settings.folder is None:
                raise ConfigError(
                    "folder is None; discovery by file needs a folder that all processes of the job share"
                )
            return FileDiscovery(settings.folder)
        case "tf_config":
            return TfConfigDiscovery(settings.tf_config or environment.get("TF_CONFIG", ""))
        case "mlp":
            return MlpDiscovery(environment)
        case "zookeeper":
            servers = settings.zk_server or environment.get("zk_servers", "")
            auth = environment.get("ZK_AUTH") or None
            return ZooKeeperDiscovery(servers, _job(settings), auth=auth, root=settings.zk_root, clock=clock)
        case "consul":
            if settings.job is None:
                raise ConfigError("psm is required for Consul discovery: job is None; set uuid to the job's name")
            agent = consul_agent(settings.consul_server, environment, clock=clock)
            return ConsulDiscovery(agent, settings.job, clock=clock)


def _job(settings: DiscoverySettings) -> str:
    if settings.job is None:
        raise ConfigError("job is None; discovery by zookeeper needs the job's name: set uuid")
    return settings.job
