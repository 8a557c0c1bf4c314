"""Read the state of a whole fleet, of all versions, as rows of a table.

Main types: ``FleetRow``, ``read_fleet``. Versions, memory and ages come from the servers and agents themselves.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monolith.agent.address_client import AddressClient
from monolith.agent.node_paths import parse_binding, parse_container
from monolith.agent.portal import Portal
from monolith.agent.records import ContainerServiceInfo, ModelState, RecordInvalid, ResourceSpec, state_name
from monolith.agent.server_monitor import ServerClient, is_late
from monolith.core.errors import MonolithError
from monolith.discovery.zookeeper_session import ZooKeeperSession

__all__ = ["COLUMNS", "FleetRow", "read_fleet"]

COLUMNS = ("model", "sub_model", "shard", "replica", "state", "version", "address", "memory", "age_s")
"""Names of the columns of ``FleetRow``."""

_SHARD = re.compile(r"(?:ps|dense)_(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One replica of one sub-model."""

    model: str
    sub_model: str
    shard: int | None
    replica: str
    state: str
    version: int | None
    address: str | None
    memory: int | None
    """Free bytes of the host."""
    age_s: float | None
    """Seconds since the node of the replica, or of its container, was written last."""

    def to_json(self) -> Mapping[str, Any]:
        """Return the row as a JSON object."""
        return dataclasses.asdict(self)


def read_fleet(
    session: ZooKeeperSession, bzid: str, *, now_s: float, asks_servers: bool = True, timeout_s: float = 1.0
) -> list[FleetRow]:
    """Return a row per replica of each sub-model, sorted.

    Args:
        session: A started session.
        bzid: Namespace.
        now_s: Present unix time.
        asks_servers: Whether servers are asked for versions, and agents for memory.
        timeout_s: Deadline of each of these calls.
    """
    reader = _Reader(session, bzid, now_s, asks_servers, timeout_s)
    return sorted([*reader.bindings(), *reader.services()], key=lambda row: (row.model, row.sub_model, row.replica))


class _Reader:
    def __init__(self, session: ZooKeeperSession, bzid: str, now_s: float, asks: bool, timeout_s: float) -> None:
        self._session = session
        self._portal = Portal(session, bzid)
        self._paths = self._portal.paths
        self._now_s = now_s
        self._asks = asks
        self._timeout_s = timeout_s
        self._memory: dict[str, int | None] = {}
        self._silent: set[str] = set()

    def bindings(self) -> list[FleetRow]:
        """Return the rows of version 3."""
        infos: dict[str, tuple[ContainerServiceInfo, float]] = {}
        folder = self._paths.container_services
        for name in self._portal.children(folder):
            reading = self._session.get_all([f"{folder}/{name}"])[0]
            if reading is None or parse_container(name) is None:
                continue
            try:
                infos[name] = (ContainerServiceInfo.from_bytes(reading[0]), reading[1].mtime / 1000)
            except RecordInvalid:
                continue
        rows = []
        for model in self._portal.children(self._paths.bindings):
            for name in self._portal.children(self._paths.model_bindings(model)):
                parsed = parse_binding(name)
                if parsed is None:
                    continue
                sub_graph, container = parsed
                info, written_s = infos.get(str(container), (ContainerServiceInfo(), None))
                rows.append(
                    FleetRow(
                        model,
                        sub_graph,
                        _shard(sub_graph),
                        container.ctx_id,
                        ModelState.AVAILABLE.name,
                        self._version(info.grpc, f"{model}:{sub_graph}"),
                        info.grpc,
                        self._free(info.agent),
                        None if written_s is None else max(0.0, self._now_s - written_s),
                    )
                )
        return rows

    def services(self) -> list[FleetRow]:
        """Return the rows of versions 1 and 2."""
        memory: dict[str, int] = {}
        for name in self._portal.children(self._paths.resource):
            reading = self._session.get_all([f"{self._paths.resource}/{name}"])[0]
            try:
                spec = None if reading is None else ResourceSpec.from_bytes(reading[0])
            except RecordInvalid:
                continue
            if spec is not None and spec.address and spec.memory is not None:
                memory[spec.address.rpartition(":")[0]] = spec.memory
        rows = []
        for model in self._portal.children(self._paths.services):
            for path, meta in self._portal.replicas(model).items():
                task, _, replica = path.rpartition("/")
                sub_model = task.rpartition("/")[2].replace(":", "_").replace("entry_0", "entry")
                address = meta.get_address()
                served = sub_model if meta.model_name is None else f"{model}:{sub_model}"
                stat = self._session.exists(path)
                rows.append(
                    FleetRow(
                        model,
                        sub_model,
                        _shard(sub_model),
                        str(int(replica)),
                        state_name(meta.stat),
                        self._version(address, served),
                        address,
                        memory.get((address or "").rpartition(":")[0]),
                        None if stat is None else max(0.0, self._now_s - stat.mtime / 1000),
                    )
                )
        return rows

    def _version(self, address: str | None, name: str) -> int | None:
        if not self._asks or not address or address in self._silent:
            return None
        client = ServerClient(address, timeout_s=self._timeout_s)
        try:
            status = client.probe_status(name)
        finally:
            client.close()
        if is_late(status):
            self._silent.add(address)  # it does not answer for its other sub-models either
        return status.version if int(status.state) == ModelState.AVAILABLE else None

    def _free(self, address: str | None) -> int | None:
        if not self._asks or not address:
            return None
        if address not in self._memory:
            self._memory[address] = _ask_memory(address, self._timeout_s)
        return self._memory[address]


def _ask_memory(address: str, timeout_s: float) -> int | None:
    try:
        with AddressClient(address, timeout_s=timeout_s) as client:
            return int(client.get_resource().memory)
    except MonolithError:
        return None


def _shard(sub_model: str) -> int | None:
    match = _SHARD.fullmatch(sub_model)
    return None if match is None else int(match[1])
