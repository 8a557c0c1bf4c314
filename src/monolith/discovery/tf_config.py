"""Discovery by TF_CONFIG, which Primus and other launchers write: JSON that lists every process of the job.

Registration does nothing: the text lists all processes of the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.discovery._static import StaticDiscovery, checked_service_type
from monolith.discovery.address import split_address
from monolith.discovery.base import ServiceInfo

__all__ = ["TfConfigDiscovery"]

_EXAMPLE = '{"cluster": {"ps": ["host:port"], "worker": [...], "chief": [...]}, "task": {"type": "ps", "index": 0}}'


class TfConfigDiscovery(StaticDiscovery):
    """Processes of a TF_CONFIG. The chief is worker 0, and the workers follow it.

    >>> cluster = {"ps": ["a:1"], "chief": ["b:2"], "worker": ["c:3"]}
    >>> discovery = TfConfigDiscovery(json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    >>> discovery.connect()
    >>> [one.address for one in discovery.query("worker")], discovery.server_type, discovery.index, discovery.address
    (['b:2', 'c:3'], 'worker', 1, 'c:3')

    Args:
        tf_config: The JSON.

    Raises:
        ConfigError: The text is not a TF_CONFIG; the error names the field.
    """

    kind: ClassVar[str] = "tf_config"

    def __init__(self, tf_config: str) -> None:
        super().__init__()
        config = _parse(tf_config)
        self._cluster = {role: _addresses(role, listed) for role, listed in _section(config, "cluster").items()}
        task = _section(config, "task")
        self._task_type: str = _field(task, "type", str)
        self._task_index: int = _field(task, "index", int)
        if self._task_type in self._cluster and not 0 <= self._task_index < len(self._cluster[self._task_type]):
            raise ConfigError(
                f"TF_CONFIG task.index is {self._task_index}, but cluster.{self._task_type} "
                f"has {len(self._cluster[self._task_type])} addresses"
            )

    @property
    def server_type(self) -> str:
        """Role of this process; the chief is a worker."""
        return "worker" if self._task_type == "chief" else self._task_type

    @property
    def index(self) -> int:
        """Number among the processes of its type; workers come after the chief."""
        return self._task_index + (len(self._cluster.get("chief", ())) if self._task_type == "worker" else 0)

    @property
    def address(self) -> str:
        """Address that this process must listen on.

        Raises:
            ConfigError: The cluster does not list this process, for example an evaluator.
        """
        try:
            return self._cluster[self._task_type][self._task_index]
        except KeyError:
            raise ConfigError(
                f"TF_CONFIG task.type is {self._task_type!r}, which cluster does not list; it has no address"
            ) from None

    def register(self, service: ServiceInfo) -> None:
        """Do nothing: the launcher has listed all processes."""
        del service
        self._check_open()

    def deregister(self, service_id: str) -> None:
        """Do nothing."""
        del service_id
        self._check_open()

    def heartbeat(self, service_id: str) -> None:
        """Do nothing."""
        del service_id
        self._check_open()

    @override
    def query(self, service_type: str) -> list[ServiceInfo]:
        """Return the services of a type: ps, or worker."""
        self._check_open()
        roles = ("ps",) if checked_service_type(service_type) == "ps" else ("chief", "worker")
        addresses = [address for role in roles for address in self._cluster.get(role, ())]
        return [_service(service_type, index, address) for index, address in enumerate(addresses)]


def _service(service_type: str, index: int, address: str) -> ServiceInfo:
    host, port = split_address(address)
    return ServiceInfo(service_type=service_type, index=index, host=host, port=port)


def _parse(text: str) -> Mapping[str, Any]:
    if not text.strip():
        raise ConfigError(f"TF_CONFIG is required for Primus discovery, got {text!r}; it looks like {_EXAMPLE}")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"TF_CONFIG is invalid JSON ({error}); it looks like {_EXAMPLE}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"TF_CONFIG is a {type(config).__name__}; it looks like {_EXAMPLE}")
    return config


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    if not isinstance(value, dict):
        raise ConfigError(f"TF_CONFIG {name} is {value!r}; it looks like {_EXAMPLE}")
    return value


def _field(task: Mapping[str, Any], name: str, kind: type) -> Any:
    value = task.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"TF_CONFIG task.{name} is {value!r}; it looks like {_EXAMPLE}")
    return value


def _addresses(role: str, listed: object) -> tuple[str, ...]:
    if not isinstance(listed, list):
        raise ConfigError(f"TF_CONFIG cluster.{role} is {listed!r}; give a list of host:port")
    for address in listed:
        try:
            split_address(address)
        except ConfigError as error:
            raise ConfigError(f"TF_CONFIG cluster.{role}: {error}") from error
    return tuple(listed)
