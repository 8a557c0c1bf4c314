"""Queue and thread of one push target.

The queue holds unique ids. ``Sender`` reads their rows when it sends them, so a target always gets the newest values.
Failed ids return to the queue. A target that was unreachable, or serves another version, may have lost rows; the sender
then queues every id that ever changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from monolith.core.clock import Clock
from monolith.core.errors import MonolithError, RpcTimeout, ShardUnavailable
from monolith.core.retry import RetryPolicy
from monolith.embedding.shard_map import shard_of
from monolith.embedding.store import Ids, Rows
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.sync.push_ids import IdSet, chunks_of
from monolith.sync.push_messages import MAX_BYTES, Assignments
from monolith.sync.push_targets import PushTarget
from monolith.telemetry import names as metrics
from monolith.telemetry.names import MetricSpec

__all__ = ["Export", "PushSettings", "RowSource", "Sender", "SenderStatus"]

logger = logging.getLogger(__name__)

Export: TypeAlias = Callable[[MetricSpec, float, tuple[str, ...]], None]
"""Receives the increment of a counter, or the value of a gauge."""
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_BACKOFFS = RetryPolicy(attempts=1_000_000, initial_backoff_s=0.1, max_backoff_s=5.0)


class RowSource(Protocol):
    """Source of the rows."""

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id; ids are unique within a table. Thread safe."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """Timeouts, retries and security of pushes."""

    timeout_s: float = 3.0
    """Timeout of one request."""
    backoffs: RetryPolicy = _BACKOFFS
    """Pauses after failed requests; the last pause repeats."""
    security: Security = field(default_factory=Security)
    """Token of the targets, and the certificate authority of targets with TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStatus:
    """State of a target."""

    pushed: int = 0
    """Rows that the target has taken."""
    failures: int = 0
    """Failed requests."""
    error: str = ""
    """Error of the last request; empty if it succeeded."""
    waiting: int = 0
    """Rows in the queue."""
    lag_s: float = 0.0
    """Age of the oldest row in the queue."""


class Sender:
    """Sends rows to one target in a background thread. Thread safe.

    Args:
        target: Model that receives the rows.
        rows: Source of the rows.
        assignments: Form of the requests.
        all_ids: Returns all ids that ever changed.
        settings: Timeouts, retries and security.
        clock: Clock of the lag.
        export: Receives metrics.
    """

    def __init__(
        self,
        target: PushTarget,
        rows: RowSource,
        assignments: Assignments,
        all_ids: Callable[[], Mapping[str, Ids]],
        *,
        settings: PushSettings,
        clock: Clock,
        export: Export,
    ) -> None:
        self.target = target
        self._rows = rows
        self._assignments = assignments
        self._all_ids = all_ids
        self._settings = settings
        self._clock = clock
        self._export = export
        self._changed = threading.Condition()
        self._waiting = IdSet()
        self._since_s: float | None = None
        self._sending_since_s: float | None = None
        self._sending = 0
        self._has_taken = False
        self._version = 0
        self._pushed = self._failures = 0
        self._error: Exception | None = None
        self._is_ended = self._is_hurried = False
        security = settings.security if target.is_encrypted else Security(token=settings.security.token)
        self._channel = cast(Any, grpc.open_channel(target.address, security, 2 * MAX_BYTES))
        self._call = self._channel.unary_unary(_PREDICT)
        self._was_ready = False
        self._channel.subscribe(self._on_connectivity)
        self._thread = threading.Thread(target=self._run, name=f"push-{target}", daemon=True)
        self._thread.start()

    @property
    def status(self) -> SenderStatus:
        """State of the target."""
        with self._changed:
            since = [each for each in (self._since_s, self._sending_since_s) if each is not None]
            return SenderStatus(
                pushed=self._pushed,
                failures=self._failures,
                error="" if self._error is None else str(self._error),
                waiting=len(self._waiting) + self._sending,
                lag_s=self._clock.monotonic_s() - min(since) if since else 0.0,
            )

    def add(self, ids: Mapping[str, Ids]) -> None:
        """Queue the ids of this target's shard."""
        index, count = self.target.shard
        if count > 1:
            ids = {table: keys[shard_of(keys, count) == index] for table, keys in ids.items()}
        with self._changed:
            if self._is_ended:
                return
            self._waiting.add(ids)
            if self._waiting and self._since_s is None:
                self._since_s = self._clock.monotonic_s()
            self._changed.notify_all()

    def show(self) -> None:
        """Export the gauges."""
        status, labels = self.status, (str(self.target),)
        self._export(metrics.PUSH_WAITING_ROWS, status.waiting, labels)
        self._export(metrics.PUSH_LAG_SECONDS, status.lag_s, labels)

    def wait_until_sent(self, timeout_s: float) -> bool:
        """Wait until the queue is empty, a request fails, or the timeout; return whether the queue is empty."""
        with self._changed:
            before, self._is_hurried = self._failures, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_idle or self._failures > before, timeout_s)
            self._is_hurried = False
            return self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and self._sending_since_s is None

    def close(self) -> None:
        """Stop after the current request, and drop the queue. Its gauges show an empty queue from then on."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self._waiting, self._since_s = IdSet(), None
        self.show()
        self._channel.unsubscribe(self._on_connectivity)
        self._channel.close()

    # --- the thread ---

    def _run(self) -> None:
        pauses = self._settings.backoffs.backoffs_s()
        pause_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_ended or self._waiting)
                if self._is_ended:
                    return
                ids = self._waiting.take()
                self._sending = sum(map(len, ids.values()))
                self._sending_since_s, self._since_s = self._since_s, None
            is_sent = self._send_all(ids)
            with self._changed:
                self._sending, self._sending_since_s = 0, None
                self._changed.notify_all()
                if is_sent:
                    pauses = self._settings.backoffs.backoffs_s()
                    continue
                pause_s = next(pauses, pause_s)
                self._changed.wait_for(lambda: self._is_ended or self._is_hurried, pause_s)

    def _send_all(self, ids: Mapping[str, Ids]) -> bool:
        """Send rows in chunks; failed chunks return to the queue."""
        is_sent, is_away = True, False
        row_bytes, room = self._assignments.row_bytes, self._assignments.room
        for chunk in chunks_of(ids, row_bytes, room, one_table=self._assignments.one_table):
            if is_away or self._is_ended:
                self._put_back(chunk)
                continue
            try:
                version = self._send(chunk)
            except Exception as error:
                is_sent = False
                is_away = isinstance(error, ShardUnavailable | RpcTimeout)
                self._put_back(chunk)
                self._fail(error)
            else:
                self._confirm(sum(map(len, chunk.values())), version)
        return is_sent and not is_away

    def _send(self, chunk: Mapping[str, Ids]) -> int:
        values = self._rows.pull(chunk)
        rows = {table: (keys, values[table]) for table, keys in chunk.items()}
        request = self._assignments.request(self.target.model, rows)
        try:
            answer = self._call(request, timeout=self._settings.timeout_s)
        except grpc.CallError as error:
            raise grpc.translate_error(error, "Predict", self.target.address) from error
        return self._assignments.read_answer(answer, rows)

    def _put_back(self, chunk: Mapping[str, Ids]) -> None:
        with self._changed:
            self._waiting.add(chunk)
            if self._sending_since_s is not None:
                self._since_s = self._sending_since_s
            self._sending -= sum(map(len, chunk.values()))

    def _confirm(self, rows: int, version: int) -> None:
        with self._changed:
            was, self._error = self._error, None
            self._pushed += rows
            self._sending -= rows
            is_other = version != self._version and self._has_taken
            self._version, self._has_taken = version, True
            self._changed.notify_all()
        self._export(metrics.PUSH_ROWS_TOTAL, rows, (str(self.target),))
        if was is not None:
            logger.info("push recovered target=%s", self.target)
        if is_other:
            logger.info("target serves another version, sending all rows target=%s version=%d", self.target, version)
            self.add(self._all_ids())

    def _fail(self, error: Exception) -> None:
        with self._changed:
            was, self._error = self._error, error
            self._failures += 1
            self._changed.notify_all()
        self._export(metrics.PUSH_FAILURES_TOTAL, 1, (str(self.target),))
        if not isinstance(error, MonolithError):
            logger.exception("push failed, retrying target=%s", self.target)
        elif type(was) is not type(error):  # once, not at every attempt
            logger.warning("push failed, retrying target=%s error=%s", self.target, error)
        if isinstance(error, ShardUnavailable):
            self._mark_lost()

    def _on_connectivity(self, state: Any) -> None:
        """Detect a target that restarts between two requests."""
        is_ready = state.name == "READY"
        was_ready, self._was_ready = self._was_ready, is_ready
        if was_ready and not is_ready:
            self._mark_lost()

    def _mark_lost(self) -> None:
        with self._changed:
            had_taken, self._has_taken = self._has_taken, False
            if not had_taken or self._is_ended:
                return
        logger.info("target lost, sending all rows after reconnect target=%s", self.target)
        self.add(self._all_ids())
