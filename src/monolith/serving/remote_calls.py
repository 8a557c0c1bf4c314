"""Calls to sub-models on other servers: several at a time, each to one replica, and to another when that one fails.

When a replica fails, or says nothing for half of the time, the next one is asked in its place; with hedging it is asked
after a shorter while, and whoever is first counts. One that failed is asked last for a while. What calls mean is not
known here.
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
from monolith.serving import messages
from monolith.serving.remote_addresses import Addresses, Place
from monolith.serving.request_deadline import request_deadline_s

__all__ = ["Ask", "Outcome", "RemoteCalls", "RemoteSettings", "Verb"]

Verb: TypeAlias = Literal["Predict", "GetModelMetadata"]
Outcome: TypeAlias = Literal["ok", "failed", "dropped"]
"""How a call ended; ``dropped``: another replica was faster, or the time was over."""

# What a replica may say without being ill: it does not have the version, or would refuse anybody.
_HEALTHY_REFUSALS = (Code.NOT_FOUND, Code.INVALID_ARGUMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """How an entry asks others."""

    timeout_s: float = 1.0
    """Longest time for the rows, or the dense part, of one batch, retries included; a request's deadline may be
    shorter."""
    hedge_s: float | None = None
    """Ask another replica too when one has not answered for so long; None = never before half of the time is over."""
    cool_down_s: float = 5.0
    """How long a replica that failed is asked last."""
    allow_degraded: bool = False
    """Take zeros for rows that nobody gives, and mark the answer; otherwise the answer is an error."""
    max_message_bytes: int = 64 << 20
    """Largest request or answer."""
    security: Security = field(default_factory=Security)
    """TLS and token of the servers that are asked."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ConfigError(f"timeout_s is {self.timeout_s}; give a number above 0")
        if self.hedge_s is not None and not 0 < self.hedge_s < self.timeout_s:
            raise ConfigError(
                f"hedge_s is {self.hedge_s}; give a number above 0 and below timeout_s ({self.timeout_s})"
            )
        if not self.cool_down_s >= 0:
            raise ConfigError(f"cool_down_s is {self.cool_down_s}; give 0 or more")
        if not 1 <= self.max_message_bytes < 1 << 31:
            raise ConfigError(f"max_message_bytes is {self.max_message_bytes}; give 1 to below 2 GiB")


class Ask:
    """One question to one sub-model, and in the end its answer or what went wrong.

    Args:
        part: Which sub-model.
        what: What is asked for, in words, for errors.
        place: Where it is served.
        verb: Which call.
        payload: The request's bytes.
    """

    def __init__(self, part: str, what: str, place: Place, verb: Verb, payload: bytes) -> None:
        self.part, self.what, self.place, self.verb, self.payload = part, what, place, verb, payload
        self.answer: bytes | None = None
        self.error: ClusterError | None = None
        self.is_late = False
        self.untried: list[_Replica] = []
        self.running: dict[_Replica, Any] = {}
        self.failures: list[str] = []
        self.next_s = math.inf

    @property
    def is_open(self) -> bool:
        """Whether there is neither an answer nor an error."""
        return self.answer is None and self.error is None


class _Replica:
    """A server, with the state of its health."""

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
    """Asks the servers of sub-models. Safe to use from several threads; close it at the end.

    Args:
        addresses: Who serves what.
        settings: How they are asked.
        clock: Measures time; the same as the server's.
        on_call: Told of the end of every call: the sub-model, and how it went.
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
        # One for each sub-model: with one for all, a batch that asks two shards would never turn.
        self._turns: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._replicas: dict[str, _Replica] = {}
        self._in_use: dict[str, tuple[str, ...]] = {}
        self._is_closed = False

    def place_of(self, model: str, part: str) -> Place:
        """Return where a sub-model is served now."""
        return self._addresses.find(model, part)

    def tries(self, pause_s: float) -> Iterator[None]:
        """Yield at once, and again after every pause, until the time for the calls of a batch is over."""
        end_s = self._end_s()
        yield
        while self._clock.monotonic_s() + pause_s < end_s:
            self._clock.sleep_s(pause_s)
            yield

    def _end_s(self) -> float:
        end_s = self._clock.monotonic_s() + self.settings.timeout_s
        wanted_until_s = request_deadline_s()
        return end_s if wanted_until_s is None else min(end_s, wanted_until_s)

    def ask_all(self, asks: Sequence[Ask]) -> None:
        """Ask every question at the same time; after return each has an answer or an error."""
        now_s, end_s = self._clock.monotonic_s(), self._end_s()
        ended: queue.SimpleQueue[tuple[Ask, _Replica, Any]] = queue.SimpleQueue()
        for ask in asks:
            ask.untried = self._in_turn(ask.place, now_s)
            self._ask_next(ask, ended, end_s)
        while waiting := [ask for ask in asks if ask.is_open]:
            wake_s = min(end_s, *(ask.next_s for ask in waiting))
            try:
                ask, replica, call = ended.get(timeout=max(0.0, wake_s - self._clock.monotonic_s()))
            except queue.Empty:
                if self._clock.monotonic_s() >= end_s:
                    self._give_up(waiting)
                else:
                    for ask in waiting:
                        if ask.next_s <= wake_s:
                            self._ask_next(ask, ended, end_s)
                continue
            if ask.is_open:
                self._note(ask, replica, call)
                if ask.answer is None and not ask.running:
                    self._ask_next(ask, ended, end_s)

    def close(self) -> None:
        """Close the connections; calls under way fail."""
        with self._lock:
            self._is_closed = True
            replicas = list(self._replicas.values())
            self._replicas.clear()
        for replica in replicas:
            replica.close()
        self._addresses.close()

    # --- inside ---

    def _in_turn(self, place: Place, now_s: float) -> list[_Replica]:
        """Return the replicas, each time with another one first, and those that failed lately at the end."""
        with self._lock:
            if self._is_closed:
                raise ModelNotReady("the server is stopping; ask another replica")
            if self._in_use.get(place.name) != place.addresses:
                self._in_use[place.name] = place.addresses
                used = {address for addresses in self._in_use.values() for address in addresses}
                # Calls under way keep what they use; the rest goes when nobody refers to it.
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

    def _ask_next(self, ask: Ask, ended: queue.SimpleQueue[tuple[Ask, _Replica, Any]], end_s: float) -> None:
        ask.next_s = math.inf
        now_s = self._clock.monotonic_s()
        if not ask.untried:
            if not ask.running:
                ask.error = (RpcTimeout if ask.is_late else ShardUnavailable)(_failure(ask))
            return
        replica = ask.untried.pop(0)
        try:
            call = replica.begin(ask.verb, ask.payload, max(0.001, end_s - now_s))
        except ValueError as error:  # the channel was closed meanwhile
            raise ModelNotReady("the server is stopping; ask another replica") from error
        ask.running[replica] = call
        if ask.untried:
            wait_s = self.settings.hedge_s
            ask.next_s = now_s + (max(0.0, end_s - now_s) / 2 if wait_s is None else wait_s)
        call.add_done_callback(lambda done: ended.put((ask, replica, done)))

    def _note(self, ask: Ask, replica: _Replica, call: Any) -> None:
        del ask.running[replica]
        code = Code(call.code().value[0])
        if code == Code.OK:
            replica.ill_until_s = 0.0
            self._on_call(ask.part, "ok")
            ask.answer = call.result()
            self._drop(ask, is_ill=self.settings.hedge_s is None)  # silent for half of the time
            return
        self._on_call(ask.part, "failed")
        ask.failures.append(f"{replica.address}: {call.details() or code.name} ({code.name})")
        if code not in _HEALTHY_REFUSALS:
            self._shun(replica)
        ask.is_late |= code == Code.DEADLINE_EXCEEDED

    def _give_up(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            ask.failures.extend(f"{replica.address}: no answer in time" for replica in ask.running)
            ask.error = RpcTimeout(_failure(ask))
            self._drop(ask, is_ill=True)

    def _drop(self, ask: Ask, is_ill: bool) -> None:
        for replica, call in ask.running.items():
            self._on_call(ask.part, "dropped")
            call.cancel()
            if is_ill:
                self._shun(replica)
        ask.running.clear()

    def _shun(self, replica: _Replica) -> None:
        replica.ill_until_s = self._clock.monotonic_s() + self.settings.cool_down_s


def _failure(ask: Ask) -> str:
    if not ask.place.addresses:
        return f"{ask.part}: no address is known for {ask.what}; give its servers, or see whether they registered"
    return f"{ask.part} did not give {ask.what}; asked {'; '.join(ask.failures)}"
