"""Dump sampled predictions of a run to files or to a Kafka topic.

:mod:`monolith.training.metrics.prediction_messages` builds the messages.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from monolith.core.clock import Clock
from monolith.core.errors import ClusterError, ConfigError
from monolith.data.prediction_files import PredictionFiles
from monolith.data.sources.kafka.writer import KafkaWriter
from monolith.training.hooks.base import Hook
from monolith.training.metrics.prediction_messages import folder_by_day, prediction_messages, sampled_rows
from monolith.training.run import Run, StepResult

__all__ = ["PredictionDumpHook", "PredictionSink", "PredictionTopic", "prediction_files", "prediction_topic"]

logger = logging.getLogger(__name__)


class PredictionSink(Protocol):
    """Where messages go; used by one thread."""

    def write(self, message: Mapping[str, Any], /) -> None:
        """Add one message."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class PredictionTopic:
    """Messages as JSON in a Kafka topic, those of a user in order."""

    def __init__(self, writer: KafkaWriter) -> None:
        self._writer = writer

    def write(self, message: Mapping[str, Any], /) -> None:
        """Send one message, with the uid as its key."""
        self._writer.write(json.dumps(message).encode(), str(message.get("uid", "")).encode())

    def close(self) -> None:
        """Flush and disconnect."""
        self._writer.close()


def prediction_files(
    base: str | os.PathLike[str], *, worker: int = 0, extension: str = "txt", clock: Clock | None = None
) -> PredictionFiles:
    """Return a sink of files under ``<base>/<model_name>/<day>/worker_<n>``."""
    return PredictionFiles(base, worker=worker, extension=extension, folder=folder_by_day, clock=clock)


def prediction_topic(
    servers: str | Sequence[str], topic: str, *, config: Mapping[str, Any] | None = None
) -> PredictionTopic:
    """Return a sink in Kafka that never makes training wait: when too much is under way, messages are lost instead."""
    return PredictionTopic(KafkaWriter(servers, topic, max_wait_s=0.0, config=config))


class PredictionDumpHook(Hook):
    """Sends predictions and labels of a sample of users, computed before the step trains on the batch.

    A sink that cannot be reached does not end the run: its messages are dropped and counted.

    Args:
        open_sink: Opens the sink of the messages at the start of a run; the hook closes it at the end.
        model_name: Name of the model in messages.
        sample_ratio: The share of users; see ``sampled_rows``.
        heads: The heads to tell of; None = all.
        extra_fields: Further fields of the batch to tell of.
    """

    def __init__(
        self,
        open_sink: Callable[[], PredictionSink],
        model_name: str,
        *,
        sample_ratio: float = 0.01,
        heads: Sequence[str] | None = None,
        extra_fields: Sequence[str] = (),
    ) -> None:
        if not 0 <= sample_ratio <= 1:
            raise ConfigError(f"deep_insight_sample_ratio must be between 0 and 1, got {sample_ratio}")
        if not model_name:
            raise ConfigError("sampled predictions need a name of the model; set deep_insight_name")
        self._open_sink = open_sink
        self._sink: PredictionSink | None = None
        self._model_name = model_name
        self._ratio = sample_ratio
        self._heads = None if heads is None else list(heads)
        self._extra_fields = list(extra_fields)
        self._has_warned = False
        self.written = 0
        """Messages handed to the sink so far."""
        self.failures = 0
        """How often the sink reported lost messages."""

    def on_start(self, run: Run) -> None:
        """Make the sink."""
        self._sink = self._open_sink()

    def after_step(self, run: Run, result: StepResult) -> None:
        """Send the sampled rows."""
        if self._sink is None:
            return
        rows = sampled_rows(result.batch.uid, self._ratio)
        if not len(rows):
            self._warn_without_users(result)
            return
        heads = {name: result.heads[name] for name in self._chosen(result)}
        for message in prediction_messages(
            rows, result.batch, heads, model_name=self._model_name, extra_fields=self._extra_fields
        ):
            try:
                self._sink.write(message)
            except ClusterError as error:
                self._note(error)
                return
            self.written += 1

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Flush and close the sink."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        try:
            sink.close()
        except ClusterError as exc:
            self._note(exc)

    def _chosen(self, result: StepResult) -> list[str]:
        chosen = list(result.heads) if self._heads is None else self._heads
        if unknown := [name for name in chosen if name not in result.heads]:
            raise ConfigError(
                f"deep_insight_target names {', '.join(unknown)}, the model has the heads {', '.join(result.heads)}"
            )
        return chosen

    def _note(self, error: ClusterError) -> None:
        self.failures += 1
        # The first of many: the sink tells of an outage with every batch.
        log = logger.warning if self.failures == 1 else logger.debug
        log("sampled predictions lost model=%s error=%s", self._model_name, error)

    def _warn_without_users(self, result: StepResult) -> None:
        if not self._has_warned and self._ratio > 0 and not result.batch.uid.any():
            self._has_warned = True
            logger.warning(
                "no row of the batch has a uid, so no prediction is sampled step=%d; "
                "have the records carry one, or set deep_insight_sample_ratio=1",
                result.step,
            )
