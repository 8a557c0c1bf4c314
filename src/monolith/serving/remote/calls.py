"""Parallel calls to sub-models on other servers, with failover and hedging.

Each ``RemoteCall`` goes to one replica. If the replica fails, or is silent for half of the time, the next replica is
called as well; with hedging after a shorter time. The first response wins. A failed replica is called last during its
cool-down. Silence until the deadline of a request that left little time does not count. ``RemoteCalls`` is thread safe.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ConfigError, ModelNotReady, RpcTimeout, ShardUnavailable
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.rpc.status import Code
from monolith.serving.api import messages
from monolith.serving.remote.addresses import Addresses, Place
from monolith.serving.requests.request_deadline import request_deadline_s

__all__ = ["Outcome", "RemoteCall", "RemoteCalls", "RemoteSettings", "Verb"]

Verb: TypeAlias = Literal["Predict", "GetModelMetadata"]
Outcome: TypeAlias = Literal["ok", "failed", "dropped"]
"""Outcome of a call; ``dropped``: another replica was faster, or the time was over."""

# Errors of a healthy replica: it lacks the version, or the request is invalid.
_HEALTHY_REFUSALS = (Code.NOT_FOUND, Code.INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """Settings of an entry's remote calls."""

    timeout_s: float = 1.0
    """Timeout of the rows, or of the dense part, of one batch, with retries; a request's deadline may be shorter."""
    hedge_s: float | None = None
    """Silence after which another replica is called too; None means half of the timeout."""
    cool_down_s: float = 5.0
    """How long a failed replica is called last."""
    allow_degraded: bool = False
    """Replace missing rows by zeros and mark the result; otherwise the request fails."""
    max_message_bytes: int = 64 << 20
    """Largest message."""
    security: Security = field(default_factory=Security)
    """TLS and token of the remote servers."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ConfigError(f"timeout_s is {self.timeout_s!r}, expected a number above 0")
        if self.hedge_s is not None and not 0 < self.hedge_s < self.timeout_s:
            raise ConfigError(
                f"hedge_s is {self.hedge_s!r}, expected a number above 0 and below timeout_s ({self.timeout_s})"
            )
        if not self.cool_down_s >= 0:
            raise ConfigError(f"cool_down_s is {self.cool_down_s!r}, expected 0 or more")
        if not 1 <= self.max_message_bytes < 1 << 31:
            raise ConfigError(f"max_message_bytes is {self.max_message_bytes!r}, expected 1 to below 2 GiB")


class RemoteCall:
    """One call to a sub-model, with its answer or error at the end.

    Args:
        part: Name of the sub-model.
        what: Description of the requested data, for errors.
        place: Servers of the sub-model.
        verb: Method to call.
        payload: Encoded request.
    """

    def __init__(self, part: str, what: str, place: Place, verb: Verb, payload: bytes) -> None:
        self.part, self.what, self.place, self.verb, self.payload = part, what, place, verb, payload
        self.answer: bytes | None = None
        self.error: ClusterError | None = None
        self.is_late = False
        self.is_short = False
        """Whether the request left so little time that silence proves no failure of a replica."""
        self.untried: list[_Replica] = []
        self.running: dict[_Replica, Any] = {}
        self.failures: list[str] = []
        self.next_s = math.inf

    @property
    def is_open(self) -> bool:
        """Whether the call has neither an answer nor an error."""
        return self.answer is None and self.error is None


class _Replica:
    """Connection to one server, with its cool-down."""

    def __init__(self, address: str, channel: Any) -> None:
        self.address = address
        self.ill_until_s = 0.0
        self._channel = channel
        self._calls = {
            verb: channel.unary_unary(f"/{messages.PREDICTION_SERVICE}/{verb}")
            for verb in ("Predict", "GetModelMetadata")
        }

    def begin(self, verb: Verb, payload: bytes, timeout_s: float) -> Any:
        return self._calls[verb].future(payload, timeout=timeout_s)

    def close(self) -> None:
        self._channel.close()


class RemoteCalls:
    """Calls the servers of sub-models. Thread safe. Call ``close`` at the end.

    Args:
        addresses: Addresses of the sub-models.
        settings: Timeouts, failover and security.
        clock: Clock of the timeouts; the same as the server's.
        on_call: Called with the sub-model and the outcome of every call.
    """

    def __init__(
        self,
        addresses: Addresses,
        settings: RemoteSettings,
        clock: Clock | None = None,
        on_call: Callable[[str, Outcome], None] | None = None,
    ) -> None:
        self.settings = settings
        self._addresses = addresses
        self._clock = clock or SystemClock()
        self._on_call = on_call or (lambda part, outcome: None)
        self._lock = threading.Lock()
        # One counter per sub-model: with a shared one, a batch that calls two shards would never rotate.
        self._turns: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._replicas: dict[str, _Replica] = {}
        self._in_use: dict[str, tuple[str, ...]] = {}
        self._is_closed = False

    def place_of(self, model: str, part: str) -> Place:
        """Return the current servers of a sub-model."""
        return self._addresses.find(model, part)

    def tries(self, pause_s: float) -> Iterator[None]:
        """Yield immediately, and again after every pause, until the timeout of a batch's calls.

        With ``allow_degraded`` it ends after half of the time: a degraded answer needs the rest.
        """
        end_s = self._end_s()
        if self.settings.allow_degraded:
            end_s = (self._clock.monotonic_s() + end_s) / 2
        yield
        while self._clock.monotonic_s() + pause_s < end_s:
            self._clock.sleep_s(pause_s)
            yield

    def _end_s(self) -> float:
        end_s = self._clock.monotonic_s() + self.settings.timeout_s
        deadline_s = request_deadline_s()
        return end_s if deadline_s is None else min(end_s, deadline_s)

    def run_all(self, calls: Sequence[RemoteCall]) -> None:
        """Run calls in parallel. After the return each call has an answer or an error."""
        now_s, end_s = self._clock.monotonic_s(), self._end_s()
        ended: queue.SimpleQueue[tuple[RemoteCall, _Replica, Any]] = queue.SimpleQueue()
        for call in calls:
            call.is_short = end_s - now_s < self.settings.timeout_s / 2
            call.untried = self._in_turn(call.place, now_s)
            self._call_next(call, ended, end_s)
        while waiting := [call for call in calls if call.is_open]:
            wake_s = min(end_s, *(call.next_s for call in waiting))
            try:
                call, replica, future = ended.get(timeout=max(0.0, wake_s - self._clock.monotonic_s()))
            except queue.Empty:
                if self._clock.monotonic_s() >= end_s:
                    self._give_up(waiting)
                else:
                    for call in waiting:
                        if call.next_s <= wake_s:
                            self._call_next(call, ended, end_s)
                continue
            if call.is_open:
                self._note(call, replica, future)
                if call.answer is None and not call.running:
                    self._call_next(call, ended, end_s)

    def close(self) -> None:
        """Close the connections. Current calls fail."""
        with self._lock:
            self._is_closed = True
            replicas = list(self._replicas.values())
            self._replicas.clear()
        for replica in replicas:
            replica.close()
        self._addresses.close()

    # --- inside ---

    def _in_turn(self, place: Place, now_s: float) -> list[_Replica]:
        """Return the replicas in rotation, with recently failed ones at the end."""
        with self._lock:
            if self._is_closed:
                raise ModelNotReady("the server is stopping; use another replica")
            if self._in_use.get(place.name) != place.addresses:
                self._in_use[place.name] = place.addresses
                used = {address for addresses in self._in_use.values() for address in addresses}
                # Current calls keep their replicas; unused replicas are freed with their last reference.
                self._replicas = {address: each for address, each in self._replicas.items() if address in used}
            turn = next(self._turns[place.name])
            found = [self._replica(address) for address in place.addresses]
        first = turn % max(1, len(found))
        return sorted(found[first:] + found[:first], key=lambda each: each.ill_until_s * (each.ill_until_s > now_s))

    def _replica(self, address: str) -> _Replica:
        found = self._replicas.get(address)
        if found is None:
            settings = self.settings
            channel = grpc.open_channel(address, settings.security, settings.max_message_bytes)
            found = self._replicas[address] = _Replica(address, channel)
        return found

    def _call_next(
        self, call: RemoteCall, ended: queue.SimpleQueue[tuple[RemoteCall, _Replica, Any]], end_s: float
    ) -> None:
        call.next_s = math.inf
        now_s = self._clock.monotonic_s()
        if not call.untried:
            if not call.running:
                call.error = (RpcTimeout if call.is_late else ShardUnavailable)(_failure(call))
            return
        replica = call.untried.pop(0)
        try:
            future = replica.begin(call.verb, call.payload, max(0.001, end_s - now_s))
        except ValueError as error:  # the channel is closed
            raise ModelNotReady("the server is stopping; use another replica") from error
        call.running[replica] = future
        if call.untried:
            wait_s = self.settings.hedge_s
            call.next_s = now_s + (max(0.0, end_s - now_s) / 2 if wait_s is None else wait_s)
        future.add_done_callback(lambda done: ended.put((call, replica, done)))

    def _note(self, call: RemoteCall, replica: _Replica, future: Any) -> None:
        del call.running[replica]
        code = Code(future.code().value[0])
        if code == Code.OK:
            replica.ill_until_s = 0.0
            self._on_call(call.part, "ok")
            call.answer = future.result()
            self._drop(call, is_ill=self.settings.hedge_s is None)  # the others were silent for half of the time
            return
        self._on_call(call.part, "failed")
        call.failures.append(f"{replica.address}: {future.details() or code.name} ({code.name})")
        if code not in _HEALTHY_REFUSALS and not (call.is_short and code == Code.DEADLINE_EXCEEDED):
            self._shun(replica)
        call.is_late |= code == Code.DEADLINE_EXCEEDED

    def _give_up(self, calls: Sequence[RemoteCall]) -> None:
        for call in calls:
            call.failures.extend(f"{replica.address}: timeout" for replica in call.running)
            call.error = RpcTimeout(_failure(call))
            self._drop(call, is_ill=not call.is_short)

    def _drop(self, call: RemoteCall, is_ill: bool) -> None:
        for replica, future in call.running.items():
            self._on_call(call.part, "dropped")
            future.cancel()
            if is_ill:
                self._shun(replica)
        call.running.clear()

    def _shun(self, replica: _Replica) -> None:
        replica.ill_until_s = self._clock.monotonic_s() + self.settings.cool_down_s


def _failure(call: RemoteCall) -> str:
    if not call.place.addresses:
        return f"{call.part} has no address for {call.what}; configure its servers, or check their registration"
    return f"{call.part} did not return {call.what}: {'; '.join(call.failures)}"
