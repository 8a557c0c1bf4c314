"""Answer the questions of entry servers and clients to an agent: replicas, addresses, resources.

Main types: ``AddressService``, the gRPC server, and ``AddressBook``, which each version of the agent implements.

Invariants: only AVAILABLE replicas are handed out. A replica id that does not fit 32 bits becomes -1.

Threading: calls run in 10 threads of the server; an ``AddressBook`` must be thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from typing_extensions import override

from monolith._proto.messages import parse_bytes
from monolith.agent.address_messages import (
    METHODS,
    SERVICE,
    GetReplicasRequest,
    GetReplicasResponse,
    GetResourceRequest,
    GetResourceResponse,
    HeartBeatRequest,
    HeartBeatResponse,
)
from monolith.agent.records import ContainerServiceInfo, ResourceSpec, ServerType
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError, MonolithError
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.rpc.status import Code

__all__ = ["AddressBook", "AddressService", "LayoutAddressBook", "ServiceMapSource"]

logger = logging.getLogger(__name__)

_THREADS = 10
_MAX_MESSAGE_BYTES = 64 << 20
_INT32 = 1 << 31
_TYPES = (ServerType.PS, ServerType.ENTRY, ServerType.DENSE)


def _server_type(number: int) -> ServerType:
    """Return the type of a request; a client of another release may send a number without a type."""
    if not 0 <= number < len(_TYPES):
        raise ConfigError(f"server_type is {number}, expected 0 (ps), 1 (entry) or 2 (dense); correct the client")
    return _TYPES[number]


class AddressBook(Protocol):
    """The replicas that an agent knows. Thread-safe."""

    def heartbeat(self, server_type: ServerType) -> Mapping[str, Sequence[str]]:
        """Return the addresses of all tasks of a type, by key."""

    def replicas(self, server_type: ServerType, task: int, model_name: str) -> Sequence[str] | None:
        """Return the addresses of one task; None if the request must name a model."""

    def resource(self) -> ResourceSpec | None:
        """Return the free resources of the own host; None if this version does not report them."""


class ServiceMapSource(Protocol):
    """Holder of a version 3 service map."""

    def get_service_map(self) -> Mapping[str, Mapping[str, Sequence[ContainerServiceInfo]]]:
        """Return model to sub-graph to the containers that serve it."""


class LayoutAddressBook(AddressBook):
    """Addresses of a version 3 agent: the whole service map, by ``<model>:<sub_graph>``.

    Args:
        source: Holder of the service map.
        use_archon: Whether archon addresses are handed out, for foreign servers without a gRPC remote operator.
        resource: Returns the resources of the own host.
    """

    def __init__(self, source: ServiceMapSource, *, use_archon: bool = False, resource: Any = lambda: None) -> None:
        self._source = source
        self._use_archon = use_archon
        self._resource = resource

    def addresses(self) -> dict[str, list[str]]:
        """Return sorted, unique addresses by ``<model>:<sub_graph>``."""
        return {
            f"{model}:{sub_graph}": sorted({address for info in infos if (address := self._address(info))})
            for model, sub_graphs in self._source.get_service_map().items()
            for sub_graph, infos in sub_graphs.items()
        }

    @override
    def heartbeat(self, server_type: ServerType) -> Mapping[str, Sequence[str]]:
        return self.addresses()

    @override
    def replicas(self, server_type: ServerType, task: int, model_name: str) -> Sequence[str] | None:
        if not model_name:
            return None
        sub_graph = "entry" if server_type is ServerType.ENTRY else f"{server_type}_{task}"
        infos = self._source.get_service_map().get(model_name, {}).get(sub_graph, ())
        return sorted({address for info in infos if (address := self._address(info))})

    @override
    def resource(self) -> ResourceSpec | None:
        result: ResourceSpec | None = self._resource()
        return result

    def _address(self, info: ContainerServiceInfo) -> str | None:
        return info.archon if self._use_archon else info.grpc


class AddressService:
    """The gRPC service of an agent.

    Args:
        book: Answers of this agent's version.
        address: ``host:port`` to listen on; port 0 takes a free one.
        clock: Measures the age of the last heartbeat.
    """

    def __init__(self, book: AddressBook, address: str, *, clock: Clock | None = None) -> None:
        self._book = book
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._asked_s: float | None = None
        self._has_logged_id = False
        self._workers = ThreadPoolExecutor(_THREADS, thread_name_prefix="agent-service")
        handlers: dict[str, grpc.Handler] = {"GetResource": self._get_resource, "HeartBeat": self._heartbeat}
        services = {
            SERVICE: {
                **grpc.method_handlers(METHODS, handlers),
                # This one ends a call with a status that no error of ours has.
                **grpc.bytes_handlers({"GetReplicas": self._get_replicas}),
            }
        }
        self._server = grpc.make_server(self._workers, services, Security(), _MAX_MESSAGE_BYTES)
        self.port = grpc.bind(self._server, address, Security())
        """Port that the service listens on."""

    def start(self) -> None:
        """Answer calls."""
        self._server.start()

    def stop(self) -> None:
        """Refuse calls; calls under way get 1 s."""
        self._server.stop(1.0).wait()
        self._workers.shutdown()

    @property
    def seconds_since_heartbeat(self) -> float | None:
        """Age of the last heartbeat of an entry server; None before the first."""
        with self._lock:
            return None if self._asked_s is None else self._clock.monotonic_s() - self._asked_s

    def _heartbeat(self, request: HeartBeatRequest, _: Any) -> HeartBeatResponse:
        with self._lock:
            self._asked_s = self._clock.monotonic_s()
        kind = _server_type(request.server_type)
        response = HeartBeatResponse()
        for key, addresses in self._book.heartbeat(kind).items():
            response.addresses[key].address.extend(addresses)
        logger.debug("heartbeat answered server_type=%s keys=%d", kind, len(response.addresses))
        return response

    def _get_replicas(self, payload: bytes, context: Any) -> bytes:
        try:
            request = parse_bytes(GetReplicasRequest, payload, "GetReplicasRequest")
            kind = _server_type(request.server_type)
        except MonolithError as error:
            grpc.abort(context, Code.INVALID_ARGUMENT, str(error))
        addresses = self._book.replicas(kind, request.task, request.model_name)
        if addresses is None:
            grpc.abort(
                context, Code.UNIMPLEMENTED, "not implement for agent v3 without a model; give GetReplicas a model_name"
            )
        response = GetReplicasResponse()
        response.address_list.SetInParent()
        response.address_list.address.extend(addresses)
        return bytes(response.SerializeToString())

    def _get_resource(self, _: GetResourceRequest, __: Any) -> GetResourceResponse:
        spec = self._book.resource()
        if spec is None:
            return GetResourceResponse()
        replica_id = -1 if spec.replica_id is None else spec.replica_id
        if not -_INT32 <= replica_id < _INT32:
            if not self._has_logged_id:
                self._has_logged_id = True
                logger.warning("replica id does not fit GetResource, answering -1 replica_id=%d", replica_id)
            replica_id = -1
        return GetResourceResponse(
            address=spec.address or "",
            shard_id=-1 if spec.shard_id is None else spec.shard_id,
            replica_id=replica_id,
            memory=spec.memory or 0,
            cpu=-1.0 if spec.cpu is None else spec.cpu,
            network=-1.0 if spec.network is None else spec.network,
            work_load=-1.0 if spec.work_load is None else spec.work_load,
        )
