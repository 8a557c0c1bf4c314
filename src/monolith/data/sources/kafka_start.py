"""Where the reading of a Kafka partition begins: watermarks, committed offsets, and the search for a time.

Works on a consumer that it is given and imports no client. What a place means for a source (saved, started, taken over)
is the source's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from monolith.core.errors import ConfigError, DataError

__all__ = ["Partition", "Start", "StartPlaces", "checked_start"]

Partition: TypeAlias = tuple[str, int]
"""Topic and number."""

Start: TypeAlias = Literal["earliest", "latest", "committed"] | float
"""The first message, the end, where the group was, or the first message at or after a unix time in seconds."""

_NO_TIMESTAMP = 0


def checked_start(start: object) -> Start:
    """Return ``start``, or raise ``ConfigError``."""
    if start == "earliest" or start == "latest" or start == "committed":
        return start
    if isinstance(start, int | float) and not isinstance(start, bool) and 0 <= start < 1e11:
        return start
    raise ConfigError(f"start must be 'earliest', 'latest', 'committed' or a unix time in seconds, got {start!r}")


class StartPlaces:
    """Asks the brokers for offsets. Every method raises the client's exception when they do not answer in time.

    Args:
        client: The ``confluent_kafka`` module.
        consumer: The consumer whose group and connection are used.
        new_probe: Makes a consumer of its own that reports the end of partitions, for reading single messages.
        timeout_s: How long one question may take.
    """

    def __init__(self, client: Any, consumer: Any, new_probe: Callable[[], Any], timeout_s: float) -> None:
        self._client = client
        self._consumer = consumer
        self._new_probe = new_probe
        self._timeout_s = timeout_s

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offsets that the group has committed, of those partitions that have one."""
        asked = [self._client.TopicPartition(topic, number) for topic, number in partitions]
        answers = self._consumer.committed(asked, timeout=self._timeout_s)
        for answer in answers:
            self._refuse_error(answer.error)
        return {(answer.topic, answer.partition): answer.offset for answer in answers if answer.offset >= 0}

    def at(self, start: Start, partition: Partition) -> int:
        """Return the offset at which a partition begins when the group has committed nothing for it."""
        low, high = self._watermarks(partition)
        if start == "latest":
            return high
        if isinstance(start, str):
            return low
        return self._at_time(partition, low, high, int(start * 1000))

    def checked(self, partition: Partition, offset: int) -> int:
        """Return the offset, or raise ``DataError`` when the partition does not have it (any more)."""
        low, high = self._watermarks(partition)
        if not low <= offset <= high:
            raise DataError(
                f"kafka {partition[0]}[{partition[1]}]: offset {offset} is gone, the broker has {low} to {high}; start "
                "without the saved place, with start='earliest' to lose least, and keep messages longer than "
                "checkpoints are apart"
            )
        return offset

    def _watermarks(self, partition: Partition) -> tuple[int, int]:
        answer = self._consumer.get_watermark_offsets(self._client.TopicPartition(*partition), timeout=self._timeout_s)
        if answer is None:
            raise self._client.KafkaException(self._client.KafkaError(self._client.KafkaError._TIMED_OUT))
        low, high = answer
        return int(low), int(high)

    def _at_time(self, partition: Partition, low: int, high: int, time_ms: int) -> int:
        asked = self._client.TopicPartition(*partition, time_ms)
        [answer] = self._consumer.offsets_for_times([asked], timeout=self._timeout_s)
        self._refuse_error(answer.error)
        if answer.offset >= 0:
            return int(answer.offset)
        if low >= high:
            return high
        # "No message is that late" is also the answer of a broker that cannot search, so the last message is looked at.
        probe = self._new_probe()
        try:
            last = self._message_at(probe, partition, high - 1)
            if last is not None and self._time_ms(last) < time_ms:
                return high
            return self._search(probe, partition, low, high, time_ms)
        finally:
            probe.close()

    def _search(self, probe: Any, partition: Partition, low: int, high: int, time_ms: int) -> int:
        while low < high:
            middle = (low + high) // 2
            message = self._message_at(probe, partition, middle)
            if message is None or self._time_ms(message) >= time_ms:
                high = middle
            else:
                low = message.offset() + 1
        return low

    def _message_at(self, probe: Any, partition: Partition, offset: int) -> Any:
        """The first message at or after an offset, None when there is none; offsets may have holes."""
        error_class = self._client.KafkaError
        probe.assign([self._client.TopicPartition(*partition, offset)])
        message = probe.poll(self._timeout_s)
        if message is None:
            raise self._client.KafkaException(error_class(error_class._TIMED_OUT))
        error = message.error()
        if error is None:
            return message
        if error.code() == error_class._PARTITION_EOF:
            return None
        raise self._client.KafkaException(error)

    def _time_ms(self, message: Any) -> int:
        kind, time_ms = message.timestamp()
        if kind == _NO_TIMESTAMP:
            raise ConfigError(
                f"messages of topic {message.topic()!r} carry no times; start at 'earliest', 'latest' or 'committed'"
            )
        return int(time_ms)

    def _refuse_error(self, error: Any) -> None:
        if error is not None:
            raise self._client.KafkaException(error)
