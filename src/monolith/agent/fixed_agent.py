"""Run a version 1 agent: servers of one model whose sub-models the configuration fixes.

Main type: ``FixedAgent``.

Invariants: servers start in the order ps, dense, entry. The entry starts after every PS task, and the dense task where
it runs alone, has an AVAILABLE replica. A stop withdraws the nodes first, then ends entry, dense and ps.

Threading: a thread starts the servers, so that a stop does not wait for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from monolith.agent.address_service import AddressService
from monolith.agent.addresses_file import AddressesFile
from monolith.agent.config import AgentConfig
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import ModelServerConfig, ModelVersionStatus
from monolith.agent.metrics import AgentMetrics
from monolith.agent.model_configs import fixed_model_configs
from monolith.agent.model_copies import ModelCopies
from monolith.agent.own_replicas import OwnReplica
from monolith.agent.records import ServerType
from monolith.agent.replicas import FixedAddressBook, Replicas
from monolith.agent.server_monitor import ServerClient, served_types
from monolith.agent.server_process import ServerProcess
from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import MonolithError
from monolith.discovery.address import join_address
from monolith.discovery.zookeeper_session import SessionState, ZooKeeperSession

__all__ = ["FixedAgent", "MakeTypedServer", "start_order", "stop_order"]

logger = logging.getLogger(__name__)

NOTICE_S = 1.0
"""Seconds between the end of the nodes and the end of the servers."""
_READY_LOOK_S = 0.2


class MakeTypedServer(Protocol):
    """Makes a server of a type."""

    def __call__(
        self,
        server_type: str,
        on_end: Callable[[], None],
        on_final: Callable[[str], None],
        models: ModelServerConfig | None = None,
    ) -> ServerProcess:
        """Return a server that is not started."""


def start_order(config: AgentConfig) -> list[ServerType]:
    """Return the types of the servers in start order: ps, dense, entry."""
    return served_types(config)


def stop_order(config: AgentConfig) -> list[ServerType]:
    """Return the types of the servers in stop order: entry, dense, ps."""
    return list(reversed(served_types(config)))


class FixedAgent:
    """The agent of one container.

    Args:
        config: A checked configuration of version 1, with ports.
        session: A started session; the caller stops it.
        host: Own addresses.
        make_server: Makes a server of a type.
        addresses_file: File for the entry.
        is_foreign: Whether the servers are ``tensorflow_model_server``.
        metrics: Receives counters and gauges.
        clock: Measures waits.
    """

    def __init__(
        self,
        config: AgentConfig,
        session: ZooKeeperSession,
        host: OwnHost,
        make_server: MakeTypedServer,
        *,
        addresses_file: Path,
        is_foreign: bool = False,
        metrics: AgentMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._session = session
        self._clock = clock or SystemClock()
        self._metrics = metrics or AgentMetrics()
        self._stopping = threading.Event()
        self._failure: str | None = None
        self._copies = ModelCopies(
            config.rough_sort.rough_sort_model_name,
            config.rough_sort.rough_sort_model_p2p_path,
            config.rough_sort.rough_sort_model_local_path,
        )
        self._clients = {
            kind: ServerClient(host.reachable_address(config.port_of(kind) or 0)) for kind in served_types(config)
        }
        self.replicas = Replicas(session, config, host, self._ask, on_change=self._note_map)
        """Own nodes and the map of all replicas."""
        self._addresses = AddressesFile(addresses_file, self.replicas.part_addresses)
        self._service = AddressService(
            FixedAddressBook(self.replicas), join_address(host.listen_address, config.ports.agent_port or 0)
        )
        self._servers = {
            kind: make_server(
                kind,
                lambda kind=kind: self.replicas.note_server_end(kind),  # type: ignore[misc]
                self._note_final,
                fixed_model_configs(config, kind, is_foreign=is_foreign),
            )
            for kind in served_types(config)
        }
        self._starter = threading.Thread(target=self._start_servers, name="agent-start", daemon=True)

    @property
    def failure(self) -> str | None:
        """Reason why the agent must end; None while it may run."""
        return self._failure

    @property
    def port(self) -> int:
        """Port of the agent's service."""
        return self._service.port

    def start(self) -> None:
        """Register the nodes, answer calls, and start the servers in the background."""
        self._session.add_listener(self._note_state)
        self._addresses.start()
        self.replicas.start()
        self._service.start()
        self._starter.start()
        self._metrics.watch(self._sample)
        logger.info(
            "agent started version=1 deploy_type=%s replica_id=%d",
            self._config.service.deploy_type,
            self.replicas.own.replica_id,
        )

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Withdraw the nodes, wait until entries noticed, then stop entry, dense and ps."""
        self._stopping.set()
        self._session.remove_listener(self._note_state)
        self._copies.stop()
        try:
            self.replicas.withdraw()
            if not is_urgent():
                threading.Event().wait(NOTICE_S)
        except MonolithError as error:
            logger.warning("nodes not withdrawn, they end with the session error=%s", error)
        if self._starter.is_alive():
            self._starter.join(30.0)
        for kind in stop_order(self._config):
            self._servers[kind].stop(is_urgent=is_urgent)
        self._service.stop()
        self._addresses.stop()
        self.replicas.close()
        for client in self._clients.values():
            client.close()

    # --- servers ---

    def _start_servers(self) -> None:
        try:
            self._copies.start()
            deadline = Deadline(self._clock, self._config.supervision.max_waiting_sec)
            for kind in start_order(self._config):
                if kind is ServerType.ENTRY and not self._wait_for_parts(deadline):
                    return
                if self._stopping.is_set():
                    return
                server = self._servers[kind]
                server.start()
                if not self._wait_for(server.is_answering, _READY_LOOK_S, deadline, f"server {kind} does not answer"):
                    return
        except (MonolithError, OSError) as error:
            self._failure = str(error)

    def _wait_for_parts(self, deadline: Deadline) -> bool:
        pause_s = 2.0 * self._config.supervision.update_model_status_interval
        if self._stopping.wait(pause_s):
            return False
        if not self._wait_for(self.replicas.is_ps_set_started, pause_s, deadline, "found PS timeout"):
            return False
        return not self._config.dense.dense_alone or self._wait_for(
            self.replicas.is_dense_set_started, pause_s, deadline, "found Dense timeout"
        )

    def _wait_for(self, is_true: Callable[[], bool], pause_s: float, deadline: Deadline, reason: str) -> bool:
        """Return True when the condition holds, False at a stop; a passed deadline is the failure of the agent."""
        while not is_true():
            if deadline.is_past:
                self._failure = (
                    f"{reason} within max_waiting_sec {self._config.supervision.max_waiting_sec}; see the servers' logs"
                )
                return False
            if self._stopping.wait(pause_s):
                return False
        return True

    def _ask(self, replica: OwnReplica) -> Sequence[ModelVersionStatus]:
        return self._clients[replica.server_type].model_status(replica.sub_model)

    def _note_map(self) -> None:
        self._addresses.wake()

    def _note_final(self, reason: str) -> None:
        self._failure = reason

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._metrics.count_lost_session()

    def _sample(self) -> Mapping[str, object]:
        counts: dict[str, int] = {}
        for server in self._servers.values():
            for key, value in server.counts.items():
                counts[key] = counts.get(key, 0) + value
        return {
            "own": [state.name for state in self.replicas.own.states().values()],
            "known": {key: len(addresses) for key, addresses in self.replicas.part_addresses().items()},
            "map_age_s": self._addresses.age_s,
            "heartbeat_age_s": self._service.seconds_since_heartbeat,
            **counts,
        }
