"""Read the environment variables of an agent: the one place that knows their names.

Main type: ``AgentEnvironment``, made by ``read_environment`` from a mapping. No variable is read at import.

Invariants: an unset variable and an empty one mean the same, except MY_HOST_IP, where an empty text means that the
host has no IPv4 address. Secrets never reach ``loggable``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monolith.core.config_sections import fill_sections, section
from monolith.core.errors import ConfigError

__all__ = ["AGENT_PORT_VARIABLE", "AgentEnvironment", "pod_replica_id", "read_environment"]

AGENT_PORT_VARIABLE = "PORT2"
"""Port of the agent service; also tells the entry server where its agent listens."""

_PORTS = ("PORT", *(f"PORT{number}" for number in range(2, 11)))
_SECRETS = ("ZK_AUTH",)
_VARIABLES = (
    *_PORTS,
    "MONOLITH_HOST_SHARD_N",
    "byterec_host_shard_n",
    "SHARD_ID",
    "REPLICA_ID",
    "DENSE_SERVICE_IDX",
    "MY_POD_NAME",
    "MY_HOST_IP",
    "MY_HOST_IPV6",
    "MY_POD_IP",
    "MY_CPU_LIMIT",
    "MY_MEM_LIMIT",
    "TCE_INTERNAL_IDC",
    "TCE_LOGICAL_CLUSTER",
    "TCE_CLUSTER",
    "TCE_PHYSICAL_CLUSTER",
    "TCE_PSM",
    "MONOLITH_METRIC_PREFIX",
    "MLP_POD_NAME",
    "MONOLITH_TFS_BINARY",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardVariables:
    """The place of the container among its like."""

    shard_count: int | None = None
    shard_id: int | None = None
    replica_id: int | None = None
    dense_service_index: int = 0
    """Which of the dense processes of one host this one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVariables:
    """Names, addresses and limits of the container."""

    pod_name: str | None = None
    host_ip: str | None = None
    """IPv4 address to register; an empty text means that the host has no IPv4 address."""
    host_ipv6: str | None = None
    pod_ip: str | None = None
    cpu_limit: int = 0
    memory_limit: int | None = None
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationVariables:
    """Where the service runs."""

    idc: str | None = None
    """Data centre, in lower case."""
    cluster: str | None = None
    """Cluster, in lower case."""
    cluster_flag: str = ""
    """TCE_CLUSTER as it stands, for the flag of a foreign server."""
    service_name: str | None = None
    """TCE_PSM."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class AgentEnvironment:
    """The variables, converted. None means not set. The constructor takes sections, single fields of them, or both."""

    ports: Mapping[str, int] = field(default_factory=dict)
    """``PORT``, ``PORT2`` .. ``PORT10``, those that are set."""
    shard: ShardVariables = section(ShardVariables)
    host: HostVariables = section(HostVariables)
    location: LocationVariables = section(LocationVariables)
    logs_to_own_output: bool = False
    """True if children write to the output of the agent, which MLP_POD_NAME asks for."""
    foreign_server: str | None = None
    """Path of a ``tensorflow_model_server``; None = ``monolith serve``."""
    zookeeper_auth: str | None = field(default=None, repr=False)
    loggable: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The variables that are set, without secrets, for the log."""

    def __init__(self, **settings: Any) -> None:
        fill_sections(self, settings, {})


def pod_replica_id(pod_name: str | None) -> int:
    """Return the replica id of a pod: 40 bits of the MD5 of its name; -1 without a name.

    >>> pod_replica_id("monolith-ps-0")
    799262774729
    """
    if not pod_name:
        return -1
    return int(hashlib.md5(pod_name.encode(), usedforsecurity=False).hexdigest()[10:20], 16)


def read_environment(variables: Mapping[str, str]) -> AgentEnvironment:
    """Return the environment of an agent.

    Raises:
        ConfigError: A variable has an invalid value; the error names it.
    """

    def text(name: str) -> str | None:
        return variables.get(name, "").strip() or None

    def number(name: str, *, low: int = 0, high: int = (1 << 63) - 1) -> int | None:
        value = text(name)
        if value is None:
            return None
        try:
            result = int(value)
        except ValueError:
            result = low - 1
        if not low <= result <= high:
            raise ConfigError(
                f"environment variable {name} is {value!r}, expected {low} to {high}; correct or unset it"
            )
        return result

    def lowered(*names: str) -> str | None:
        value = next((found for name in names if (found := text(name))), None)
        return None if value is None else value.lower()

    def not_negative(name: str) -> int | None:
        value = number(name, low=-1)
        return None if value == -1 else value

    ports = {name: port for name in _PORTS if (port := number(name, low=1, high=65535)) is not None}
    shard_count = number("MONOLITH_HOST_SHARD_N", low=1)
    if shard_count is None:
        shard_count = number("byterec_host_shard_n", low=1)
    return AgentEnvironment(
        ports=ports,
        shard_count=shard_count,
        shard_id=not_negative("SHARD_ID"),
        replica_id=not_negative("REPLICA_ID"),
        dense_service_index=number("DENSE_SERVICE_IDX") or 0,
        pod_name=text("MY_POD_NAME"),
        host_ip=variables.get("MY_HOST_IP", "").strip() if "MY_HOST_IP" in variables else None,
        host_ipv6=text("MY_HOST_IPV6"),
        pod_ip=text("MY_POD_IP"),
        cpu_limit=_cpu_limit(text("MY_CPU_LIMIT")),
        memory_limit=number("MY_MEM_LIMIT"),
        idc=lowered("TCE_INTERNAL_IDC"),
        cluster=lowered("TCE_LOGICAL_CLUSTER", "TCE_CLUSTER", "TCE_PHYSICAL_CLUSTER"),
        cluster_flag=text("TCE_CLUSTER") or "",
        service_name=text("TCE_PSM"),
        logs_to_own_output=text("MLP_POD_NAME") is not None,
        foreign_server=text("MONOLITH_TFS_BINARY"),
        zookeeper_auth=text("ZK_AUTH"),
        loggable={name: variables[name] for name in _VARIABLES if name in variables and name not in _SECRETS},
    )


def _cpu_limit(value: str | None) -> int:
    """Return a number of cores; a platform may give a fraction such as 7.5."""
    if value is None:
        return 0
    try:
        cores = float(value)
    except ValueError:
        cores = -1.0
    if not 0 <= cores < 1e6:
        raise ConfigError(f"environment variable MY_CPU_LIMIT is {value!r}, expected a number of cores; correct it")
    return int(cores)
