"""Define the records that agents keep in ZooKeeper, and their JSON.

Main types: ``ReplicaMeta`` (versions 1 and 2), ``ModelMeta``, ``PublishMeta``, ``ResourceSpec`` (version 2),
``SavedModelDeployConfig``, ``ContainerServiceInfo`` (version 3), ``SavedModel``, ``Container``, ``LoadState``, the
enumerations, and ``BadNodes``, which logs each invalid node once.

Invariants: keys are written in field order with ``", "`` and ``": "``, so equal records have equal bytes. A reader
ignores unknown keys, gives missing keys their default, and accepts null. A wrong type makes the record invalid.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import threading
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, cast

from monolith.core.errors import ConfigError, DataError
from monolith.discovery.zookeeper_session import MAX_NODE_BYTES

__all__ = [
    "AddressFamily",
    "BadNodes",
    "Container",
    "ContainerServiceInfo",
    "Event",
    "EventType",
    "LoadState",
    "ModelMeta",
    "ModelState",
    "PublishMeta",
    "PublishType",
    "Record",
    "RecordInvalid",
    "ReplicaMeta",
    "ResourceSpec",
    "SavedModel",
    "SavedModelDeployConfig",
    "ServerType",
    "parse_sub_model_name",
    "state_name",
    "sub_graph_order",
]

logger = logging.getLogger(__name__)


class RecordInvalid(DataError):
    """The content of a node is not a record of its type."""


class ServerType(StrEnum):
    """Kind of a server; the text stands in node paths."""

    PS = "ps"
    ENTRY = "entry"
    DENSE = "dense"


class ModelState(IntEnum):
    """State of a model version, with TensorFlow Serving's numbers."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


def state_name(state: int | None) -> str:
    """Return the name of a state; the number of a state that does not exist.

    >>> state_name(30), state_name(None), state_name(77)
    ('AVAILABLE', 'UNKNOWN', '77')
    """
    try:
        return ModelState(state or 0).name
    except ValueError:
        return str(state)


class PublishType(IntEnum):
    """Whether a publish asks to load or to unload."""

    LOAD = 1
    UNLOAD = 2


class EventType(IntEnum):
    """Kind of an event in the queue of a version 2 agent."""

    UNKNOWN = 0
    PORTAL = 1
    SERVICE = 2
    PUBLISH = 3
    RESOURCE = 4


class AddressFamily(StrEnum):
    """Which address of a replica is preferred."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


@dataclass(frozen=True, slots=True)
class Record:
    """Base of the records that have JSON."""

    def to_bytes(self) -> bytes:
        """Return the JSON of the record."""
        return json.dumps({each.name: getattr(self, each.name) for each in dataclasses.fields(self)}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the record of a node's content.

        Raises:
            RecordInvalid: The content is not such a record; the error names the field.
        """
        if len(content) > MAX_NODE_BYTES:
            raise RecordInvalid(f"{cls.__name__} is {len(content)} bytes, expected at most {MAX_NODE_BYTES}")
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RecordInvalid(f"{cls.__name__} is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise RecordInvalid(f"{cls.__name__} is a JSON {type(values).__name__}, expected an object")
        accepted: dict[str, Any] = {}
        for name, check in _checks(cast(Any, cls)).items():
            if name in values:
                value = values[name]
                if value is not None and not check.accepts(value):
                    raise RecordInvalid(f"{cls.__name__}.{name} is {value!r:.80}, expected {check.expected}")
                accepted[name] = value
        return cls(**accepted)


_INT64 = 1 << 63
# More digits than this do not fit into 64 bits.
_MAX_DIGITS = 18


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


def _is_text(value: Any) -> bool:
    """Return True for a text that paths and messages can hold: one bad node must not stop the others' updates."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


class _Check(NamedTuple):
    """Which JSON values a field takes."""

    expected: str
    accepts: Callable[[Any], bool]


_BY_TYPE: dict[Any, _Check] = {
    str: _Check("a text of UTF-8 without NUL", _is_text),
    int: _Check("a whole number", _is_whole),
    float: _Check("a number", lambda value: _is_whole(value) or (isinstance(value, float) and math.isfinite(value))),
    bool: _Check("true or false", lambda value: isinstance(value, bool)),
    list[int]: _Check("a list of whole numbers", lambda value: isinstance(value, list) and all(map(_is_whole, value))),
    dict[str, str]: _Check(
        "a map from text to text, both of UTF-8 without NUL",
        lambda value: isinstance(value, dict) and all(map(_is_text, (*value, *value.values()))),
    ),
}


@cache
def _checks(kind: Any) -> Mapping[str, _Check]:
    hints = typing.get_type_hints(kind)
    checks = {}
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        if isinstance(hint, types.UnionType):
            hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        checks[each.name] = _BY_TYPE[hint]
    return checks


@dataclass(frozen=True, slots=True)
class ModelMeta(Record):
    """A model that clients want to be served, below ``/portal``."""

    model_name: str | None = None
    model_dir: str | None = None
    ckpt: str | None = None
    num_shard: int | None = -1
    action: str | None = "NONE"
    """NONE (found at start), CREATED, CHANGED or DELETED; set in events only."""
    spec_replicas: list[int] | None = field(default_factory=list)
    """Replica ids that may serve the model; empty = all."""

    def get_path(self, base: str) -> str:
        """Return the path of the node below ``base``."""
        return f"{base}/{self.model_name}"


@dataclass(frozen=True, slots=True)
class ResourceSpec(Record):
    """Free resources of a host, below ``/resource``."""

    address: str | None = None
    shard_id: int | None = None
    replica_id: int | None = None
    memory: int | None = None
    """Bytes that are free."""
    cpu: float | None = -1.0
    network: float | None = -1.0
    work_load: float | None = -1.0

    def get_path(self, base: str) -> str:
        """Return the path of the node below ``base``."""
        return f"{base}/{self.shard_id}:{self.replica_id}"


@dataclass(frozen=True, slots=True)
class PublishMeta(Record):
    """The sub-models that one host of one shard shall load, below ``/publish``."""

    shard_id: int | None = None
    replica_id: int | None = -1
    model_name: str | None = None
    num_ps: int | None = None
    total_publish_num: int | None = 1
    sub_models: dict[str, str] | None = None
    """Sub-model to the path of its version."""
    ptype: int | None = PublishType.LOAD.value
    is_spec: bool | None = False

    def get_path(self, base: str) -> str:
        """Return the path of the node below ``base``."""
        return f"{base}/{self.shard_id}:{self.replica_id}:{self.model_name}"


@dataclass(frozen=True, slots=True)
class ReplicaMeta(Record):
    """A replica of a task, below ``/service``."""

    address: str | None = None
    address_ipv6: str | None = None
    stat: int | None = ModelState.UNKNOWN.value
    model_name: str | None = None
    server_type: str | None = None
    task: int | None = -1
    replica: int | None = -1
    archon_address: str | None = None
    archon_address_ipv6: str | None = None

    def get_path(self, bzid: str, separator: str = "/") -> str:
        """Return the path of the node of a replica without a location."""
        return separator.join(
            ["", bzid, "service", f"{self.model_name}", f"{self.server_type}:{self.task}", f"{self.replica}"]
        )

    def get_address(
        self, *, use_archon: bool = False, address_family: AddressFamily = AddressFamily.IPV4
    ) -> str | None:
        """Return the address to call: that of the family if it is valid, else the other one, else None."""
        ipv4, ipv6 = (
            (self.archon_address, self.archon_address_ipv6) if use_archon else (self.address, self.address_ipv6)
        )
        if ipv4 is not None and ipv4.startswith("0.0.0.0"):
            ipv4 = None
        if ipv6 is not None and ipv6.startswith("[::]"):
            ipv6 = None
        if AddressFamily(address_family) is AddressFamily.IPV4:
            return ipv4 or ipv6
        return ipv6 or ipv4


@dataclass(frozen=True, slots=True)
class SavedModelDeployConfig(Record):
    """How a declared sub-graph is served, below ``/saved_models``."""

    model_base_path: str | None = None
    version_policy: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerServiceInfo(Record):
    """Addresses of a container, below ``/container_service``."""

    grpc: str | None = None
    http: str | None = None
    archon: str | None = None
    agent: str | None = None
    idc: str | None = None
    debug_info: str | None = None
    """JSON of the layout path and the filters, for people."""


@dataclass(frozen=True, slots=True, order=True)
class SavedModel:
    """A sub-graph of a model."""

    model_name: str
    sub_graph: str

    def __str__(self) -> str:
        return f"{self.model_name}:{self.sub_graph}"


@dataclass(frozen=True, slots=True, order=True)
class Container:
    """A container of a cluster."""

    ctx_cluster: str
    ctx_id: str

    def __str__(self) -> str:
        return f"{self.ctx_cluster}:{self.ctx_id}"


@dataclass(frozen=True, slots=True)
class Event:
    """An event in the queue of a version 2 agent; never stored."""

    path: str
    data: bytes = b""
    etype: EventType = EventType.PORTAL


@dataclass(frozen=True, slots=True)
class LoadState:
    """Progress of a load, for clients; never stored."""

    portal: bool = False
    publish: bool = False
    service: dict[str, int] = field(default_factory=dict)
    """``<task>:<replica>`` to state."""


def parse_sub_model_name(name: str) -> tuple[str, int]:
    """Return type and index of a sub-model.

    >>> parse_sub_model_name("ps_12"), parse_sub_model_name("Entry")
    (('ps', 12), ('entry', 0))

    Raises:
        ConfigError: The name has another form.
    """
    if not name:
        raise ConfigError(f"sub_model_name is {name!r}: sub_model_name is None or empty; give a name such as ps_0")
    kind, separator, index = name.lower().partition("_")
    if not separator:
        return kind, 0
    if not _is_index(index):
        raise ConfigError(f"sub_model_name is {name!r}, expected <type> or <type>_<number>; rename the sub-model")
    return kind, int(index)


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def sub_graph_order(saved_model: SavedModel) -> tuple[str, str, int, str]:
    """Return the sort key of a sub-graph: model, type, number, so that ``ps_2`` comes before ``ps_10``."""
    kind, separator, index = saved_model.sub_graph.rpartition("_")
    if separator and _is_index(index):
        return saved_model.model_name, kind, int(index), saved_model.sub_graph
    return saved_model.model_name, saved_model.sub_graph, -1, saved_model.sub_graph


class BadNodes:
    """Logs each invalid node once, with its path, until its content changes. Thread-safe."""

    _LIMIT: ClassVar[int] = 100_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}

    def report(self, path: str, content: bytes | None, reason: object) -> None:
        """Log an invalid node, unless this content of it was logged before. The node stays as it is."""
        mark = hash(content)
        with self._lock:
            if self._seen.get(path) == mark:
                return
            if len(self._seen) >= self._LIMIT:
                self._seen.clear()
            self._seen[path] = mark
        logger.warning("invalid node ignored path=%s reason=%s", path, reason)

    def forget(self, path: str) -> None:
        """Log the node again when it is invalid the next time."""
        with self._lock:
            self._seen.pop(path, None)
