"""``StartOffsets``: asks the brokers at which offset a partition begins.

It reads watermarks and committed offsets, and searches for the first message of a time. It uses the caller's consumer
and imports no client. The source decides which of the offsets applies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from monolith.core.errors import ConfigError, DataError

__all__ = ["Partition", "Start", "StartOffsets", "check_start", "parse_start"]

Partition: TypeAlias = tuple[str, int]
"""Topic and number."""

Start: TypeAlias = Literal["earliest", "latest", "committed"] | float
"""The first message, the end, the group's committed offset, or the first message at or after a unix time in seconds."""

_NO_TIMESTAMP = 0


def check_start(start: object) -> Start:
    """Return ``start`` if it is valid.

    Raises:
        ConfigError: ``start`` is neither one of the words nor a time in seconds.
    """
    if start == "earliest" or start == "latest" or start == "committed":
        return start
    if isinstance(start, int | float) and not isinstance(start, bool) and 0 <= start < 1e11:
        return start
    raise ConfigError(f"start is {start!r}, expected 'earliest', 'latest', 'committed' or a unix time in seconds")


def parse_start(text: str) -> Start:
    """Return the start that a setting names: one of the words, or a unix time in seconds.

    Raises:
        ConfigError: ``text`` is neither.
    """
    try:
        return check_start(float(text))
    except ValueError:
        return check_start(text)


class StartOffsets:
    """Asks the brokers for offsets. Every method raises the client's exception when no broker answers in time.

    Args:
        client: The ``confluent_kafka`` module.
        consumer: The consumer whose group and connection are used.
        new_probe: Makes a separate consumer for single messages; it must report the end of partitions.
        timeout_s: Timeout of one request.
    """

    def __init__(self, client: Any, consumer: Any, new_probe: Callable[[], Any], timeout_s: float) -> None:
        self._client = client
        self._consumer = consumer
        self._new_probe = new_probe
        self._timeout_s = timeout_s

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the group's committed offsets; partitions without one are left out."""
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

    def check(self, partition: Partition, offset: int) -> int:
        """Return ``offset`` if the broker still has it.

        Raises:
            DataError: The broker has deleted the message, or the partition ends before it.
        """
        low, high = self._watermarks(partition)
        if not low <= offset <= high:
            raise DataError(
                f"kafka {partition[0]}[{partition[1]}]: offset {offset} is gone, the broker has {low} to {high}; start "
                "without the saved position and with start='earliest' to lose least, and set a retention of the "
                "topic that is longer than the time between checkpoints"
            )
        return offset

    def messages(self, partition: Partition, begin: int, end: int) -> list[Any]:
        """Return the messages with offsets in [begin, end), even if another member holds the partition.

        Raises:
            DataError: The broker has deleted them.
        """
        self.check(partition, begin)
        self.check(partition, end)
        messages: list[Any] = []
        probe = self._new_probe()
        try:
            message = self._message_at(probe, partition, begin)
            while message is not None and message.offset() < end:
                messages.append(message)
                message = self._next_message(probe) if message.offset() + 1 < end else None
        finally:
            probe.close()
        return messages

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
        # A broker that cannot search by time gives the same answer as "no later message": check the last message.
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
        """Return the first message at or after an offset, None at the end. Offsets may have gaps."""
        probe.assign([self._client.TopicPartition(*partition, offset)])
        return self._next_message(probe)

    def _next_message(self, probe: Any) -> Any:
        """Return the next message, None at the end of the partition."""
        error_class = self._client.KafkaError
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
                f"messages of topic {message.topic()!r} have no timestamps; use 'earliest', 'latest' or 'committed'"
            )
        return int(time_ms)

    def _refuse_error(self, error: Any) -> None:
        if error is not None:
            raise self._client.KafkaException(error)
