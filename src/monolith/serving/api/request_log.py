"""Log of sampled requests and responses: TFRecords of PredictionLog, which can warm up a server.

A background thread writes. When its queue is full, samples are dropped and counted; requests never wait. Thread safe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import threading
from collections import deque
from collections.abc import Callable

from monolith.core.errors import ConfigError, MonolithError
from monolith.data.records.tfrecord import TfRecordWriter
from monolith.serving.api.tensors import varint

__all__ = ["RequestLog"]

logger = logging.getLogger(__name__)

_RECORDS_PER_FILE = 256
_MAX_WAITING = 128
_MAX_WAITING_BYTES = 64 << 20
_MAX_FILES = 1024


class RequestLog:
    """Writes files ``<prefix>-<process>-<number>.tfrecord`` of 256 samples each, and keeps the newest 1024 files.

    Args:
        rate: Share of requests to log, from 0 to 1.
        prefix: Path prefix of the files.
        on_outcome: Called with ``written`` or ``dropped`` for each sample.
        seed: Seed of the sampling; None draws one.
    """

    def __init__(self, rate: float, prefix: str, on_outcome: Callable[[str], None], seed: int | None = None) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"request log rate is {rate!r}, expected 0 to 1")
        if rate and not prefix:
            raise ConfigError(f"request log prefix is empty, expected a path prefix for rate {rate}")
        self.rate = rate
        """Share of requests to log, of models without a rate."""
        self._prefix = prefix
        self._on_outcome = on_outcome
        self._random = random.Random(seed)
        self._waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()
        self._bytes = 0
        self._files = 0
        self._paths: deque[str] = deque()
        self._writers: dict[str, TfRecordWriter] = {}
        self._thread = threading.Thread(target=self._write_all, name="request-log", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the writing thread runs."""
        return self._thread.is_alive()

    def wants(self, rate: float | None = None) -> bool:
        """Return whether to log the next request; ``rate`` is the rate of its model."""
        rate = self.rate if rate is None else rate
        return rate > 0 and self._random.random() < rate

    def add(self, request: bytes, response: bytes, prefix: str = "") -> None:
        """Queue one sample: an encoded PredictRequest and PredictResponse."""
        if not (prefix or self._prefix):
            return
        call = b"\x0a" + varint(len(request)) + request + b"\x12" + varint(len(response)) + response
        if not self._put(prefix or self._prefix, b"\x32" + varint(len(call)) + call):
            self._on_outcome("dropped")

    def _put(self, prefix: str, record: bytes) -> bool:
        """Queue a record; return False if the queue is full. An empty queue takes any record."""
        with self._lock:
            if self._bytes and self._bytes + len(record) > _MAX_WAITING_BYTES:
                return False
            try:
                self._waiting.put_nowait((prefix, record))
            except queue.Full:
                return False
            self._bytes += len(record)
            return True

    def close(self) -> None:
        """Write the queued samples and close the files. A second call does nothing."""
        while self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=0.1)
                break
            except queue.Full:
                continue  # the thread is writing, or has died
        self._thread.join()

    def _write_all(self) -> None:
        last_error = ""
        while (sample := self._waiting.get()) is not None:
            try:
                self._write(*sample)
                self._on_outcome("written")
                last_error = ""
            except Exception as error:  # also a prefix that no file can have; the thread must survive
                self._on_outcome("dropped")
                if (writer := self._writers.pop(sample[0], None)) is not None:
                    writer.discard()  # the file may end within a record
                if type(error).__name__ != last_error:  # once, not for each sample of a full disk
                    logger.warning("request log not written prefix=%s error=%s", sample[0], error)
                last_error = type(error).__name__
            with self._lock:
                self._bytes -= len(sample[1])
        for prefix in list(self._writers):
            self._finish(prefix)

    def _write(self, prefix: str, record: bytes) -> None:
        writer = self._writers.get(prefix)
        if writer is None:
            self._files += 1
            path = f"{prefix}-{os.getpid()}-{self._files}.tfrecord"
            writer = TfRecordWriter(path)
            self._paths.append(path)
            self._writers[prefix] = writer
        writer.write(record)
        if writer.records >= _RECORDS_PER_FILE:
            self._finish(prefix)

    def _finish(self, prefix: str) -> None:
        try:
            self._writers.pop(prefix).close()
        except (OSError, MonolithError) as error:
            logger.warning("request log not written prefix=%s error=%s", prefix, error)
        while len(self._paths) > _MAX_FILES:
            with contextlib.suppress(OSError):
                os.unlink(self._paths.popleft())
