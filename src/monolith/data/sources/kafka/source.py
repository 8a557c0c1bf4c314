"""``KafkaSource``: reads topics as a member of a consumer group, with exact positions, lag and outage handling.

NOTE: states and offsets.

A source passes through four states:

- *replaying*: after ``resume`` with ``then``. It reads the chunks that followed the position, in the saved order, with
  a separate consumer. It has not joined the group, so another member may hold these partitions meanwhile.
- *joining*: it has subscribed and waits for partitions. An idle timeout does not end it before ``_JOIN_TIMEOUT_S``.
- *reading*: it holds partitions (perhaps none). A rebalance that takes partitions away leads back to joining.
- *broken*: ``_broken`` holds an error. Every ``read`` raises it after the chunks fetched before the error.

A held partition has two offsets: ``_fetched`` follows the client's last message, ``_next`` the last message that
``read`` returned. Positions contain ``_next`` only. Only ``committed``, called after a checkpoint, commits them to the
broker, and only for partitions that this member still holds: another member's newer commit must not be overwritten.

An assigned partition starts at the first rule that applies:

1. held before: the offset where it was revoked, or the group's committed offset, whichever is larger;
2. named by ``resume``: exactly that offset;
3. first assignment of a source that was not resumed: ``start``;
4. any other, such as a dead member's: the group's committed offset, else ``start``.

Threading: one thread reads. ``committed``, ``lag`` and ``close`` may be called by others.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from typing_extensions import override

from monolith import _native
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, ConfigError, DataError, MonolithError, RecordCorrupt
from monolith.core.retry import RetryPolicy, retry
from monolith.data.records.framing import Framing
from monolith.data.sources.base import MetricSink, Position, RecordKind, Source
from monolith.data.sources.kafka.client import assigns_incrementally, consumer_settings, load_client
from monolith.data.sources.kafka.outage import Outage
from monolith.data.sources.kafka.start_offsets import Partition, Start, StartOffsets, check_start
from monolith.telemetry.names import KAFKA_ERRORS_TOTAL, KAFKA_LAG_RECORDS, KAFKA_RECORDS_TOTAL, MetricSpec

__all__ = ["KafkaSource"]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_LAG_PERIOD_S = 10.0
_QUESTION_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 0.5
# A group may take this long to assign its partitions; until then the stream does not count as idle.
_JOIN_TIMEOUT_S = 60.0


@dataclass(slots=True)
class _Chunk:
    """Messages of one partition in order, not yet returned by ``read``."""

    partition: Partition
    payloads: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    source_keys: list[int] = field(default_factory=list)
    end: int = 0
    """The offset after the last message."""


class KafkaSource(Source):
    """Reads the records of some topics, as one member of a consumer group.

    A chunk holds records of one partition, named ``kafka TOPIC[PARTITION]``, each with the offset of its message. The
    source leaves its group when it is closed.

    Args:
        servers: Bootstrap servers, as ``host:port``.
        topics: Topics to read; a name that starts with ``^`` is a pattern.
        group: The consumer group. Its members share the partitions.
        record: The message type of the records.
        start: Where to begin without a saved position. "committed" falls back to the earliest message when the group
            has committed nothing.
        framing: None if a message is one bare record; else the framing of the records inside a message.
        poll_records: Most messages per chunk. None means 64 for batches of examples, else 1024.
        max_wait_s: Longest wait for a chunk to fill. A ``close`` by another thread takes effect within it.
        idle_end_s: End the stream when every partition is read to its end and none got a message for this long; None
            never ends it.
        on_corrupt: "raise" on a message that cannot be parsed, or "skip" and count it.
        max_outage_s: Longest time without a broker before ``read`` raises.
        config: More settings of librdkafka: security, sizes, session times.
        metrics: Receives counts and the lag.
        clock: Time source.

    Raises:
        ConfigError: An argument is invalid, or confluent-kafka is not installed.
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
            raise ConfigError(
                f"servers is {servers!r}, topics is {topics!r} and group is {group!r}, expected a name for each"
            )
        self._group = group
        self._record = record
        self._start = check_start(start)
        self._framing = framing or Framing.bare()
        self._poll_records = poll_records or (64 if record.startswith("example_batch") else 1024)
        for name, value, most in (("poll_records", self._poll_records, 1e6), ("max_wait_s", max_wait_s, 60.0)):
            if not 0 < value <= most:
                raise ConfigError(f"{name} is {value!r}, expected more than 0 and at most {most:g}")
        for name, value in (("idle_end_s", idle_end_s or 0.0), ("max_outage_s", max_outage_s)):
            if value < 0:
                raise ConfigError(f"{name} is {value!r}, expected 0 or more")
        if str(on_corrupt) not in ("raise", "skip"):
            raise ConfigError(f"on_corrupt is {on_corrupt!r}, expected 'raise' or 'skip'")
        self._max_wait_s = max_wait_s
        self._idle_end_s = idle_end_s
        self._skips_corrupt = on_corrupt == "skip"
        self._max_outage_s = max_outage_s
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._outage = Outage(self._servers, max_outage_s, self._clock, self._count_outage)
        self._client = load_client()
        self._settings = consumer_settings(self._servers, group, config or {})
        self._assigns_incrementally = assigns_incrementally(self._settings)
        self._consumer = self._new_consumer({"error_cb": self._note_error, "on_commit": self._note_commit})
        self._offsets = StartOffsets(self._client, self._consumer, self._new_probe, _QUESTION_TIMEOUT_S)

        self._next: dict[Partition, int] = {}  # held partitions: the offset after the last record returned
        self._at_end: set[Partition] = set()  # read to their end
        self._fetched: dict[Partition, int] = {}  # held partitions: the offset after the last message fetched
        self._left: dict[Partition, int] = {}  # revoked partitions: ``_next`` at that moment
        self._saved: dict[Partition, int] | None = None
        self._last_chunk: list[str | int] | None = None  # returned last: topic, partition, first and end offset
        self._replay: deque[Position] = deque()  # positions that followed the resumed one
        self._replayed: Position | None = None  # the position until partitions are assigned
        self._pending: deque[_Chunk] = deque()
        self._broken: MonolithError | None = None
        self._has_subscribed = False
        self._has_joined = False
        self._has_held = False
        self._quiet_since_s = 0.0
        self._lag_due_s = 0.0
        self._lock = threading.Lock()
        self._is_reading = False
        self._closing = threading.Event()
        self._is_disconnected = False

    @property
    @override
    def record(self) -> RecordKind:
        return self._record

    @property
    @override
    def is_ordered(self) -> bool:
        return False

    def export_to(self, metrics: MetricSink) -> None:
        """Send counts and lag to ``metrics``. Call it before the first ``read``."""
        self._metrics = metrics

    @override
    def read(self) -> _native.Records | None:
        """Return the next records of one partition; wait for them. None when idle too long, or closed.

        Raises:
            RecordCorrupt: A message cannot be parsed; the text names topic, partition and offset. The position stays
                before the message, and every further read raises the same error.
            DataError: The broker has deleted the message at the saved position.
            RetriesExhausted: No broker answered for ``max_outage_s``.
            ClusterError: The client failed for good.
            ConfigError: A topic does not exist, or the brokers reject this client.
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
                    self._disconnect()

    @override
    def position(self) -> Position:
        """Return the next offset of each partition that this consumer holds, and the last chunk's messages."""
        if self._replayed is not None:
            return self._replayed
        offsets: dict[str, dict[str, int]] = {}
        for (topic, number), offset in sorted(self._next.items()):
            offsets.setdefault(topic, {})[str(number)] = offset
        return {"offsets": offsets, "lot": self._last_chunk}

    @override
    def resume(self, position: Position, then: Sequence[Position] = ()) -> None:
        """Start at these offsets, for the partitions that the group assigns to this consumer.

        Args:
            position: Offsets by topic and partition.
            then: The positions that followed; the messages between them are read again first.

        Raises:
            ConfigError: The source has read already.
        """
        if self._has_subscribed:
            raise ConfigError("resume() is called after read(), expected before its first read; make a new source")
        self._saved = dict(_offsets_of(then[-1] if then else position))
        self._replay = deque(then)
        self._replayed = position

    @override
    def committed(self, position: Position) -> None:
        """Commit the offsets of the partitions that this consumer still holds. Log and count a failure.

        The checkpoint contains the offsets too, and the next checkpoint commits again.
        """
        held = self._next
        offsets = [
            self._client.TopicPartition(topic, number, offset)
            for (topic, number), offset in _offsets_of(position)
            if (topic, number) in held
        ]
        if not offsets or self._is_disconnected:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except (self._client.KafkaException, RuntimeError) as exc:
            self._note_commit(exc, [])

    def lag(self) -> dict[Partition, int]:
        """Return the number of unread messages of each held partition, where the broker has reported its end."""
        lags = {}
        for partition, offset in list(self._next.items()):
            high = self._high_watermark(partition)
            if high is not None:
                lags[partition] = max(0, high - offset)
        return lags

    @override
    def close(self) -> None:
        """Leave the group and disconnect; a ``read`` that waits in another thread returns None."""
        with self._lock:
            self._closing.set()
            if not self._is_reading:
                self._disconnect()

    # --- reading ---

    def _read(self) -> _native.Records | None:
        while self._replay and not self._closing.is_set():
            if (records := self._replay_chunk(self._replay.popleft())) is not None:
                return records
        self._subscribe()
        while not self._closing.is_set():
            while self._pending:
                if (records := self._deliver(self._pending.popleft())) is not None:
                    return records
            if self._broken is not None:
                raise self._broken
            messages = self._consumer.consume(self._poll_records, self._max_wait_s)
            self._collect(messages)
            is_back = self._outage.is_over(lambda: bool(self._pending) or self._broker_answers())
            if self._pending or is_back:
                self._quiet_since_s = self._clock.monotonic_s()
            self._export_lag()
            if self._is_idle():
                return None
        return None

    def _replay_chunk(self, position: Position) -> _native.Records | None:
        """Read the chunk again after which this was the position."""
        topic, number, begin, end = position["lot"]
        chunk = _Chunk((topic, number))
        for message in self._retry(functools.partial(self._offsets.messages, chunk.partition, begin, end)):
            self._add(chunk, message)
        if self._broken is not None:
            raise self._broken
        self._replayed = position
        return self._records(chunk)

    def _subscribe(self) -> None:
        if self._has_subscribed:
            return
        self._has_subscribed = True
        self._quiet_since_s = self._clock.monotonic_s()
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _deliver(self, chunk: _Chunk) -> _native.Records | None:
        topic, number = chunk.partition
        self._last_chunk = [topic, number, self._next[chunk.partition], chunk.end]
        self._next[chunk.partition] = chunk.end
        return self._records(chunk)

    def _records(self, chunk: _Chunk) -> _native.Records | None:
        if not chunk.payloads:
            return None
        self._export(KAFKA_RECORDS_TOTAL, len(chunk.payloads), chunk.partition[0])
        return _native.Records(chunk.payloads, _stream(*chunk.partition), chunk.offsets, chunk.source_keys)

    def _collect(self, messages: Iterable[Any]) -> None:
        """Put messages into chunks by partition. Drop all messages after a corrupt one."""
        chunks: dict[Partition, _Chunk] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._note_message_error(message, error)
                continue
            partition, offset = (message.topic(), message.partition()), message.offset()
            # Revoked meanwhile, or fetched before the partition's start offset changed.
            if offset < self._fetched.get(partition, offset + 1) or self._broken is not None:
                continue
            self._at_end.discard(partition)
            chunk = chunks.setdefault(partition, _Chunk(partition))
            if self._add(chunk, message):
                chunk.end = self._fetched[partition] = offset + 1
        self._pending.extend(chunk for chunk in chunks.values() if chunk.end)

    def _add(self, chunk: _Chunk, message: Any) -> bool:
        """Add the records of a message to a chunk; return False if it is corrupt and must not be skipped."""
        offset, body = message.offset(), message.value()
        if body is None:  # a tombstone of a compacted topic
            return True
        try:
            self._split_message(chunk, body, offset)
        except RecordCorrupt as exc:
            self._export(KAFKA_ERRORS_TOTAL, 1, "corrupt")
            if not self._skips_corrupt:
                self._broken = RecordCorrupt(f"{exc}; check framing=, or skip such messages with on_corrupt='skip'")
                return False
            logger.warning("corrupt message skipped group=%s error=%s", self._group, exc)
        return True

    def _split_message(self, chunk: _Chunk, body: bytes, offset: int) -> None:
        if self._framing.kind == "bare":
            payloads, keys = [body], [0]
        else:
            frames = _native.FrameReader(self._framing.bits, f"{_stream(*chunk.partition)}: message at offset {offset}")
            frames.feed(body)
            frames.finish()
            payloads, keys = [], []
            while (records := frames.take(1 << 20, 1 << 30, True)) is not None:
                payloads += [records[index] for index in range(len(records))]
                keys += records.source_keys.tolist()
        chunk.payloads += payloads
        chunk.offsets += [offset] * len(payloads)
        chunk.source_keys += keys

    def _is_idle(self) -> bool:
        if self._idle_end_s is None or self._pending or self._broken is not None or self._outage.is_suspected:
            return False
        if not self._next.keys() <= self._at_end:
            return False
        timeout_s = self._idle_end_s if self._has_joined else max(self._idle_end_s, _JOIN_TIMEOUT_S)
        return self._clock.monotonic_s() - self._quiet_since_s >= timeout_s

    # --- partitions ---

    def _on_assign(self, consumer: Any, assigned: list[Any]) -> None:
        """Start the assigned partitions. Called inside ``consume``, where an exception would lose messages."""
        partitions = [(each.topic, each.partition) for each in assigned]
        try:
            offsets = self._retry(lambda: self._start_offsets(partitions))
        except (MonolithError, self._client.KafkaException) as exc:
            self._broken = exc if isinstance(exc, MonolithError) else ClusterError(f"start offsets are unknown: {exc}")
            self._broken.__cause__ = exc.__cause__
            return
        # A new member may get no partitions at first, until the other members have released some.
        self._has_joined = True
        self._has_held = self._has_held or bool(assigned)
        self._quiet_since_s = self._clock.monotonic_s()
        for each in assigned:
            each.offset = offsets[each.topic, each.partition]
        self._next.update(offsets)
        self._fetched.update(offsets)
        if offsets:
            self._replayed = None
        try:
            if self._assigns_incrementally:
                consumer.incremental_assign(assigned)
            else:
                consumer.assign(assigned)
        except self._client.KafkaException as exc:
            self._break(ClusterError(f"partitions assigned by group {self._group!r} cannot be read: {exc}"))
        if offsets:
            logger.info("partitions assigned group=%s offsets=%s", self._group, offsets)

    def _on_revoke(self, _: Any, revoked: list[Any]) -> None:
        """Drop the revoked partitions from the position: another member saves theirs from now on."""
        if self._closing.is_set():
            return
        for each in revoked:
            partition = (each.topic, each.partition)
            self._at_end.discard(partition)
            if partition in self._next:
                self._left[partition] = self._next.pop(partition)
                del self._fetched[partition]
        # The next assignment, perhaps an empty one, ends the rebalance. Until then the stream does not count as idle.
        self._has_joined = False
        self._quiet_since_s = self._clock.monotonic_s()
        logger.info("partitions revoked group=%s count=%d", self._group, len(revoked))

    def _start_offsets(self, partitions: list[Partition]) -> dict[Partition, int]:
        if not partitions:
            return {}
        saved = self._saved or {}
        is_fresh = self._saved is None and not self._has_held and self._start != "committed"
        unknown = [each for each in partitions if each in self._left or not (is_fresh or each in saved)]
        committed = self._offsets.committed(unknown) if unknown else {}
        starts = {}
        for partition in partitions:
            saved_offset = self._left.get(partition, saved.get(partition))
            offsets = [offset for offset in (saved_offset, committed.get(partition)) if offset is not None]
            if offsets:
                starts[partition] = self._offsets.check(partition, max(offsets))
            else:
                starts[partition] = self._offsets.at(self._start, partition)
        return starts

    def _retry(self, question: Callable[[], Answer]) -> Answer:
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
            self._break(ClusterError(f"the Kafka client failed for good: {error.str()}; restart the process"))
        elif code in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC):
            # A starting broker may not know a topic for a moment that was read before.
            if not any(held == topic for held, _ in (*self._next, *self._left)):
                self._break(ConfigError(f"topic {topic!r} does not exist on {self._servers}; create it first"))
        elif code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.GROUP_AUTHORIZATION_FAILED):
            self._break(ConfigError(f"{self._servers} rejected group {self._group!r}: {error.str()}; check its ACLs"))
        else:
            logger.warning("kafka error group=%s error=%s", self._group, error.str())

    def _note_error(self, error: Any) -> None:
        """Handle an error of the whole connection; the client retries by itself."""
        codes = self._client.KafkaError
        if error.code() == codes._AUTHENTICATION:
            self._break(ConfigError(f"{self._servers} rejected the login: {error.str()}; check the sasl settings"))
        elif error.code() == codes._ALL_BROKERS_DOWN:
            self._outage.suspect(error.str())
        logger.debug("kafka connection error group=%s error=%s", self._group, error.str())

    def _note_commit(self, error: Any, _: Any) -> None:
        if error is not None:
            self._export(KAFKA_ERRORS_TOTAL, 1, "commit")
            logger.warning(
                "commit of offsets failed, retrying at the next checkpoint group=%s error=%s", self._group, error
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
            if high < 0:  # no message was fetched yet
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

    def _export(self, metric: MetricSpec, value: float, *labels: str) -> None:
        if self._metrics is not None:
            self._metrics(metric, value, labels)

    # --- the client ---

    def _new_consumer(self, more: Mapping[str, Any]) -> Any:
        try:
            return self._client.Consumer({**self._settings, **more}, logger=logging.getLogger(f"{__name__}.client"))
        except self._client.KafkaException as exc:
            raise ConfigError(f"config is invalid for librdkafka: {exc.args[0].str()}") from exc

    def _new_probe(self) -> Any:
        # A probe reads single messages, so the broker must answer without waiting for more.
        return self._new_consumer({"fetch.wait.max.ms": 10})

    def _disconnect(self) -> None:
        if not self._is_disconnected:
            self._is_disconnected = True
            self._consumer.close()


def _stream(topic: str, number: int) -> str:
    return f"kafka {topic}[{number}]"


def _offsets_of(position: Position) -> Iterable[tuple[Partition, int]]:
    return [
        ((topic, int(number)), int(offset))
        for topic, offsets in position["offsets"].items()
        for number, offset in offsets.items()
    ]
