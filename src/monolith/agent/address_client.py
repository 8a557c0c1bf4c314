"""Ask an agent for replicas, addresses and resources.

Main types: ``AddressClient``, one call each, and ``HeartbeatMap``, which keeps the addresses of all tasks as the entry
server of the original does.

Invariants of ``HeartbeatMap``: a failed heartbeat keeps the last addresses of its type. A key names its model on the
servers: ``ps:0`` is the model ``ps_0``, ``m:ps_0`` is the model of that name.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from monolith.agent.address_messages import (
    METHODS,
    SERVICE,
    GetReplicasRequest,
    GetReplicasResponse,
    GetResourceRequest,
    GetResourceResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    server_type_number,
)
from monolith.agent.background import BackgroundLoop
from monolith.agent.records import ServerType
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError
from monolith.rpc import grpc
from monolith.rpc.security import Security

__all__ = ["HEARTBEAT_S", "AddressClient", "HeartbeatMap", "served_name"]

logger = logging.getLogger(__name__)

HEARTBEAT_S = 15.0
"""Seconds between two heartbeats of an entry server."""

_TIMEOUT_S = 5.0
_MAX_MESSAGE_BYTES = 64 << 20
_TASK_KEY = re.compile(r"(ps|entry|dense):(\d+)", re.ASCII)


class AddressClient:
    """A client of one agent; also a context manager.

    Args:
        address: ``host:port`` of the agent.
        timeout_s: Deadline of one call.
    """

    def __init__(self, address: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._channel = grpc.open_channel(address, Security(), _MAX_MESSAGE_BYTES)
        self._calls = {
            verb: self._channel.unary_unary(
                f"/{SERVICE}/{verb}",
                request_serializer=kinds[0].SerializeToString,
                response_deserializer=kinds[1].FromString,
            )
            for verb, kinds in METHODS.items()
        }

    def heart_beat(self, server_type: str) -> HeartBeatResponse:
        """Return the addresses of all tasks of a type."""
        result: HeartBeatResponse = self._call(
            "HeartBeat", HeartBeatRequest(server_type=server_type_number(server_type))
        )
        return result

    def get_replicas(self, server_type: str, task: int, model_name: str = "") -> GetReplicasResponse:
        """Return the addresses of one task."""
        request = GetReplicasRequest(server_type=server_type_number(server_type), task=task, model_name=model_name)
        result: GetReplicasResponse = self._call("GetReplicas", request)
        return result

    def get_resource(self) -> GetResourceResponse:
        """Return the free resources of the agent's host."""
        result: GetResourceResponse = self._call("GetResource", GetResourceRequest())
        return result

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, verb: str, request: Any) -> Any:
        try:
            return self._calls[verb](request, timeout=self._timeout_s)
        except grpc.CallError as error:
            raise grpc.translate_error(error, verb, self._address) from error


def served_name(key: str) -> str:
    """Return the name by which servers know the sub-model of a key.

    >>> served_name("ps:0"), served_name("m:ps_0")
    ('ps_0', 'm:ps_0')
    """
    match = _TASK_KEY.fullmatch(key)
    return f"{match[1]}_{match[2]}" if match else key


class HeartbeatMap:
    """The addresses of all ps and dense tasks, asked each interval.

    Args:
        ask: Returns the addresses of a type; ``AddressClient.heart_beat`` fits.
        interval_s: Seconds between two heartbeats.
        on_change: Called with the map after it changed.
        clock: Measures the age of the map.
    """

    def __init__(
        self,
        ask: Callable[[str], HeartBeatResponse],
        *,
        interval_s: float = HEARTBEAT_S,
        on_change: Callable[[Mapping[str, tuple[str, ...]]], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._ask = ask
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._by_type: dict[str, dict[str, tuple[str, ...]]] = {}
        self._updated_s: float | None = None
        self._loop = BackgroundLoop("agent-heartbeat", self.update, interval_s=max(interval_s, 0.01))

    def start(self) -> None:
        """Ask now and then each interval."""
        self.update()
        self._loop.start(immediately=False)

    def update(self) -> None:
        """Ask once; a type whose call fails keeps its last addresses."""
        before = self.addresses()
        for server_type in (ServerType.PS, ServerType.DENSE):
            try:
                answer = self._ask(server_type)
            except ClusterError as error:
                logger.warning("heartbeat failed, keeping addresses server_type=%s error=%s", server_type, error)
                continue
            with self._lock:
                self._updated_s = self._clock.monotonic_s()
                self._by_type[server_type] = {
                    key: tuple(addresses.address) for key, addresses in answer.addresses.items()
                }
        after = self.addresses()
        if after != before:
            self._on_change(after)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Return addresses by key; the ps answer wins for a key that both types have."""
        with self._lock:
            return {**self._by_type.get(ServerType.DENSE, {}), **self._by_type.get(ServerType.PS, {})}

    @property
    def age_s(self) -> float | None:
        """Seconds since the last answer; None before the first."""
        with self._lock:
            return None if self._updated_s is None else self._clock.monotonic_s() - self._updated_s

    def stop(self) -> None:
        """End the heartbeats."""
        self._loop.stop()
