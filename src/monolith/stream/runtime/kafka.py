"""``KafkaInput`` and ``KafkaSink``: partitions of Kafka topics as ports of a join.

A sink appends a batch in one transaction. Every record has its sequence number in a header, so a restart finds the last
committed number in the topic. ``init_transactions`` fences an older process. Readers of the output need
``isolation.level=read_committed``. Offsets are in the journal of the join; the consumer group only informs observers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from monolith import _native
from monolith.core.errors import ClusterError, ConfigError, DataError
from monolith.data.sources.kafka.client import load_client
from monolith.stream.native_core import JoinBatch
from monolith.stream.runtime.ports import JoinInput, JoinSink, Lot

__all__ = ["KafkaInput", "KafkaSink", "count_partitions"]

logger = logging.getLogger(__name__)

_QUESTION_S = 10.0
_TRANSACTION_S = 30.0
_SEQUENCE = "monolith-sequence"
_ATTEMPTS = 5  # of one transaction
_ATTEMPT_PAUSE_S = 0.2
_APPEND_TIME = 2  # TIMESTAMP_LOG_APPEND_TIME of the client


def count_partitions(servers: str, topic: str, config: Mapping[str, str]) -> int:
    """Return the number of partitions of a topic.

    Raises:
        ConfigError: The topic does not exist.
        ClusterError: The brokers do not answer.
    """
    client = load_client()
    consumer = _make_consumer(servers, "monolith-join-probe", config)
    try:
        found = consumer.list_topics(topic, timeout=_QUESTION_S).topics[topic]
    except client.KafkaException as error:
        raise ClusterError(f"brokers {servers!r} do not answer: {error.args[0].str()}", retryable=True) from error
    finally:
        consumer.close()
    if found.error is not None or not found.partitions:
        raise ConfigError(f"topic {topic!r} does not exist on {servers!r}; create the topic with its partitions")
    return len(found.partitions)


class KafkaInput(JoinInput):
    """One partition of a Kafka topic.

    The ingest time of a record is its append time if the topic has ``message.timestamp.type=LogAppendTime``, else the
    clock of the reader, which the journal repeats.

    Args:
        servers: Bootstrap servers.
        topic: The topic.
        partition: The partition.
        group: Consumer group whose offset follows the snapshots.
        start: Where to begin without a snapshot.
        on_lost: "raise" if retention removed the next record, or continue at the "earliest" one.
        config: More settings of librdkafka.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        partition: int,
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        on_lost: Literal["raise", "earliest"] = "raise",
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._client = load_client()
        self._topic = topic
        self._number = partition
        self._on_lost = on_lost
        self._consumer = _make_consumer(servers, group, config or {})
        self._lost = 0
        self._next = 0
        self._has_reached_end = False
        self._is_closed = False
        first, end = self._watermarks()
        self._assign(first if start == "earliest" else end)

    @property
    @override
    def topic(self) -> str:
        return self._topic

    @property
    @override
    def partition(self) -> int:
        return self._number

    @property
    @override
    def lost_records(self) -> int:
        return self._lost

    @override
    def read(self, most_records: int, wait_s: float) -> Lot | None:
        messages = self._consumer.consume(most_records, max(wait_s, 0.01))
        kept = []
        for message in messages:
            if (error := message.error()) is None:
                kept.append(message)
                self._next = int(message.offset()) + 1
                self._has_reached_end = False
            elif error.code() == self._client.KafkaError._AUTO_OFFSET_RESET or (
                error.code() == self._client.KafkaError.OFFSET_OUT_OF_RANGE
            ):
                self._handle_loss()
                break
            elif error.code() == self._client.KafkaError._PARTITION_EOF:
                # A marker of a transaction takes an offset and gives no message: only the end passes it.
                self._next = max(self._next, int(message.offset()))
                self._has_reached_end = True
            else:
                if error.fatal() or not error.retriable():
                    raise ClusterError(f"topic {self._topic}[{self._number}]: {error.str()}", retryable=True)
                logger.warning("Kafka error topic=%s error=%s", self._topic, error.str())
        if not kept:
            return None
        kinds = [message.timestamp() for message in kept]
        uses_clock = any(kind != _APPEND_TIME for kind, _ in kinds)
        now_ms = time.time_ns() // 1_000_000
        ingest = np.array([now_ms if uses_clock else stamp for _, stamp in kinds], np.int64)
        times = np.array([stamp for _, stamp in kinds], np.int64)
        values = _native.Records([message.value() or b"" for message in kept], f"kafka {self._topic}[{self._number}]")
        batch = JoinBatch(values, ingest, [message.key() or b"" for message in kept], times)
        return Lot(batch, [message.offset() for message in kept], uses_clock)

    @override
    def is_at_end(self) -> bool:
        return self._next >= self._watermarks()[1]

    @override
    def has_reached_end(self) -> bool:
        return self._has_reached_end

    @override
    def position(self) -> Mapping[str, Any]:
        return {"offset": self._next}

    @override
    def resume(self, position: Mapping[str, Any]) -> None:
        first, _ = self._watermarks()
        if position["offset"] < first:
            self._next = position["offset"]
            self._handle_loss()
        else:
            self.skip_to(position["offset"])

    @override
    def skip_to(self, offset: int) -> None:
        if offset == self._next:
            return
        first, end = self._watermarks()
        if not first <= offset <= end:
            raise DataError(
                f"topic {self._topic}[{self._number}] has offsets {first} to {end}, expected {offset}; raise the "
                "retention, or start with an empty --state folder"
            )
        self._assign(offset)

    @override
    def committed(self, position: Mapping[str, Any]) -> None:
        place = self._client.TopicPartition(self._topic, self._number, position["offset"])
        try:
            self._consumer.commit(offsets=[place], asynchronous=True)
        except self._client.KafkaException as error:
            logger.warning("group commit failed topic=%s error=%s", self._topic, error.args[0].str())

    @override
    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._consumer.close()

    def _assign(self, offset: int) -> None:
        self._next = offset
        self._has_reached_end = False
        self._consumer.assign([self._client.TopicPartition(self._topic, self._number, offset)])

    def _watermarks(self) -> tuple[int, int]:
        place = self._client.TopicPartition(self._topic, self._number)
        try:
            first, end = self._consumer.get_watermark_offsets(place, timeout=_QUESTION_S)
        except self._client.KafkaException as error:
            raise ClusterError(f"topic {self._topic}[{self._number}]: {error.args[0].str()}", retryable=True) from error
        return int(first), int(end)

    def _handle_loss(self) -> None:
        first, _ = self._watermarks()
        if self._on_lost == "raise":
            raise DataError(
                f"topic {self._topic}[{self._number}] begins at offset {first}, expected {self._next}; "
                "retention removed the records between: raise the retention, or pass --on-lost earliest"
            )
        self._lost += max(0, first - self._next)
        logger.warning("records lost to retention topic=%s records=%d", self._topic, first - self._next)
        self._assign(first)


class KafkaSink(JoinSink):
    """One partition of a Kafka topic, written in transactions.

    Args:
        servers: Bootstrap servers.
        topic: The topic.
        partition: The partition.
        name: Name of the join, part of the transaction id.
        config: More settings of librdkafka.
    """

    def __init__(
        self, servers: str, topic: str, partition: int, *, name: str, config: Mapping[str, str] | None = None
    ) -> None:
        self._client = load_client()
        self._servers = servers
        self._topic = topic
        self._partition = partition
        self._id = f"{name}-{topic}-{partition}"
        self._config = dict(config or {})
        self._producer: Any = None

    @override
    def take_over(self) -> int:
        settings = {**self._config, "bootstrap.servers": self._servers, "transactional.id": self._id, "linger.ms": 1}
        try:
            self._producer = self._client.Producer(settings)
        except self._client.KafkaException as error:
            raise ConfigError(
                f"config of topic {self._topic!r} is invalid for a transactional producer: {error.args[0].str()}; "
                "correct the file that config= of the URL names"
            ) from error
        try:
            self._producer.init_transactions(_TRANSACTION_S)
        except self._client.KafkaException as error:
            raise ClusterError(f"topic {self._topic!r}: {error.args[0].str()}", retryable=True) from error
        return self._find_last_sequence()

    @override
    def append(self, sequence: int, keys: Sequence[bytes], values: Sequence[bytes], times_ms: Sequence[int]) -> None:
        headers = [(_SEQUENCE, f"{self._id}:{sequence}".encode())]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._producer.begin_transaction()
                for key, value, time_ms in zip(keys, values, times_ms, strict=True):
                    self._produce(key, value, max(0, time_ms), headers)
                self._producer.commit_transaction(_TRANSACTION_S)
                return
            except self._client.KafkaException as error:
                reason = error.args[0]
                if reason.code() == self._client.KafkaError.MSG_SIZE_TOO_LARGE:
                    largest = max(len(key) + len(value) for key, value in zip(keys, values, strict=True))
                    raise ConfigError(
                        f"topic {self._topic!r}: the largest of {len(values)} records has {largest} bytes, expected a "
                        f"batch below the limits of client and topic: {reason.str()}; raise message.max.bytes in the "
                        "config of the URL, and max.message.bytes of the topic"
                    ) from error
                if not reason.txn_requires_abort():
                    raise ClusterError(
                        f"topic {self._topic!r}: transaction of {self._id!r} failed: {reason.str()}; another process "
                        "may own the partition, restart this one"
                    ) from error
                if attempt == _ATTEMPTS:
                    raise ClusterError(
                        f"topic {self._topic!r}: transaction of {self._id!r} failed {attempt} times: {reason.str()}; "
                        "check the brokers and restart",
                        retryable=True,
                    ) from error
                logger.warning("transaction aborted topic=%s error=%s", self._topic, reason.str())
                self._abort()
                time.sleep(_ATTEMPT_PAUSE_S)

    @override
    def close(self) -> None:
        self._producer = None

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(_TRANSACTION_S)
        except self._client.KafkaException as error:
            raise ClusterError(
                f"topic {self._topic!r}: transaction of {self._id!r} cannot be aborted: {error.args[0].str()}; check "
                "the brokers and restart",
                retryable=True,
            ) from error

    def _produce(self, key: bytes, value: bytes, time_ms: int, headers: list[tuple[str, bytes]]) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, partition=self._partition, timestamp=time_ms, headers=headers
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _find_last_sequence(self) -> int:
        """Return the sequence in the last committed record of this sink; 0 for none."""
        consumer = _make_consumer(self._servers, self._id, self._config)
        try:
            place = self._client.TopicPartition(self._topic, self._partition)
            first, end = consumer.get_watermark_offsets(place, timeout=_QUESTION_S)
            back = 16
            while end > first:
                begin = max(first, end - back)
                consumer.assign([self._client.TopicPartition(self._topic, self._partition, begin)])
                if sequence := self._read_sequences(consumer, end):
                    return sequence
                if begin == first:
                    break
                back *= 16
            return 0
        except self._client.KafkaException as error:
            raise ClusterError(f"topic {self._topic!r}: {error.args[0].str()}", retryable=True) from error
        finally:
            consumer.close()

    def _read_sequences(self, consumer: Any, end: int) -> int:
        last = 0
        deadline_s = time.monotonic() + _TRANSACTION_S
        while time.monotonic() < deadline_s:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == self._client.KafkaError._PARTITION_EOF:
                    return last
                raise ClusterError(f"topic {self._topic!r}: {message.error().str()}", retryable=True)
            for name, value in message.headers() or []:
                owner, _, sequence = value.decode().rpartition(":") if name == _SEQUENCE else ("", "", "")
                if owner == self._id:
                    last = max(last, int(sequence))
            if message.offset() >= end - 1:
                return last
        raise ClusterError(f"topic {self._topic!r} gave no record within {_TRANSACTION_S} s; check the brokers")


def _make_consumer(servers: str, group: str, config: Mapping[str, str]) -> Any:
    client = load_client()
    settings = {
        **config,
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    try:
        return client.Consumer(settings, logger=logging.getLogger(f"{__name__}.client"))
    except client.KafkaException as error:
        raise ConfigError(f"config is invalid for librdkafka: {error.args[0].str()}") from error
