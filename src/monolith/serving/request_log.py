"""A sample of the requests and their answers, in files: TFRecords of PredictionLog, which can warm a server up again.

Writing is done by a thread of its own; when it is behind, samples are dropped and counted, and no request waits.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
from collections.abc import Callable

from monolith.core.errors import ConfigError, MonolithError
from monolith.data.records.tfrecord import TfRecordWriter
from monolith.serving.tensors import varint

__all__ = ["RequestLog"]

logger = logging.getLogger(__name__)

_RECORDS_PER_FILE = 256
_MAX_WAITING = 128


class RequestLog:
    """Writes ``<prefix>-<process>-<number>.tfrecord``, a file for every 256 samples.

    Args:
        rate: Share of the requests that are written, from 0 to 1.
        prefix: Begin of the files' names, with their folder.
        on_outcome: Told ``written`` or ``dropped`` for each sample.
        seed: Of the sampling; None = another one at every start.
    """

    def __init__(self, rate: float, prefix: str, on_outcome: Callable[[str], None], seed: int | None = None) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"request log rate is {rate}; give 0 to 1")
        if rate and not prefix:
            raise ConfigError(f"request log rate is {rate} without a prefix; say where the files go")
        self._rate = rate
        self._prefix = prefix
        self._on_outcome = on_outcome
        self._random = random.Random(seed)
        self._waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_MAX_WAITING)
        self._files = 0
        self._writers: dict[str, TfRecordWriter] = {}
        self._thread = threading.Thread(target=self._write_all, name="request-log", daemon=True)
        self._thread.start()

    def wants(self, rate: float | None = None) -> bool:
        """Say whether the next request is in the sample; ``rate`` is that of its model."""
        rate = self._rate if rate is None else rate
        return rate > 0 and self._random.random() < rate

    def add(self, request: bytes, response: bytes, prefix: str = "") -> None:
        """Take one sample: the wire forms of a PredictRequest and a PredictResponse."""
        if not (prefix or self._prefix):
            return
        call = b"\x0a" + varint(len(request)) + request + b"\x12" + varint(len(response)) + response
        try:
            self._waiting.put_nowait((prefix or self._prefix, b"\x32" + varint(len(call)) + call))
        except queue.Full:
            self._on_outcome("dropped")

    def close(self) -> None:
        """Write what waits and finish the files."""
        self._waiting.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        while (sample := self._waiting.get()) is not None:
            try:
                self._write(*sample)
                self._on_outcome("written")
            except (OSError, MonolithError) as error:
                self._on_outcome("dropped")
                logger.warning("the request log cannot be written prefix=%s error=%s", sample[0], error)
        for prefix in list(self._writers):
            self._finish(prefix)

    def _write(self, prefix: str, record: bytes) -> None:
        writer = self._writers.get(prefix)
        if writer is None:
            self._files += 1
            writer = TfRecordWriter(f"{prefix}-{os.getpid()}-{self._files}.tfrecord")
            self._writers[prefix] = writer
        writer.write(record)
        if writer.records >= _RECORDS_PER_FILE:
            self._finish(prefix)

    def _finish(self, prefix: str) -> None:
        try:
            self._writers.pop(prefix).close()
        except (OSError, MonolithError) as error:
            logger.warning("the request log cannot be written prefix=%s error=%s", prefix, error)
