"""Keep the replica nodes of a version 1 agent in ZooKeeper equal to the states of its servers.

Main types: ``OwnReplicas`` (the nodes), ``next_state`` (the rule from a status answer to a state).

Invariants: a node always carries the last known state; a new session makes all nodes again immediately, with these
states. A node of an older session is replaced. An id of -1 becomes a sequence number of ZooKeeper, once per agent.

Threading: one thread writes; states may be set from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monolith.agent.background import BackgroundLoop
from monolith.agent.config import AgentConfig
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import ModelVersionStatus
from monolith.agent.records import ModelState, ReplicaMeta, ServerType
from monolith.agent.server_monitor import best_status, served_types
from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_nodes import delete_own, put_ephemeral
from monolith.discovery.zookeeper_session import SessionState, ZooKeeperSession

__all__ = ["OwnReplica", "OwnReplicas", "next_state", "own_sub_models"]

logger = logging.getLogger(__name__)

_CHECK_S = 10.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class OwnReplica:
    """One sub-model that a server of this host serves."""

    sub_model: str
    server_type: ServerType
    task: int


def own_sub_models(config: AgentConfig) -> list[OwnReplica]:
    """Return the tracked sub-models in the order of registration: entry, ps by index, dense."""
    kinds = served_types(config)
    replicas = []
    if ServerType.ENTRY in kinds:
        replicas.append(OwnReplica("entry", ServerType.ENTRY, 0))
    if ServerType.PS in kinds:
        replicas += [OwnReplica(f"ps_{index}", ServerType.PS, index) for index in config.own_ps_indices()]
    if ServerType.DENSE in kinds:
        replicas.append(OwnReplica("dense_0", ServerType.DENSE, 0))
    return replicas


def next_state(statuses: Sequence[ModelVersionStatus] | None, state: ModelState) -> ModelState:
    """Return the state after a status answer.

    Args:
        statuses: Versions that the server reported; None if the call failed.
        state: The state before.
    """
    if statuses is None:
        return ModelState.UNKNOWN
    chosen = best_status(statuses)
    if chosen is None:
        return state
    if int(chosen.status.error_code):
        return ModelState.UNKNOWN
    return ModelState(int(chosen.state))


class OwnReplicas:
    """The nodes of one agent.

    Args:
        session: A session; the caller starts and stops it.
        config: A checked configuration of version 1, with ports.
        host: Own addresses.
        check_s: Pause between checks that the nodes exist.
    """

    def __init__(
        self, session: ZooKeeperSession, config: AgentConfig, host: OwnHost, *, check_s: float = _CHECK_S
    ) -> None:
        self._session = session
        self._config = config
        self._host = host
        self._replicas = own_sub_models(config)
        self._states = {each.sub_model: ModelState.UNKNOWN for each in self._replicas}
        self._replica_id = -1 if config.service.replica_id is None else config.service.replica_id
        self._sequence: tuple[str, str] | None = None
        self._is_withdrawn = False
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._writer = BackgroundLoop("agent-own-replicas", self._write, interval_s=check_s, retry_s=_RETRY_S)

    @property
    def replica_id(self) -> int:
        """The id of this agent's replicas; -1 until ZooKeeper gave one."""
        return self._replica_id

    @property
    def sub_models(self) -> list[OwnReplica]:
        """The tracked sub-models."""
        return list(self._replicas)

    def states(self) -> dict[str, ModelState]:
        """Return the state of each sub-model."""
        with self._lock:
            return dict(self._states)

    def start(self) -> None:
        """Register all sub-models with state UNKNOWN, now, and keep the nodes from then on."""
        self._session.add_listener(self._note_state)
        try:
            self._write()
        except ClusterError as error:
            logger.warning("replica nodes not written, retrying retry_s=%g error=%s", _RETRY_S, error)
        self._writer.start()

    def set_states(self, states: Mapping[str, ModelState]) -> None:
        """Change the states of sub-models; changed nodes are written immediately."""
        with self._lock:
            changed = {name: state for name, state in states.items() if self._states.get(name) is not state}
            if not changed:
                return
            self._states.update(changed)
        logger.info("replica states changed %s", " ".join(f"{name}={each.name}" for name, each in changed.items()))
        self._writer.wake()

    def withdraw(self) -> None:
        """Delete the nodes, for an orderly stop; later rounds make nothing again."""
        with self._lock:
            self._is_withdrawn = True
        self._write()

    def close(self) -> None:
        """End the thread; the nodes end with the session."""
        self._session.remove_listener(self._note_state)
        self._writer.stop()

    def path_of(self, replica: OwnReplica) -> str:
        """Return the node of a sub-model."""
        if self._sequence is not None and self._sequence[0] == replica.sub_model:
            return self._sequence[1]
        config = self._config
        return config.paths.replica(
            config.service.base_name or "",
            replica.server_type,
            replica.task,
            self._replica_id,
            config.location if config.service.dc_aware else None,
        )

    def _meta(self, replica: OwnReplica, state: ModelState) -> bytes:
        port, archon = self._config.port_of(replica.server_type), self._config.archon_port_of(replica.server_type)
        return ReplicaMeta(
            address=None if port is None else self._host.address(port),
            address_ipv6=None if port is None else self._host.address_ipv6(port),
            stat=state.value,
            archon_address=None if archon is None else self._host.address(archon),
            archon_address_ipv6=None if archon is None else self._host.address_ipv6(archon),
        ).to_bytes()

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._writer.wake()

    def _take_number(self) -> None:
        """Make the first node as a sequence node; its number becomes the replica id."""
        config, first = self._config, self._replicas[0]
        prefix = config.paths.sequence_prefix(
            config.service.base_name or "",
            first.server_type,
            first.task,
            config.location if config.service.dc_aware else None,
        )
        created = self._session.create(
            prefix, self._meta(first, self._states[first.sub_model]), ephemeral=True, sequence=True
        )
        self._sequence = (first.sub_model, created)
        self._replica_id = int(created.rpartition("/")[2])
        logger.info("replica id taken from ZooKeeper replica_id=%d path=%s", self._replica_id, created)

    def _write(self) -> None:
        with self._writing:
            if self._session.is_away or not self._replicas:
                return  # the listener wakes the writer after the connection is back
            with self._lock:
                is_withdrawn, states = self._is_withdrawn, dict(self._states)
            if self._replica_id < 0:
                if is_withdrawn:
                    return
                self._take_number()
            paths = [self.path_of(each) for each in self._replicas]
            if is_withdrawn:
                for path in paths:
                    delete_own(self._session, path)
                return
            wanted = [self._meta(each, states[each.sub_model]) for each in self._replicas]
            owner = self._session.session_id
            for path, content, reading in zip(paths, wanted, self._session.get_all(paths), strict=True):
                if reading is None or reading[0] != content or reading[1].ephemeralOwner != owner:
                    put_ephemeral(self._session, path, content)
