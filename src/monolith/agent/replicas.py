"""Manage the replicas of a version 1 agent: own nodes, states of own servers, the map of all replicas.

Main types: ``Replicas``; ``FixedAddressBook``, the answers of its AddressService.

Invariants: a server that ends sets its replicas to UNKNOWN immediately. A server that lets two status calls in a row
run into their deadline does so too: the second call follows the first immediately, and the other sub-models of that
server wait for the next round. One sub-model's failure does not delay another one's state.

Threading: one thread asks servers each second; the map and the nodes have their own threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from monolith.agent.address_service import AddressBook
from monolith.agent.background import BackgroundLoop
from monolith.agent.config import AgentConfig
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import ModelVersionStatus
from monolith.agent.own_replicas import OwnReplica, OwnReplicas, next_state
from monolith.agent.records import AddressFamily, ModelState, ResourceSpec, ServerType
from monolith.agent.replica_map import ReplicaMap
from monolith.core.errors import ClusterError, RpcTimeout
from monolith.discovery.zookeeper_session import ZooKeeperSession

__all__ = ["AskStatus", "FixedAddressBook", "Replicas"]

AskStatus = Callable[[OwnReplica], Sequence[ModelVersionStatus]]
"""Returns the versions of a sub-model on its server; raises ``ClusterError`` if it does not answer."""

_STATUS_S = 1.0
_REREAD_S = 60.0


class Replicas:
    """Own replicas and the map of all replicas of the model.

    Args:
        session: A session; the caller starts and stops it.
        config: A checked configuration of version 1, with ports.
        host: Own addresses.
        ask: Asks the servers of this agent.
        on_change: Called after the map changed; it must return soon.
        status_s: Pause between two rounds of status calls.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        config: AgentConfig,
        host: OwnHost,
        ask: AskStatus,
        *,
        on_change: Callable[[], None] = lambda: None,
        status_s: float = _STATUS_S,
    ) -> None:
        self._config = config
        self._ask = ask
        self.own = OwnReplicas(session, config, host)
        """Nodes of this agent."""
        self.map = ReplicaMap(
            session,
            config.paths,
            config.service.base_name or "",
            dc_aware=config.service.dc_aware,
            address_family=AddressFamily.IPV6 if host.is_ipv6_only else AddressFamily.IPV4,
            on_change=on_change,
        )
        """Replicas of the model, wherever they run."""
        self._status = BackgroundLoop("agent-status", self.update_states, interval_s=status_s)
        self._reread = BackgroundLoop("agent-reread", self.map.reread, interval_s=_REREAD_S)

    @property
    def own_location(self) -> tuple[str | None, str | None]:
        """Idc and cluster if the agent is aware of locations, else None and None."""
        environment = self._config.environment
        return (
            (environment.location.idc, environment.location.cluster) if self._config.service.dc_aware else (None, None)
        )

    def start(self) -> None:
        """Register, watch, and ask the servers."""
        self.own.start()
        self.map.start()
        self._status.start(immediately=False)
        self._reread.start(immediately=False)

    def update_states(self) -> None:
        """Ask the servers once and write the states that changed."""
        before = self.own.states()
        states: dict[str, ModelState] = {}
        late: set[ServerType] = set()
        for replica in self.own.sub_models:
            name, server_type = replica.sub_model, replica.server_type
            if server_type in late:
                continue
            try:
                states[name] = next_state(self._ask_again_if_late(replica), before[name])
            except RpcTimeout:
                late.add(server_type)
                self.note_server_end(server_type)
            except ClusterError:
                states[name] = next_state(None, before[name])
        kinds = {each.sub_model: each.server_type for each in self.own.sub_models}
        self.own.set_states({name: state for name, state in states.items() if kinds[name] not in late})

    def note_server_end(self, server_type: str) -> None:
        """Set the replicas of a server that ended, or that does not answer, to UNKNOWN immediately."""
        self.own.set_states(
            {each.sub_model: ModelState.UNKNOWN for each in self.own.sub_models if each.server_type == server_type}
        )

    def _ask_again_if_late(self, replica: OwnReplica) -> Sequence[ModelVersionStatus]:
        try:
            return self._ask(replica)
        except RpcTimeout:
            return self._ask(replica)

    def is_ps_set_started(self) -> bool:
        """Return True if every PS task has an AVAILABLE replica in the own location."""
        return self.map.has_all(ServerType.PS, self._config.service.num_ps, *self.own_location)

    def is_dense_set_started(self) -> bool:
        """Return True if the dense task has an AVAILABLE replica in the own location."""
        return self.map.has_all(ServerType.DENSE, 1, *self.own_location)

    def part_addresses(self) -> dict[str, list[str]]:
        """Return the addresses of ps and dense sub-models in the own location, for the entry."""
        result: dict[str, list[str]] = {}
        for kind in (ServerType.PS, ServerType.DENSE):
            for key, addresses in self.map.get_all_replicas(kind, *self.own_location).items():
                name = key.rpartition("/")[2].replace(":", "_")
                result[name] = sorted({*result.get(name, ()), *addresses})
        return result

    def withdraw(self) -> None:
        """Stop asking servers and delete the own nodes."""
        self._status.stop()
        self.own.withdraw()

    def close(self) -> None:
        """End all threads; the nodes end with the session."""
        self._status.stop()
        self._reread.stop()
        self.own.close()
        self.map.close()


class FixedAddressBook(AddressBook):
    """Addresses of a version 1 agent: the tasks of the own location, by ``<type>:<task>``."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    @override
    def heartbeat(self, server_type: ServerType) -> Mapping[str, Sequence[str]]:
        found = self._replicas.map.get_all_replicas(server_type, *self._replicas.own_location)
        return {key.rpartition("/")[2]: addresses for key, addresses in found.items()}

    @override
    def replicas(self, server_type: ServerType, task: int, model_name: str) -> Sequence[str] | None:
        return self._replicas.map.get_replicas(server_type, task, *self._replicas.own_location)

    @override
    def resource(self) -> ResourceSpec | None:
        return None
