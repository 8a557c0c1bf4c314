"""Configure an agent: fields, defaults, conversion, derived values and rules.

Main type: ``AgentConfig``; ``read_config`` reads a file, ``load_config`` also checks the rules.

Order of values: the file, then the environment, then the default; a port that neither gives is a free one. An unknown
key, a value of the wrong type and a value twice are errors that name file, line, field, value and remedy.
"""

from __future__ import annotations

import difflib
import math
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from monolith.agent.config_file import ConfigEntry, read_entries
from monolith.agent.environment import AgentEnvironment, pod_replica_id, read_environment
from monolith.agent.expressions import compute_number
from monolith.agent.hosts import check_servers_reachable, is_ipv6_only
from monolith.agent.layout_filters import LayoutFilters
from monolith.agent.node_paths import NodePaths, checked_name
from monolith.agent.ports import choose_ports, environment_ports
from monolith.agent.records import ServerType
from monolith.agent.settings import (
    DenseServiceConfig,
    DeployType,
    FetchConfig,
    LayoutConfig,
    PortConfig,
    RoughSortConfig,
    ServerFlags,
    ServiceConfig,
    SupervisionConfig,
    VersionConfig,
)
from monolith.core.config_sections import fill_sections, flat_fields, read_setting, replace_settings, section
from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_client import checked_servers

__all__ = [
    "SERVING_HOME",
    "AgentConfig",
    "load_config",
    "read_config",
    "resolve",
]

SERVING_HOME = "/opt/tiger/monolith_serving"
"""Folder of a foreign server: ``bin``, ``conf``, ``dat``."""

_TRUE = ("true", "y", "t", "yes", "1")
_FALSE = ("false", "n", "f", "no", "0")
_POLICIES = ("latest", "latest_once", "all", "specific")
_OLD_NAMES = {"server_type": "deploy_type"}


@dataclass(frozen=True, kw_only=True, init=False)
class AgentConfig:
    """The configuration of one agent. The constructor takes sections, single fields of them, or both.

    ``read_config`` fills in the values of the environment: shards, replica id and ports. ``check`` applies the rules.
    Fields keep the names, units and defaults of the file, because foreign servers and tools share it.
    """

    service: ServiceConfig = section(ServiceConfig)
    ports: PortConfig = section(PortConfig)
    dense: DenseServiceConfig = section(DenseServiceConfig)
    supervision: SupervisionConfig = section(SupervisionConfig)
    versions: VersionConfig = section(VersionConfig)
    fetch: FetchConfig = section(FetchConfig)
    rough_sort: RoughSortConfig = section(RoughSortConfig)
    layout: LayoutConfig = section(LayoutConfig)
    server: ServerFlags = section(ServerFlags)
    environment: AgentEnvironment = field(default_factory=AgentEnvironment)
    """The variables that the configuration was read with."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Fields that the file sets, with ``file:line``."""

    def __init__(self, **settings: Any) -> None:
        fill_sections(self, settings, {})

    # --- derived values ---

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return self.service.num_shard if self.service.num_shard is not None else self.environment.shard.shard_count or 1

    @property
    def shard_id(self) -> int | None:
        """Own shard; 0 where there is only one shard, None where the environment does not set it."""
        if self.environment.shard.shard_id is not None:
            return self.environment.shard.shard_id
        return 0 if self.shard_count == 1 else None

    @property
    def location(self) -> str | None:
        """``<idc>:<cluster>``, or None if one of them is not set."""
        idc, cluster = self.environment.location.idc, self.environment.location.cluster
        return None if idc is None or cluster is None else f"{idc}:{cluster}"

    @property
    def paths(self) -> NodePaths:
        """Builders of the node paths of this bzid."""
        return NodePaths(self._required("bzid"))

    @property
    def path_prefix(self) -> str:
        """Folder of the tasks of this agent, with its location if it is aware of that."""
        if self.service.dc_aware and self.location is None:
            self._fail("dc_aware", "expected idc and cluster; set TCE_INTERNAL_IDC and TCE_CLUSTER")
        return self.paths.service(self._required("base_name"), self.location if self.service.dc_aware else None)

    @property
    def layout_path(self) -> str | None:
        """Node of the layout; None if the agent serves all of ``base_path``."""
        return None if self.layout.layout_pattern is None else self.paths.layout(self.layout.layout_pattern)

    @property
    def container_cluster(self) -> str:
        """``<service name>;<idc>;<cluster>``."""
        location = self.environment.location
        return f"{location.service_name or 'unknown'};{location.idc};{location.cluster}"

    def own_ps_indices(self) -> list[int]:
        """Return the indices of the PS sub-models that this host serves."""
        if self.service.deploy_type not in (DeployType.PS, DeployType.MIXED):
            return []
        shard = self._checked_shard()
        return [index for index in range(self.service.num_ps) if index % self.shard_count == shard]

    def port_of(self, server_type: str) -> int | None:
        """Return the gRPC port of a server."""
        return self._port(server_type, "port", "grpc")

    def http_port_of(self, server_type: str) -> int | None:
        """Return the REST port of a server."""
        return self._port(server_type, "http_port", "http")

    def archon_port_of(self, server_type: str) -> int | None:
        """Return the archon port of a server."""
        return self._port(server_type, "archon_port", "archon")

    def make_layout_filters(self) -> LayoutFilters:
        """Return the filters of this container."""
        return LayoutFilters(self.layout.layout_filters, shard_id=self.shard_id, shard_count=self.shard_count)

    def is_given(self, name: str) -> bool:
        """Return True if the file sets the field."""
        return name in self.places

    # --- rules ---

    def check(self) -> None:
        """Apply all rules.

        Raises:
            ConfigError: A rule is broken; the error names file, line, field, value and remedy.
        """
        for name in ("bzid", "deploy_type", "zk_servers"):
            self._required(name)
        self._check_version()
        for name in ("bzid", "base_name"):
            value = read_setting(self, name)
            if value is not None:
                self._with_place(name, lambda name=name, value=value: checked_name(name, value))
        self._check_numbers()
        self._check_location()
        if self.service.deploy_type in (DeployType.PS, DeployType.MIXED):
            self._checked_shard()
        elif self.environment.shard.shard_id is not None and self.environment.shard.shard_id >= self.shard_count:
            self._fail_shard()
        servers = self._required("zk_servers")
        self._with_place("zk_servers", lambda: checked_servers(servers))
        self._with_place("zk_servers", lambda: check_servers_reachable(servers, is_ipv6_only(self.environment)))
        self._with_place("layout_filters", self.make_layout_filters)

    def _check_version(self) -> None:
        version, deploy_type = self.service.agent_version, self.service.deploy_type
        if version not in (1, 2, 3):
            self._fail("agent_version", "expected 1, 2 or 3; give one of these")
        is_unified = deploy_type is DeployType.UNIFIED
        if is_unified and version != 3:
            self._fail("deploy_type", f"expected another one with agent_version {version}; set agent_version 3")
        if version == 3 and not is_unified:
            self._fail("deploy_type", "expected unified with agent_version 3; set deploy_type unified")
        if version == 1:
            self._required("base_name")
            self._required("base_path")
        if version == 3 and self.layout.layout_pattern is None and self.service.base_path is None:
            self._fail("layout_pattern", "expected a layout, or a base_path; set one of them")
        if deploy_type is DeployType.DENSE and not self.dense.dense_alone:
            self._fail("dense_alone", "expected true with deploy_type dense; set dense_alone true")
        if self.versions.version_policy.lower() not in _POLICIES:
            self._fail("version_policy", f"expected one of {', '.join(_POLICIES)}; give one of these")
        if self.rough_sort.rough_sort_model_loaded_server not in (None, *ServerType):
            self._fail("rough_sort_model_loaded_server", "expected none, entry, ps or dense; give one of these")

    def _check_numbers(self) -> None:
        for name in ("num_ps", "dense_service_num", "max_waiting_sec", "update_model_status_interval"):
            if read_setting(self, name) < 1:
                self._fail(name, "expected at least 1; raise it")
        for name in ("fetch_ps_timeout_ms", "load_retry_interval_micros", "max_num_load_retries", "num_load_threads"):
            if read_setting(self, name) < 0:
                self._fail(name, "expected 0 or more; raise it")
        for name, each in _FIELDS.items():
            if name.endswith("_port") or name.startswith("tfs_port"):
                port = each.read(self)
                if port is not None and not 1 <= port <= 65535:
                    self._fail(name, "expected 1 to 65535; give a port")

    def _check_location(self) -> None:
        if self.service.dc_aware and self.location is None:
            self._fail("dc_aware", "expected idc and cluster; set TCE_INTERNAL_IDC and TCE_CLUSTER")
        if self.service.dc_aware:
            checked_name("TCE_INTERNAL_IDC", self.environment.location.idc or "")
            checked_name("TCE_CLUSTER", self.environment.location.cluster or "")

    def _checked_shard(self) -> int:
        shard = self.shard_id
        if shard is None or not 0 <= shard < self.shard_count:
            self._fail_shard()
        return shard

    def _fail_shard(self) -> NoReturn:
        raise ConfigError(
            f"environment variable SHARD_ID is {self.environment.shard.shard_id!r} with {self.shard_count} shards, "
            f"expected 0 to {self.shard_count - 1}; set SHARD_ID"
        )

    def _required(self, name: str) -> str:
        value = read_setting(self, name)
        if not value:
            self._fail(name, "expected a value; add the field to the configuration file")
        return str(value)

    def _fail(self, name: str, reason: str) -> NoReturn:
        place = self.places.get(name)
        value = read_setting(self, name)
        text = value.value if isinstance(value, StrEnum) else value
        raise ConfigError(f"{place + ': ' if place else ''}{name} is {text!r}, {reason}")

    def _with_place(self, name: str, action: Any) -> None:
        place = self.places.get(name)
        try:
            action()
        except ConfigError as error:
            field = "" if name in str(error) else f"{name} is {read_setting(self, name)!r}: "
            raise ConfigError(f"{place + ': ' if place else ''}{field}{error}") from error

    def _port(self, server_type: str, suffix: str, unified_suffix: str) -> int | None:
        if server_type == DeployType.UNIFIED:
            port = read_setting(self, f"tfs_port_{unified_suffix}")
        else:
            port = read_setting(self, f"tfs_{ServerType(server_type)}_{suffix}")
        return None if port is None else int(port)


_FIELDS = {name: each for name, each in flat_fields(AgentConfig).items() if name not in ("environment", "places")}


def read_config(
    path: str | Path, variables: Mapping[str, str] | None = None, *, chooses_ports: bool = True
) -> AgentConfig:
    """Return the configuration of a file and of the environment, without applying the rules.

    Args:
        path: The file.
        variables: Environment variables; None = those of the process.
        chooses_ports: Whether free ports are chosen where neither file nor environment gives one.

    Raises:
        ConfigError: The file or a variable is invalid.
    """
    environment = read_environment(os.environ if variables is None else variables)
    return resolve(_convert(read_entries(path)), environment, chooses_ports=chooses_ports)


def load_config(path: str | Path, variables: Mapping[str, str] | None = None) -> AgentConfig:
    """Return the configuration of a file and of the environment, with the rules applied.

    Raises:
        ConfigError: The file or a variable is invalid, or a rule is broken.
    """
    # The rules come first, so that a broken configuration opens no socket.
    read_config(path, variables, chooses_ports=False).check()
    config = read_config(path, variables)
    config.check()
    return config


def resolve(config: AgentConfig, environment: AgentEnvironment, *, chooses_ports: bool = True) -> AgentConfig:
    """Return the configuration with all that the environment decides.

    Raises:
        ConfigError: File and environment disagree.
    """
    changes: dict[str, Any] = {"environment": environment}
    deploy_type = DeployType.MIXED if config.service.stand_alone_serving else config.service.deploy_type
    changes["deploy_type"] = deploy_type
    if config.service.num_shard is None:
        changes["num_shard"] = environment.shard.shard_count or 1
    elif environment.shard.shard_count not in (None, config.service.num_shard):
        place = config.places.get("num_shard")
        raise ConfigError(
            f"{place + ': ' if place else ''}num_shard is {config.service.num_shard}, and environment variable "
            f"MONOLITH_HOST_SHARD_N is {environment.shard.shard_count}, expected the same; correct one of them"
        )
    if config.service.replica_id is None:
        own = environment.shard.replica_id
        changes["replica_id"] = own if own is not None else pod_replica_id(environment.host.pod_name)
    if deploy_type is not None:
        ports = environment_ports(
            deploy_type,
            environment.ports,
            dense_alone=config.dense.dense_alone,
            dense_service_index=environment.shard.dense_service_index,
        )
        given = {name: port for name in ports if (port := read_setting(config, name)) is not None}
        fields = {**ports, **given}
        changes.update(choose_ports(fields) if chooses_ports else fields)
    return replace_settings(config, **changes)


def _convert(entries: Sequence[ConfigEntry]) -> AgentConfig:
    by_key: dict[str, list[ConfigEntry]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    for old, new in _OLD_NAMES.items():
        old_entries = by_key.pop(old, None)
        if old_entries is not None and new not in by_key:
            by_key[new] = old_entries
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key, found in by_key.items():
        if key not in _FIELDS:
            near = difflib.get_close_matches(key, [*_FIELDS, *_OLD_NAMES], n=1)
            hint = f"did you mean {near[0]}?" if near else "remove it"
            raise ConfigError(f"{found[0].place}: {key} is an unknown field with value {found[0].value!r}; {hint}")
        is_list = _kind(key) == "list"
        if len(found) > 1 and not is_list:
            listed = ", ".join(f"{each.value!r} at {each.place}" for each in found)
            raise ConfigError(f"{found[-1].place}: {key} is given {len(found)} times: {listed}; keep one line")
        if is_list:
            values[key] = tuple(each.value for each in found if each.value.lower() != "none")
        else:
            values[key] = _value(key, found[0])
        places[key] = found[0].place
    return AgentConfig(**values, places=places)


def _kind(name: str) -> str:
    """Return bool, int, float, str, list or deploy_type."""
    hint = _FIELDS[name].hint
    if typing.get_origin(hint) is tuple:
        return "list"
    kind = next(choice for choice in (*typing.get_args(hint), hint) if choice is not type(None))
    return "deploy_type" if kind is DeployType else str(kind.__name__)


def _value(name: str, entry: ConfigEntry) -> Any:
    text, kind = entry.value, _kind(name)
    is_optional = type(None) in typing.get_args(_FIELDS[name].hint)
    if text.lower() == "none":
        if is_optional:
            return None
        raise ConfigError(f"{entry.place}: {name} is {text!r}, expected a value of type {kind}; give one or remove it")
    if kind == "bool":
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise ConfigError(f"{entry.place}: {name} is {text!r}, expected true or false; write one of these")
    if kind in ("int", "float"):
        return _number(name, entry, kind)
    if kind == "deploy_type":
        try:
            return DeployType(text.lower())
        except ValueError:
            listed = ", ".join(DeployType)
            raise ConfigError(f"{entry.place}: {name} is {text!r}, expected one of {listed}; correct it") from None
    if name == "rough_sort_model_loaded_server":
        return text.lower()
    return text


def _number(name: str, entry: ConfigEntry, kind: str) -> int | float:
    try:
        number = compute_number(entry.value)
    except ConfigError as error:
        raise ConfigError(f"{entry.place}: {name} is {entry.value!r}: {error}") from error
    if not math.isfinite(number):
        raise ConfigError(f"{entry.place}: {name} is {entry.value!r} = {number}, expected a finite number; correct it")
    if kind == "float":
        return float(number)
    if number != int(number):
        raise ConfigError(f"{entry.place}: {name} is {entry.value!r} = {number}, expected a whole number; round it")
    return int(number)
