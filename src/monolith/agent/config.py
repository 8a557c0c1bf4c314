"""Configure an agent: fields, defaults, conversion, derived values and rules.

Main types: ``AgentConfig``, ``DeployType``; ``read_config`` reads a file, ``load_config`` also checks the rules.

Order of values: the file, then the environment, then the default; a port that neither gives is a free one. An unknown
key, a value of the wrong type and a value twice are errors that name file, line, field, value and remedy.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
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
from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_client import checked_servers

__all__ = [
    "SERVER_FIELDS",
    "SERVING_HOME",
    "AgentConfig",
    "DeployType",
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


class DeployType(StrEnum):
    """Which servers a container runs."""

    PS = "ps"
    ENTRY = "entry"
    DENSE = "dense"
    MIXED = "mixed"
    UNIFIED = "unified"

    def server_type(self, wanted: str | None) -> str:
        """Return the server type of a call to this container.

        Args:
            wanted: The type that the caller asks for; None or ``mixed`` = the container's own.

        Raises:
            ConfigError: The container has no such server, or has several and the caller names none.
        """
        own = None if self is DeployType.MIXED else self.value
        asked = None if wanted in (None, DeployType.MIXED.value) else wanted
        if (own is None and asked is None) or (own is not None and asked not in (None, own)):
            raise ConfigError(
                f"server type is {wanted!r} and deploy_type is {self.value!r}: DeployType and ServerType is not "
                "compatable!; ask for a server type that the container runs"
            )
        return own or str(asked)


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The configuration of one agent.

    ``read_config`` fills in the values of the environment: shards, replica id and ports. ``check`` applies the rules.
    """

    bzid: str | None = None
    base_name: str | None = None
    base_path: str | None = None
    num_ps: int = 1
    num_shard: int | None = None
    deploy_type: DeployType | None = None
    replica_id: int | None = None
    """-1 after reading = take a sequence number from ZooKeeper."""
    stand_alone_serving: bool = False
    zk_servers: str | None = None
    proxy_port: int | None = None
    tfs_entry_port: int | None = None
    tfs_entry_http_port: int | None = None
    tfs_entry_archon_port: int | None = None
    tfs_ps_port: int | None = None
    tfs_ps_http_port: int | None = None
    tfs_ps_archon_port: int | None = None
    dense_alone: bool = False
    dense_service_num: int = 3
    tfs_dense_port: int | None = None
    tfs_dense_http_port: int | None = None
    tfs_dense_archon_port: int | None = None
    agent_port: int | None = None
    update_model_status_interval: int = 1
    agent_version: int = 1
    max_waiting_sec: int = 1200
    preload_jemalloc: bool = True
    version_policy: str = "latest"
    version_data: int = 1
    fetch_ps_timeout_ms: int = 200
    fetch_ps_long_conn_num: int = 100
    fetch_ps_long_conn_enable: bool = True
    fetch_ps_retry: int = 2
    aio_thread_num: int = 30
    file_system_poll_wait_seconds_ps: int = 0
    rough_sort_model_name: str | None = None
    rough_sort_model_local_path: str | None = None
    rough_sort_model_loaded_server: str | None = "entry"
    rough_sort_model_p2p_path: str | None = None
    rough_sort_resource_constrained: bool = False
    dc_aware: bool = False
    layout_pattern: str | None = None
    layout_filters: tuple[str, ...] = ()
    tfs_port_archon: int | None = None
    tfs_port_grpc: int | None = None
    tfs_port_http: int | None = None
    use_metrics: bool = True

    # Fields of the server, in the order of its flags; SERVER_FIELDS lists them.
    enable_batching: bool = False
    allow_version_labels_for_unavailable_models: bool = False
    batching_parameters_file: str | None = None
    num_load_threads: int = 0
    num_unload_threads: int = 0
    max_num_load_retries: int = 5
    load_retry_interval_micros: int = 60_000_000
    file_system_poll_wait_seconds: int = 1
    flush_filesystem_caches: bool = True
    tensorflow_session_parallelism: int = 0
    tensorflow_intra_op_parallelism: int = 0
    tensorflow_inter_op_parallelism: int = 0
    ssl_config_file: str | None = None
    platform_config_file: str | None = None
    per_process_gpu_memory_fraction: float = 0.0
    allow_growth: bool = True
    saved_model_tags: str | None = None
    grpc_channel_arguments: str | None = None
    grpc_max_threads: int = 0
    enable_model_warmup: bool = True
    version: str | None = None
    remove_unused_fields_from_bundle_metagraph: bool = True
    enable_signature_method_name_check: bool = False
    xla_cpu_compilation_enabled: bool = False
    enable_profiler: bool = True

    environment: AgentEnvironment = field(default_factory=AgentEnvironment, metadata={"internal": True})
    """The variables that the configuration was read with."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False, metadata={"internal": True})
    """Fields that the file sets, with ``file:line``."""

    # --- derived values ---

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return self.num_shard if self.num_shard is not None else self.environment.shard_count or 1

    @property
    def shard_id(self) -> int | None:
        """Own shard; 0 where there is only one shard, None where the environment does not set it."""
        if self.environment.shard_id is not None:
            return self.environment.shard_id
        return 0 if self.shard_count == 1 else None

    @property
    def location(self) -> str | None:
        """``<idc>:<cluster>``, or None if one of them is not set."""
        idc, cluster = self.environment.idc, self.environment.cluster
        return None if idc is None or cluster is None else f"{idc}:{cluster}"

    @property
    def paths(self) -> NodePaths:
        """Builders of the node paths of this bzid."""
        return NodePaths(self._required("bzid"))

    @property
    def path_prefix(self) -> str:
        """Folder of the tasks of this agent, with its location if it is aware of that."""
        if self.dc_aware and self.location is None:
            self._fail("dc_aware", "expected idc and cluster; set TCE_INTERNAL_IDC and TCE_CLUSTER")
        return self.paths.service(self._required("base_name"), self.location if self.dc_aware else None)

    @property
    def layout_path(self) -> str | None:
        """Node of the layout; None if the agent serves all of ``base_path``."""
        return None if self.layout_pattern is None else self.paths.layout(self.layout_pattern)

    @property
    def container_cluster(self) -> str:
        """``<service name>;<idc>;<cluster>``."""
        environment = self.environment
        return f"{environment.service_name or 'unknown'};{environment.idc};{environment.cluster}"

    def own_ps_indices(self) -> list[int]:
        """Return the indices of the PS sub-models that this host serves."""
        if self.deploy_type not in (DeployType.PS, DeployType.MIXED):
            return []
        shard = self._checked_shard()
        return [index for index in range(self.num_ps) if index % self.shard_count == shard]

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
        return LayoutFilters(self.layout_filters, shard_id=self.shard_id, shard_count=self.shard_count)

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
            value = getattr(self, name)
            if value is not None:
                self._with_place(name, lambda name=name, value=value: checked_name(name, value))
        self._check_numbers()
        self._check_location()
        if self.deploy_type in (DeployType.PS, DeployType.MIXED):
            self._checked_shard()
        elif self.environment.shard_id is not None and self.environment.shard_id >= self.shard_count:
            self._fail_shard()
        servers = self._required("zk_servers")
        self._with_place("zk_servers", lambda: checked_servers(servers))
        self._with_place("zk_servers", lambda: check_servers_reachable(servers, is_ipv6_only(self.environment)))
        self._with_place("layout_filters", self.make_layout_filters)

    def _check_version(self) -> None:
        version, deploy_type = self.agent_version, self.deploy_type
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
        if version == 3 and self.layout_pattern is None and self.base_path is None:
            self._fail("layout_pattern", "expected a layout, or a base_path; set one of them")
        if deploy_type is DeployType.DENSE and not self.dense_alone:
            self._fail("dense_alone", "expected true with deploy_type dense; set dense_alone true")
        if self.version_policy.lower() not in _POLICIES:
            self._fail("version_policy", f"expected one of {', '.join(_POLICIES)}; give one of these")
        if self.rough_sort_model_loaded_server not in (None, *ServerType):
            self._fail("rough_sort_model_loaded_server", "expected none, entry, ps or dense; give one of these")

    def _check_numbers(self) -> None:
        for name in ("num_ps", "dense_service_num", "max_waiting_sec", "update_model_status_interval"):
            if getattr(self, name) < 1:
                self._fail(name, "expected at least 1; raise it")
        for name in ("fetch_ps_timeout_ms", "load_retry_interval_micros", "max_num_load_retries", "num_load_threads"):
            if getattr(self, name) < 0:
                self._fail(name, "expected 0 or more; raise it")
        for each in dataclasses.fields(self):
            if each.name.endswith("_port") or each.name.startswith("tfs_port"):
                port = getattr(self, each.name)
                if port is not None and not 1 <= port <= 65535:
                    self._fail(each.name, "expected 1 to 65535; give a port")

    def _check_location(self) -> None:
        if self.dc_aware and self.location is None:
            self._fail("dc_aware", "expected idc and cluster; set TCE_INTERNAL_IDC and TCE_CLUSTER")
        if self.dc_aware:
            checked_name("TCE_INTERNAL_IDC", self.environment.idc or "")
            checked_name("TCE_CLUSTER", self.environment.cluster or "")

    def _checked_shard(self) -> int:
        shard = self.shard_id
        if shard is None or not 0 <= shard < self.shard_count:
            self._fail_shard()
        return shard

    def _fail_shard(self) -> NoReturn:
        raise ConfigError(
            f"environment variable SHARD_ID is {self.environment.shard_id!r} with {self.shard_count} shards, "
            f"expected 0 to {self.shard_count - 1}; set SHARD_ID"
        )

    def _required(self, name: str) -> str:
        value = getattr(self, name)
        if not value:
            self._fail(name, "expected a value; add the field to the configuration file")
        return str(value)

    def _fail(self, name: str, reason: str) -> NoReturn:
        place = self.places.get(name)
        value = getattr(self, name)
        text = value.value if isinstance(value, StrEnum) else value
        raise ConfigError(f"{place + ': ' if place else ''}{name} is {text!r}, {reason}")

    def _with_place(self, name: str, action: Any) -> None:
        place = self.places.get(name)
        try:
            action()
        except ConfigError as error:
            field = "" if name in str(error) else f"{name} is {getattr(self, name)!r}: "
            raise ConfigError(f"{place + ': ' if place else ''}{field}{error}") from error

    def _port(self, server_type: str, suffix: str, unified_suffix: str) -> int | None:
        if server_type == DeployType.UNIFIED:
            port = getattr(self, f"tfs_port_{unified_suffix}")
        else:
            port = getattr(self, f"tfs_{ServerType(server_type)}_{suffix}")
        return None if port is None else int(port)


_FIELDS = {each.name: each for each in dataclasses.fields(AgentConfig) if not each.metadata.get("internal")}

SERVER_FIELDS: tuple[str, ...] = tuple(name for name in list(_FIELDS)[list(_FIELDS).index("enable_batching") :])
"""Fields that are flags of the server, in the order of the flags."""


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
    deploy_type = DeployType.MIXED if config.stand_alone_serving else config.deploy_type
    changes["deploy_type"] = deploy_type
    if config.num_shard is None:
        changes["num_shard"] = environment.shard_count or 1
    elif environment.shard_count not in (None, config.num_shard):
        place = config.places.get("num_shard")
        raise ConfigError(
            f"{place + ': ' if place else ''}num_shard is {config.num_shard}, and environment variable "
            f"MONOLITH_HOST_SHARD_N is {environment.shard_count}, expected the same; correct one of them"
        )
    if config.replica_id is None:
        own = environment.replica_id
        changes["replica_id"] = own if own is not None else pod_replica_id(environment.pod_name)
    if deploy_type is not None:
        ports = environment_ports(
            deploy_type,
            environment.ports,
            dense_alone=config.dense_alone,
            dense_service_index=environment.dense_service_index,
        )
        given = {name: port for name in ports if (port := getattr(config, name)) is not None}
        fields = {**ports, **given}
        changes.update(choose_ports(fields) if chooses_ports else fields)
    return dataclasses.replace(config, **changes)


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
    annotation = str(_FIELDS[name].type)
    if annotation.startswith("tuple"):
        return "list"
    if annotation.startswith("DeployType"):
        return "deploy_type"
    return annotation.partition(" ")[0]


def _value(name: str, entry: ConfigEntry) -> Any:
    text, kind = entry.value, _kind(name)
    is_optional = "None" in str(_FIELDS[name].type)
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
    if kind == "float":
        return float(number)
    if number != int(number):
        raise ConfigError(f"{entry.place}: {name} is {entry.value!r} = {number}, expected a whole number; round it")
    return int(number)
