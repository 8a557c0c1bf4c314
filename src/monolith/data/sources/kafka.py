"""Kafka topics as a source: consumer groups, exact places, lag, and broker loss that is survived and told.

Offsets are kept in positions, which are saved with checkpoints; the broker is told of them by ``committed`` only,
after a checkpoint.

Where a partition begins when the group gives it to this consumer:

1. one that it held before: where it was left, or where the group has committed, whichever is further;
2. one that ``resume`` named: exactly there;
3. in the first assignment of a source that was not resumed: by ``start``;
4. any other, such as one whose reader has died: where the group has committed, by ``start`` when it has not.

Partitions arrive in no fixed order. A source that is resumed and told what had followed its place reads just that
first, in the order of then, whoever holds those partitions now; only then does it join the group.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from monolith import _native
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ConfigError, DataError, MonolithError, RecordCorrupt
from monolith.core.retry import RetryPolicy, retry
from monolith.data.records.framing import Framing
from monolith.data.sources.base import Position, RecordKind
from monolith.data.sources.kafka_client import load_client
from monolith.data.sources.kafka_outage import Outage
from monolith.data.sources.kafka_start import Partition, Start, StartPlaces, checked_start
from monolith.telemetry.names import KAFKA_ERRORS_TOTAL, KAFKA_LAG_RECORDS, KAFKA_RECORDS_TOTAL, Metric

__all__ = ["KafkaSource", "MetricSink"]

logger = logging.getLogger(__name__)

MetricSink: TypeAlias = Callable[[Metric, float, tuple[str, ...]], None]
"""Takes a metric, a number (what a counter grew by, what a gauge is now) and the values of its labels."""

_OWN_SETTINGS = (
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "error_cb",
    "on_commit",
)
Answer = TypeVar("Answer")

_LAG_PERIOD_S = 10.0
_QUESTION_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 0.5
# A group may take this long to hand out its partitions; until then a stream is not idle.
_JOIN_TIMEOUT_S = 60.0


@dataclass(slots=True)
class _Lot:
    """Messages of one partition in order, not yet handed out."""

    partition: Partition
    payloads: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    source_keys: list[int] = field(default_factory=list)
    end: int = 0
    """The offset after the last message."""


class KafkaSource:
    """The records of some topics, as one member of a consumer group.

    A lot holds records of one partition, named ``kafka TOPIC[PARTITION]``, each with the offset of its message. The
    source leaves its group when it is closed.

    Args:
        servers: Bootstrap servers, as ``host:port``.
        topics: Topics to read; one that begins with ``^`` is a pattern.
        group: The consumer group. Partitions are shared among its members.
        record: Which message the records are.
        start: Where to begin when there is no saved place; "committed" begins at the earliest message when the group
            has committed nothing.
        framing: None when a message is one bare record; else it is a stream of records framed like this.
        poll_records: Messages that are fetched together at most; 64 for batches of examples and 1024 else when None.
        max_wait_s: How long a lot waits to become that large. A ``close`` by another thread is seen after as long.
        idle_end_s: The stream ends when every partition is read to its end and nothing came for so long; None never
            ends it.
        on_corrupt: Whether a message that cannot be taken apart is an error, or is counted and skipped.
        max_outage_s: How long the brokers may be out of reach.
        config: More settings of librdkafka: security, sizes, session times.
        metrics: Gets counts and the lag.
        clock: Where the time comes from.

    Raises:
        ConfigError: An argument is wrong, or confluent-kafka is not installed.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str],
        group: str,
        record: RecordKind,
        *,
        start: Start = "committed",
        framing: Framing | None = None,
        poll_records: int | None = None,
        max_wait_s: float = 0.2,
        idle_end_s: float | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
        max_outage_s: float = 300.0,
        config: Mapping[str, Any] | None = None,
        metrics: MetricSink | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._servers = ",".join([servers] if isinstance(servers, str) else servers)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._servers or not group or not self._topics or not all(self._topics):
            raise ConfigError(f"servers, topics and group must be named, got {servers!r}, {topics!r} and {group!r}")
        self._group = group
        self._record = record
        self._start = checked_start(start)
        self._framing = framing or Framing.bare()
        self._poll_records = poll_records or (64 if record.startswith("example_batch") else 1024)
        for name, value, most in (("poll_records", self._poll_records, 1e6), ("max_wait_s", max_wait_s, 60.0)):
            if not 0 < value <= most:
                raise ConfigError(f"{name} must be above 0 and at most {most:g}, got {value}")
        for name, value in (("idle_end_s", idle_end_s or 0.0), ("max_outage_s", max_outage_s)):
            if value < 0:
                raise ConfigError(f"{name} must not be negative, got {value}")
        if str(on_corrupt) not in ("raise", "skip"):
            raise ConfigError(f"on_corrupt must be 'raise' or 'skip', got {on_corrupt!r}")
        self._max_wait_s = max_wait_s
        self._idle_end_s = idle_end_s
        self._skips_corrupt = on_corrupt == "skip"
        self._max_outage_s = max_outage_s
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._outage = Outage(self._servers, max_outage_s, self._clock, self._count_outage)
        self._client = load_client()
        self._settings = _checked_settings(self._servers, group, config or {})
        self._assigns_by_difference = _assigns_by_difference(self._settings)
        self._consumer = self._new_consumer({"error_cb": self._note_error, "on_commit": self._note_commit})
        self._places = StartPlaces(self._client, self._consumer, self._new_probe, _QUESTION_TIMEOUT_S)

        self._next: dict[Partition, int] = {}  # of the partitions held: the offset after what was handed out
        self._at_end: set[Partition] = set()  # read as far as they go
        self._fetched: dict[Partition, int] = {}  # the offset after what the client gave
        self._left: dict[Partition, int] = {}  # where partitions were when they were taken away
        self._saved: dict[Partition, int] | None = None
        self._lot: list[str | int] | None = None  # what was given last: topic, partition, first and last offset
        self._replay: deque[Position] = deque()  # positions that followed the one that was resumed
        self._replayed: Position | None = None  # the position until the group is joined
        self._pending: deque[_Lot] = deque()
        self._broken: MonolithError | None = None
        self._has_subscribed = False
        self._has_joined = False
        self._has_held = False
        self._quiet_since_s = 0.0
        self._lag_due_s = 0.0
        self._lock = threading.Lock()
        self._is_reading = False
        self._closing = threading.Event()
        self._is_shut = False

    @property
    def record(self) -> RecordKind:
        """Which message the records are."""
        return self._record

    @property
    def is_ordered(self) -> bool:
        """Whether a position is always followed by the same records: no, partitions arrive as they please."""
        return False

    def read(self) -> _native.Records | None:
        """Return the next records of one partition; wait for them. None when idle too long, or closed.

        Raises:
            RecordCorrupt: A message cannot be taken apart; the text names topic, partition and offset. The position
                stays before it, and every further read says the same.
            DataError: The saved place is gone from the broker.
            RetriesExhausted: The brokers were out of reach for ``max_outage_s``.
            ClusterError: The client cannot go on.
            ConfigError: A topic does not exist, or the brokers refuse this client.
        """
        with self._lock:
            if self._closing.is_set():
                return None
            self._is_reading = True
        try:
            return self._read()
        finally:
            with self._lock:
                self._is_reading = False
                if self._closing.is_set():
                    self._shut()

    def position(self) -> Position:
        """Return the next offset of each partition that this consumer holds, and which messages were given last."""
        if self._replayed is not None:
            return self._replayed
        offsets: dict[str, dict[str, int]] = {}
        for (topic, number), offset in sorted(self._next.items()):
            offsets.setdefault(topic, {})[str(number)] = offset
        return {"offsets": offsets, "lot": self._lot}

    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Begin at these offsets, as far as the group gives this consumer those partitions.

        Args:
            position: Offsets by topic and partition.
            then: The positions that followed; what lies between them is read again first.

        Raises:
            ConfigError: Reading has begun already.
        """
        if self._has_subscribed:
            raise ConfigError("a Kafka source can be resumed before its first read only; make a new one")
        self._saved = dict(_offsets_of(then[-1] if then else position))
        self._replay = deque(then)
        self._replayed = position

    def committed(self, position: Position) -> None:
        """Commit the offsets of those partitions that are still held. A failure is logged and counted, not raised.

        The checkpoint has the offsets, and the next one commits again.
        """
        held = self._next
        offsets = [
            self._client.TopicPartition(topic, number, offset)
            for (topic, number), offset in _offsets_of(position)
            if (topic, number) in held
        ]
        if not offsets or self._is_shut:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except (self._client.KafkaException, RuntimeError) as exc:
            self._note_commit(exc, [])

    def lag(self) -> dict[Partition, int]:
        """Return how many messages each held partition is behind its end, as far as it is known."""
        lags = {}
        for partition, offset in list(self._next.items()):
            high = self._high_watermark(partition)
            if high is not None:
                lags[partition] = max(0, high - offset)
        return lags

    def close(self) -> None:
        """Leave the group and disconnect; a read that waits in another thread ends."""
        with self._lock:
            self._closing.set()
            if not self._is_reading:
                self._shut()

    # --- reading ---

    def _read(self) -> _native.Records | None:
        while self._replay and not self._closing.is_set():
            if (records := self._read_again(self._replay.popleft())) is not None:
                return records
        self._subscribe()
        while not self._closing.is_set():
            while self._pending:
                if (records := self._hand_out(self._pending.popleft())) is not None:
                    return records
            if self._broken is not None:
                raise self._broken
            messages = self._consumer.consume(self._poll_records, self._max_wait_s)
            self._sort_out(messages)
            is_back = self._outage.is_over(lambda: bool(self._pending) or self._broker_answers())
            if self._pending or is_back:
                self._quiet_since_s = self._clock.monotonic_s()
            self._export_lag()
            if self._is_idle():
                return None
        return None

    def _read_again(self, position: Position) -> _native.Records | None:
        """The lot that was given when this was the position."""
        topic, number, begin, end = position["lot"]
        lot = _Lot((topic, number))
        for message in self._retried(functools.partial(self._places.messages, lot.partition, begin, end)):
            self._add(lot, message)
        if self._broken is not None:
            raise self._broken
        self._replayed = position
        return self._records(lot)

    def _subscribe(self) -> None:
        if self._has_subscribed:
            return
        self._has_subscribed = True
        self._quiet_since_s = self._clock.monotonic_s()
        self._consumer.subscribe(self._topics, on_assign=self._take_on, on_revoke=self._give_up, on_lost=self._give_up)

    def _hand_out(self, lot: _Lot) -> _native.Records | None:
        topic, number = lot.partition
        self._lot = [topic, number, self._next[lot.partition], lot.end]
        self._next[lot.partition] = lot.end
        return self._records(lot)

    def _records(self, lot: _Lot) -> _native.Records | None:
        if not lot.payloads:
            return None
        self._export(KAFKA_RECORDS_TOTAL, len(lot.payloads), lot.partition[0])
        return _native.Records(lot.payloads, _stream(*lot.partition), lot.offsets, lot.source_keys)

    def _sort_out(self, messages: Iterable[Any]) -> None:
        """Put messages into lots by partition. After a corrupt message nothing more is taken."""
        lots: dict[Partition, _Lot] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._note_message_error(message, error)
                continue
            partition, offset = (message.topic(), message.partition()), message.offset()
            # Given up meanwhile, or fetched before a place was changed.
            if offset < self._fetched.get(partition, offset + 1) or self._broken is not None:
                continue
            self._at_end.discard(partition)
            lot = lots.setdefault(partition, _Lot(partition))
            if self._add(lot, message):
                lot.end = self._fetched[partition] = offset + 1
        self._pending.extend(lot for lot in lots.values() if lot.end)

    def _add(self, lot: _Lot, message: Any) -> bool:
        """Add the records of a message to a lot; False when it is corrupt and may not be skipped."""
        offset, body = message.offset(), message.value()
        if body is None:  # a mark of deletion in a compacted topic
            return True
        try:
            self._take_apart(lot, body, offset)
        except RecordCorrupt as exc:
            self._export(KAFKA_ERRORS_TOTAL, 1, "corrupt")
            if not self._skips_corrupt:
                self._broken = RecordCorrupt(f"{exc}; check framing=, or skip such messages with on_corrupt='skip'")
                return False
            logger.warning("message skipped %s", exc)
        return True

    def _take_apart(self, lot: _Lot, body: bytes, offset: int) -> None:
        if self._framing.kind == "bare":
            payloads, keys = [body], [0]
        else:
            frames = _native.FrameReader(self._framing.bits, f"{_stream(*lot.partition)}: message at offset {offset}")
            frames.feed(body)
            frames.finish()
            payloads, keys = [], []
            while (records := frames.take(1 << 20, 1 << 30, True)) is not None:
                payloads += [records[index] for index in range(len(records))]
                keys += records.source_keys.tolist()
        lot.payloads += payloads
        lot.offsets += [offset] * len(payloads)
        lot.source_keys += keys

    def _is_idle(self) -> bool:
        if self._idle_end_s is None or self._pending or self._broken is not None or self._outage.is_suspected:
            return False
        if not self._next.keys() <= self._at_end:
            return False
        patience_s = self._idle_end_s if self._has_joined else max(self._idle_end_s, _JOIN_TIMEOUT_S)
        return self._clock.monotonic_s() - self._quiet_since_s >= patience_s

    # --- partitions ---

    def _take_on(self, consumer: Any, taken: list[Any]) -> None:
        """The group has given partitions. Called inside ``consume``; what it raised would lose messages."""
        partitions = [(each.topic, each.partition) for each in taken]
        try:
            offsets = self._retried(lambda: self._begin_at(partitions))
        except (MonolithError, self._client.KafkaException) as exc:
            self._broken = exc if isinstance(exc, MonolithError) else ClusterError(f"no place to begin at: {exc}")
            self._broken.__cause__ = exc.__cause__
            return
        # A member that joins a group may be given nothing at first, until the others have let go.
        self._has_joined = True
        self._has_held = self._has_held or bool(taken)
        self._quiet_since_s = self._clock.monotonic_s()
        for each in taken:
            each.offset = offsets[each.topic, each.partition]
        self._next.update(offsets)
        self._fetched.update(offsets)
        if offsets:
            self._replayed = None
        try:
            if self._assigns_by_difference:
                consumer.incremental_assign(taken)
            else:
                consumer.assign(taken)
        except self._client.KafkaException as exc:
            self._break(ClusterError(f"the partitions that group {self._group!r} gave cannot be read: {exc}"))
        if offsets:
            logger.info("partitions assigned group=%s offsets=%s", self._group, offsets)

    def _give_up(self, _: Any, given_up: list[Any]) -> None:
        """The group has taken partitions away: their places are no longer ours to save."""
        if self._closing.is_set():
            return
        for each in given_up:
            partition = (each.topic, each.partition)
            self._at_end.discard(partition)
            if partition in self._next:
                self._left[partition] = self._next.pop(partition)
                del self._fetched[partition]
        # Whose they are is settled when the group gives again, perhaps nothing: until then nothing has ended.
        self._has_joined = False
        self._quiet_since_s = self._clock.monotonic_s()
        logger.info("partitions given up group=%s count=%d", self._group, len(given_up))

    def _begin_at(self, partitions: list[Partition]) -> dict[Partition, int]:
        if not partitions:
            return {}
        saved = self._saved or {}
        is_fresh = self._saved is None and not self._has_held and self._start != "committed"
        asked = [each for each in partitions if each in self._left or not (is_fresh or each in saved)]
        committed = self._places.committed(asked) if asked else {}
        places = {}
        for partition in partitions:
            mine = self._left.get(partition, saved.get(partition))
            known = [place for place in (mine, committed.get(partition)) if place is not None]
            if known:
                places[partition] = self._places.checked(partition, max(known))
            else:
                places[partition] = self._places.at(self._start, partition)
        return places

    def _retried(self, question: Callable[[], Answer]) -> Answer:
        policy = RetryPolicy(attempts=1 << 30, max_backoff_s=1.0, deadline_s=self._max_outage_s)
        is_retryable = lambda exc: isinstance(exc, self._client.KafkaException) and not self._closing.is_set()  # noqa: E731
        return retry(policy, question, clock=self._clock, is_retryable=is_retryable)

    # --- errors and metrics ---

    def _note_message_error(self, message: Any, error: Any) -> None:
        codes = self._client.KafkaError
        code, topic = error.code(), message.topic()
        if code == codes._PARTITION_EOF:
            self._at_end.add((topic, message.partition()))
            return
        self._export(KAFKA_ERRORS_TOTAL, 1, "broker")
        if code == codes._AUTO_OFFSET_RESET:
            stream = _stream(topic, message.partition())
            self._break(DataError(f"{stream}: offset {message.offset()} is gone from the broker: {error.str()}"))
        elif error.fatal():
            self._break(ClusterError(f"the Kafka client cannot go on: {error.str()}"))
        elif code in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC):
            # A topic that was read before may be unknown for a moment while a broker starts.
            if not any(held == topic for held, _ in (*self._next, *self._left)):
                self._break(ConfigError(f"topic {topic!r} does not exist on {self._servers}; create it first"))
        elif code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED):
            self._break(ConfigError(f"{self._servers} refuses group {self._group!r}: {error.str()}"))
        else:
            logger.warning("kafka error group=%s error=%s", self._group, error.str())

    def _note_error(self, error: Any) -> None:
        """An error of the connection as a whole; the client tries again by itself."""
        codes = self._client.KafkaError
        if error.code() == codes._AUTHENTICATION:
            self._break(ConfigError(f"{self._servers} refuses to log in: {error.str()}; check the sasl settings"))
        elif error.code() == codes._ALL_BROKERS_DOWN:
            self._outage.suspect(error.str())
        logger.debug("kafka connection error group=%s error=%s", self._group, error.str())

    def _note_commit(self, error: Any, _: Any) -> None:
        if error is not None:
            self._export(KAFKA_ERRORS_TOTAL, 1, "commit")
            logger.warning(
                "offsets not committed, the next checkpoint tries again group=%s error=%s", self._group, error
            )

    def _break(self, error: MonolithError) -> None:
        self._broken = self._broken or error

    def _count_outage(self) -> None:
        self._export(KAFKA_ERRORS_TOTAL, 1, "outage")

    def _broker_answers(self) -> bool:
        try:
            self._consumer.list_topics(timeout=_PROBE_TIMEOUT_S)
        except self._client.KafkaException:
            return False
        return True

    def _high_watermark(self, partition: Partition) -> int | None:
        asked = self._client.TopicPartition(*partition)
        try:
            _, high = self._consumer.get_watermark_offsets(asked, cached=True)
            if high < 0:  # nothing was fetched yet
                _, high = self._consumer.get_watermark_offsets(asked, timeout=_PROBE_TIMEOUT_S)
        except (self._client.KafkaException, RuntimeError, TypeError):  # no answer, or closed
            return None
        return int(high) if high >= 0 else None

    def _export_lag(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._metrics is None or not self._next or now_s < self._lag_due_s or self._outage.is_suspected:
            return
        self._lag_due_s = now_s + _LAG_PERIOD_S
        for (topic, number), lag in self.lag().items():
            self._export(KAFKA_LAG_RECORDS, lag, topic, str(number))

    def _export(self, metric: Metric, value: float, *labels: str) -> None:
        if self._metrics is not None:
            self._metrics(metric, value, labels)

    # --- the client ---

    def _new_consumer(self, more: Mapping[str, Any]) -> Any:
        try:
            return self._client.Consumer({**self._settings, **more}, logger=logging.getLogger(f"{__name__}.client"))
        except self._client.KafkaException as exc:
            raise ConfigError(f"config is refused by librdkafka: {exc.args[0].str()}") from exc

    def _new_probe(self) -> Any:
        # It reads one message here and one there: a broker must not wait for more to come.
        return self._new_consumer({"fetch.wait.max.ms": 10})

    def _shut(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self._consumer.close()


def _stream(topic: str, number: int) -> str:
    return f"kafka {topic}[{number}]"


def _offsets_of(position: Position) -> Iterable[tuple[Partition, int]]:
    return [
        ((topic, int(number)), int(offset))
        for topic, offsets in position["offsets"].items()
        for number, offset in offsets.items()
    ]


def _checked_settings(servers: str, group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if own := [name for name in _OWN_SETTINGS if name in config]:
        raise ConfigError(f"config must not hold {', '.join(own)}: the source sets them itself")
    return {
        # Members keep their partitions while others join, so a rebalance disturbs only what moves.
        "partition.assignment.strategy": "cooperative-sticky",
        **config,
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }


def _assigns_by_difference(settings: Mapping[str, Any]) -> bool:
    is_new_protocol = str(settings.get("group.protocol", "")).lower() == "consumer"
    return is_new_protocol or "cooperative" in str(settings["partition.assignment.strategy"])
