"""``KafkaWriter``: sends messages to a topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError
from monolith.data.sources.base import Sink
from monolith.data.sources.kafka.client import load_client

__all__ = ["KafkaWriter"]

_POLL_S = 0.1


class KafkaWriter(Sink):
    """Sends messages in the background, in order within a key. Used by one thread.

    A message that the brokers did not accept within librdkafka's ``message.timeout.ms`` (5 minutes) is lost. The next
    call raises one error for all messages lost since the previous call.

    Args:
        servers: Bootstrap servers, as ``host:port``.
        topic: The topic to write to.
        max_wait_s: How long ``write`` waits for space when too many messages are in flight.
        flush_timeout_s: How long ``flush`` and ``close`` wait for the last messages to arrive.
        config: More settings of librdkafka: security, sizes, times.
        clock: Time source.

    Raises:
        ConfigError: An argument is wrong, or confluent-kafka is not installed.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str,
        *,
        max_wait_s: float = 30.0,
        flush_timeout_s: float = 30.0,
        config: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._servers = ",".join([servers] if isinstance(servers, str) else servers)
        if not self._servers or not topic:
            raise ConfigError(f"servers is {servers!r} and topic is {topic!r}, expected a name for both")
        for name, value in (("max_wait_s", max_wait_s), ("flush_timeout_s", flush_timeout_s)):
            if not 0 <= value <= 3600:
                raise ConfigError(f"{name} is {value!r}, expected 0 to 3600")
        if "bootstrap.servers" in (config or {}):
            raise ConfigError("config holds bootstrap.servers, expected other settings; the writer sets it itself")
        self._topic = topic
        self._max_wait_s = max_wait_s
        self._flush_timeout_s = flush_timeout_s
        self._clock = clock or SystemClock()
        self._client = client = load_client()
        settings = {**(config or {}), "bootstrap.servers": self._servers}
        try:
            self._producer = client.Producer(settings, logger=logging.getLogger(f"{__name__}.client"))
        except client.KafkaException as exc:
            raise ConfigError(f"config is invalid for librdkafka: {exc.args[0].str()}") from exc
        self._lost = 0
        self._reason = ""
        self._is_closed = False

    @override
    def write(self, message: bytes, key: bytes | None = None, time_ms: int | None = None) -> None:
        """Send one message; skip an empty one. Without a time, the client stamps the message.

        Raises:
            ClusterError: Messages were lost, or the queue is still full after ``max_wait_s``.
            ConfigError: The writer is closed, or the message is larger than ``message.max.bytes``.
        """
        if self._is_closed:
            raise ConfigError(f"the writer of topic {self._topic!r} is closed, expected an open one; make a new one")
        if not message:
            return
        deadline = Deadline(self._clock, self._max_wait_s)
        while not self._accepts(message, key, time_ms):
            if deadline.is_past:
                raise ClusterError(
                    f"topic {self._topic!r} on {self._servers}: too many messages are in flight; check the brokers",
                    retryable=True,
                )
            self._producer.poll(min(_POLL_S, deadline.remaining_s()))
        self._producer.poll(0)
        self._raise_losses()

    @override
    def flush(self) -> None:
        """Wait until every message has arrived, for ``flush_timeout_s`` at most.

        Raises:
            ClusterError: Messages were lost, or are still in flight.
        """
        left = 0 if self._is_closed else self._producer.flush(self._flush_timeout_s)
        self._raise_losses()
        if left:
            raise ClusterError(
                f"topic {self._topic!r} on {self._servers}: {left} messages did not arrive within "
                f"{self._flush_timeout_s} s; check the brokers",
                retryable=True,
            )

    @override
    def close(self) -> None:
        """Flush and disconnect; drop messages that did not arrive in time. May be called twice.

        Raises:
            ClusterError: Messages were lost.
        """
        try:
            self.flush()
        finally:
            if not self._is_closed:
                self._is_closed = True
                self._producer.purge()
                self._producer.poll(0)

    def _accepts(self, message: bytes, key: bytes | None, time_ms: int | None) -> bool:
        stamp = {} if time_ms is None else {"timestamp": time_ms}
        try:
            self._producer.produce(self._topic, message, key, on_delivery=self._note, **stamp)
        except BufferError:
            return False
        except self._client.KafkaException as exc:
            raise ConfigError(
                f"topic {self._topic!r}: a message of {len(message)} bytes was rejected: {exc.args[0].str()}"
            ) from exc
        return True

    def _note(self, error: Any, _: Any) -> None:
        if error is not None and not self._is_closed:
            self._lost += 1
            self._reason = error.str()

    def _raise_losses(self) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            raise ClusterError(
                f"topic {self._topic!r} on {self._servers}: {lost} messages were lost: {self._reason}",
                retryable=True,
            )
