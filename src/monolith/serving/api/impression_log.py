"""``ImpressionLog``: writes the records that a server has scored to a stream, for the joiner and the trainer.

Each record keeps its features and gets, in its LineId, the request key, the event time, the model version and the cut.
So training sees the features that serving saw. A background thread stamps and writes. When its queue is full, or the
stream refuses a record, records are dropped and counted: a request never waits. Thread safe.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError, InvalidRequest, MonolithError
from monolith.data.records.messages import LINE_ID, parse_message
from monolith.data.sources.base import RecordKind, Sink
from monolith.data.sources.urls import open_sink, parse_url
from monolith.stream.hashes import draw_uniform
from monolith.stream.line_id import IMPRESSION, MESSAGES

__all__ = ["REQUEST_KEY", "ImpressionLog", "ScoredRecords", "open_impression_log", "stamp_record"]

logger = logging.getLogger(__name__)

REQUEST_KEY = "Monolith-Request-Key"
"""HTTP header, and in lower case gRPC metadata, of the request key: in requests and in responses."""

_MAX_WAITING = 1024
_MAX_WAITING_BYTES = 64 << 20
_MOST_KEY_BYTES = 256
_STAMPED: tuple[RecordKind, ...] = ("example", "instance", "example_batch")


@dataclass(frozen=True, slots=True)
class ScoredRecords:
    """The records of one request, with the version and the cut of its answer."""

    key: bytes
    """The request key; a key inside a record has precedence."""
    kind: RecordKind
    records: Sequence[bytes]
    version: int
    cut: int
    """Number of the cut that the version showed; 0 = the export."""
    time_ms: int

    @property
    def nbytes(self) -> int:
        """Bytes of the records."""
        return sum(map(len, self.records))


class ImpressionLog:
    """Writes sampled impressions.

    Args:
        sink: The stream; ``close`` closes it.
        rate: Share of requests to write. A request is chosen by a hash of its key, so every server and every replay
            chooses alike.
        on_outcome: Called with an outcome for each record: ``impression_written``, ``impression_dropped`` or
            ``impression_unsupported``.
        clock: Time source of records without an event time.

    Raises:
        ConfigError: ``rate`` is out of range.
    """

    def __init__(self, sink: Sink, rate: float, on_outcome: Callable[[str], None], clock: Clock | None = None) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"log_requests_rate is {rate!r}, expected 0 to 1")
        self._sink = sink
        self._rate = rate
        self._on_outcome = on_outcome
        self._clock = clock or SystemClock()
        self._waiting: queue.Queue[ScoredRecords | None] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()
        self._bytes = 0
        self._thread = threading.Thread(target=self._write_all, name="impression-log", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the writing thread runs."""
        return self._thread.is_alive()

    def make_key(self, text: str) -> bytes:
        """Return the request key of a header's text; a random key for an empty one.

        Raises:
            InvalidRequest: The key is too long.
        """
        key = text.encode() or secrets.token_hex(16).encode()
        if len(key) > _MOST_KEY_BYTES:
            raise InvalidRequest(f"{REQUEST_KEY} has {len(key)} bytes, expected at most {_MOST_KEY_BYTES}")
        return key

    def add(self, key: bytes, kind: RecordKind | None, records: Sequence[bytes], version: int, cut: int) -> None:
        """Queue the records of an answered request, if its key is sampled.

        Args:
            key: The request key.
            kind: Message type of the records; None for a request of bare features, which is only counted.
            records: The records.
            version: Version that answered.
            cut: Number of the cut that it showed.
        """
        if draw_uniform(key, 0) >= self._rate:
            return
        if kind not in _STAMPED:
            self._on_outcome("impression_unsupported")
            return
        scored = ScoredRecords(key, kind, records, version, cut, int(self._clock.now_s() * 1000))
        if not self._put(scored):
            for _ in records:
                self._on_outcome("impression_dropped")

    def _put(self, scored: ScoredRecords) -> bool:
        """Queue the records of a request; return False if the queue is full. An empty queue takes any request."""
        with self._lock:
            if self._bytes and self._bytes + scored.nbytes > _MAX_WAITING_BYTES:
                return False
            try:
                self._waiting.put_nowait(scored)
            except queue.Full:
                return False
            self._bytes += scored.nbytes
            return True

    def close(self) -> None:
        """Write the queued records and close the stream. A second call does nothing."""
        while self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join()
        try:
            self._sink.close()
        except MonolithError as error:
            logger.warning("impressions lost error=%s", error)

    def _write_all(self) -> None:
        last_error = ""
        while (scored := self._waiting.get()) is not None:
            for record in scored.records:
                try:
                    key, value, time_ms = stamp_record(record, scored)
                    self._sink.write(value, key, time_ms)
                    self._on_outcome("impression_written")
                    last_error = ""
                except Exception as error:  # a full disk, lost brokers, an odd record; the thread must survive
                    self._on_outcome("impression_dropped")
                    if type(error).__name__ != last_error:  # once, not for each record while the brokers are lost
                        logger.warning("impression not written error=%s", error)
                    last_error = type(error).__name__
            with self._lock:
                self._bytes -= scored.nbytes


def open_impression_log(url: str, rate: float, on_outcome: Callable[[str], None]) -> ImpressionLog:
    """Open the stream of a URL; the topic of a log is created where it is absent.

    Raises:
        ConfigError: The URL or the rate is invalid.
    """
    parts = parse_url(url)
    options = {"max_wait_s": 0.0, "flush_timeout_s": 5.0} if parts.kind == "kafka" else {}
    return ImpressionLog(open_sink(parts, **options), rate, on_outcome)


def stamp_record(record: bytes, scored: ScoredRecords) -> tuple[bytes, bytes, int]:
    """Return the key, the value and the event time of an impression.

    Raises:
        RecordCorrupt: The record cannot be parsed.
    """
    if scored.kind == "example_batch":
        batch: Any = parse_message(MESSAGES.ExampleBatch, record, "a scored record")
        lines = _line_ids(batch)
        stamped = [_stamp(line, scored) for line in lines]
        column = next(each for each in batch.named_feature_list if each.name == LINE_ID)
        for feature, line in zip(column.feature, lines, strict=True):
            feature.bytes_list.value[0] = line.SerializeToString()
        key, time_ms = stamped[0]
        return key, batch.SerializeToString(), time_ms
    message: Any = parse_message(
        MESSAGES.Example if scored.kind == "example" else MESSAGES.Instance, record, "a scored record"
    )
    key, time_ms = _stamp(message.line_id, scored)
    return key, message.SerializeToString(), time_ms


def _line_ids(batch: Any) -> list[Any]:
    """Return the LineIds of a batch, one per row; add their column where it is absent."""
    columns = [each for each in batch.named_feature_list if each.name == LINE_ID]
    if not columns:
        column = batch.named_feature_list.add(name=LINE_ID)
        for _ in range(max(batch.batch_size, 1)):
            column.feature.add().bytes_list.value.append(b"")
        columns = [column]
    return [MESSAGES.LineId.FromString(feature.bytes_list.value[0]) for feature in columns[0].feature]


def _stamp(line_id: Any, scored: ScoredRecords) -> tuple[bytes, int]:
    if not line_id.request_key:
        line_id.request_key = scored.key
    if not line_id.event_time_ms:
        line_id.event_time_ms = scored.time_ms
    line_id.event_kind = IMPRESSION
    line_id.model_version = scored.version
    line_id.cut = scored.cut
    return bytes(line_id.request_key), int(line_id.event_time_ms)
