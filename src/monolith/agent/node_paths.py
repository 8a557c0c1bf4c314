"""Build and parse the ZooKeeper paths of a fleet.

Main types: ``NodePaths`` (builders below one bzid) and ``ServicePath`` (parser of replica paths). Paths and node
names are those of the original, so its agents and ours share one tree.

Invariants: names are whole path elements; a name with ``/`` or ``:`` is refused where it would break a path.
``parse_task`` takes only the types ps, entry and dense, so a location with a numeric cluster is not read as a task.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from monolith.agent.records import Container, SavedModel
from monolith.core.errors import ConfigError

__all__ = [
    "NodePaths",
    "ServicePath",
    "checked_model_name",
    "checked_name",
    "parse_binding",
    "parse_container",
    "parse_saved_model",
    "parse_task",
]

_NAME = r"[-_0-9A-Za-z]+"
_SERVICE = re.compile(
    rf"/(?P<bzid>{_NAME})/service/(?P<base_name>{_NAME})(/(?P<idc>{_NAME}):(?P<cluster>{_NAME}))?"
    r"/(?P<server_type>\w+):(?P<index>\d+)(/(?P<replica_id>\d+))?",
    re.ASCII,
)
_TASK = re.compile(r"(ps|entry|dense):(\d{1,18})", re.ASCII)


def checked_name(field: str, name: str) -> str:
    """Return a name of letters, digits, ``-`` and ``_``, or raise ``ConfigError``."""
    if not re.fullmatch(_NAME, name):
        raise ConfigError(f"{field} is {name!r}, expected letters, digits, - and _ only; rename it")
    return name


def _is_model_name(name: str) -> bool:
    return name not in ("", ".", "..") and not any(letter in "/:" or not letter.isprintable() for letter in name)


def checked_model_name(field: str, name: str) -> str:
    """Return a name that can be one element of a node name, or raise ``ConfigError``."""
    if not _is_model_name(name):
        raise ConfigError(f"{field} is {name!r}, expected a name without '/' and ':'; rename it")
    return name


@dataclass(frozen=True, slots=True)
class ServicePath:
    """The parts of a path below ``/<bzid>/service``; each is text, or None if the path has no such part."""

    bzid: str | None = None
    base_name: str | None = None
    idc: str | None = None
    cluster: str | None = None
    server_type: str | None = None
    index: str | None = None
    replica_id: str | None = None

    @classmethod
    def parse(cls, path: str | None) -> ServicePath:
        """Return the parts of a path of a task or a replica; only None for any other path.

        >>> ServicePath.parse("/b/service/m/lf:default/ps:3/2").location
        'lf:default'
        """
        match = _SERVICE.fullmatch(path or "")
        return cls(**match.groupdict()) if match else cls()

    @property
    def task(self) -> str | None:
        """``<server_type>:<index>``."""
        return None if self.server_type is None or self.index is None else f"{self.server_type}:{self.index}"

    @property
    def location(self) -> str | None:
        """``<idc>:<cluster>``."""
        return None if self.idc is None or self.cluster is None else f"{self.idc}:{self.cluster}"

    def ship_in(self, idc: str | None, cluster: str | None) -> bool:
        """Return True if the path belongs to this location, or if the location is not complete."""
        return idc is None or cluster is None or (self.idc == idc and self.cluster == cluster)


class NodePaths:
    """Builders of all paths below one bzid."""

    __slots__ = ("_root",)

    def __init__(self, bzid: str) -> None:
        self._root = f"/{checked_name('bzid', bzid)}"

    # --- versions 1 and 2 ---

    @property
    def services(self) -> str:
        """Folder of models that are served."""
        return f"{self._root}/service"

    def service(self, base_name: str, location: str | None = None) -> str:
        """Folder of the tasks of a model, of one location where agents are aware of it."""
        path = f"{self.services}/{base_name}"
        return path if location is None else f"{path}/{location}"

    def task(self, base_name: str, server_type: str, index: int, location: str | None = None) -> str:
        """Folder of the replicas of a task."""
        return f"{self.service(base_name, location)}/{server_type}:{index}"

    def replica(
        self, base_name: str, server_type: str, index: int, replica_id: int, location: str | None = None
    ) -> str:
        """Node of a replica; the id of an entry has 11 digits."""
        name = f"{replica_id:011d}" if server_type == "entry" else str(replica_id)
        return f"{self.task(base_name, server_type, index, location)}/{name}"

    def sequence_prefix(self, base_name: str, server_type: str, index: int, location: str | None = None) -> str:
        """Path from which ZooKeeper makes the node of a replica that takes a sequence number as its id."""
        return f"{self.task(base_name, server_type, index, location)}/0"

    @property
    def portal(self) -> str:
        """Folder of the models that clients want."""
        return f"{self._root}/portal"

    @property
    def publish(self) -> str:
        """Folder of the publishes."""
        return f"{self._root}/publish"

    @property
    def resource(self) -> str:
        """Folder of the free resources of hosts."""
        return f"{self._root}/resource"

    @property
    def election(self) -> str:
        """Folder of the candidates."""
        return f"{self._root}/election"

    @property
    def locks(self) -> str:
        """Folder that is reserved for locks."""
        return f"{self._root}/locks"

    # --- version 3 ---

    @property
    def saved_models(self) -> str:
        """Folder of the declared models."""
        return f"{self._root}/saved_models"

    def saved_model(self, saved_model: SavedModel) -> str:
        """Node of a declared sub-graph."""
        return f"{self.saved_models}/{saved_model.model_name}/{saved_model.sub_graph}"

    @property
    def layouts(self) -> str:
        """Folder of the layouts."""
        return f"{self._root}/layouts"

    def layout(self, pattern: str) -> str:
        """Folder of a layout; an absolute pattern is its own path."""
        return pattern if pattern.startswith("/") else f"{self.layouts}/{pattern}"

    @property
    def bindings(self) -> str:
        """Folder of the bindings of all models."""
        return f"{self._root}/binding"

    def model_bindings(self, model_name: str) -> str:
        """Folder of the bindings of a model."""
        return f"{self.bindings}/{model_name}"

    def binding(self, saved_model: SavedModel, container: Container) -> str:
        """Node of a sub-graph that a container serves."""
        return f"{self.model_bindings(saved_model.model_name)}/{saved_model.sub_graph}:{container}"

    @property
    def container_services(self) -> str:
        """Folder of the containers."""
        return f"{self._root}/container_service"

    def container_service(self, container: Container) -> str:
        """Node of a container."""
        return f"{self.container_services}/{container}"


def parse_task(name: str) -> tuple[str, int] | None:
    """Return type and index of a task node, or None if the name is not one.

    >>> parse_task("ps:3"), parse_task("lf:1")
    (('ps', 3), None)
    """
    match = _TASK.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def parse_saved_model(name: str) -> SavedModel | None:
    """Return the sub-graph of a layout node ``<model>:<sub_graph>``, or None; further colons cut the rest off."""
    model, _, rest = name.partition(":")
    sub_graph = rest.partition(":")[0]
    return SavedModel(model, sub_graph) if _is_model_name(model) and _is_model_name(sub_graph) else None


def parse_binding(name: str) -> tuple[str, Container] | None:
    """Return sub-graph and container of a binding node; the id of a container may have colons.

    >>> parse_binding("ps_0:p;lf;default:fd00::7")
    ('ps_0', Container(ctx_cluster='p;lf;default', ctx_id='fd00::7'))
    """
    parts = name.split(":", 2)
    if len(parts) != 3 or not all(parts):
        return None
    return parts[0], Container(parts[1], parts[2])


def parse_container(name: str) -> Container | None:
    """Return the container of a node ``<cluster>:<id>``."""
    cluster, _, number = name.partition(":")
    return Container(cluster, number) if cluster and number else None
