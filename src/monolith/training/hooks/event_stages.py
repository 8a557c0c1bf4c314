"""Stages of a row on its way to servers, from the stamps that its LineId carries.

``STAMPS`` are the LineId fields that a stream needs; ``with_stamps`` adds them to a schema. ``measure_stages`` returns
the durations up to the end of a step, for a sample of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.data import Batch, Schema
from monolith.stream.line_id import FIELDS
from monolith.sync.event_ages import TrainedRows
from monolith.training.metrics.batch_fields import on_host

__all__ = ["STAMPS", "measure_stages", "trained_rows", "with_stamps"]

STAMPS = ("event_time_ms", "cause_time_ms", "ingest_time_ms", "join_time_ms", "emission")
"""Fields of LineId with the times of a row."""

_SAMPLE = 32


def with_stamps(schema: Schema) -> Schema:
    """Return a schema that also reads the stamps, unless it has other extra fields of LineId."""
    if schema.extras or schema.line_fields != Schema().line_fields:
        return schema
    return replace(schema, extras=STAMPS, line_fields=FIELDS)


def trained_rows(batch: Batch, now_s: float) -> TrainedRows | None:
    """Return the event times of the rows of a step; None if the batch has no stamps.

    Rows that undo an earlier emission do not count.
    """
    if "cause_time_ms" not in batch.extras:
        return None
    cause_ms = _stamp(batch, "cause_time_ms")
    is_counted = (cause_ms > 0) & (on_host(batch.weight) >= 0)
    return TrainedRows(now_s, cause_ms[is_counted] / 1000)


def measure_stages(batch: Batch, now_s: float) -> Iterator[tuple[str, float]]:
    """Yield stage and seconds for a sample of the rows of a step; a negative duration is clock skew."""
    if "cause_time_ms" not in batch.extras:
        return
    stride = max(1, batch.size // _SAMPLE)
    event, cause, ingest, join, emission = (_stamp(batch, name)[::stride] for name in STAMPS)
    for row in range(len(event)):
        if not join[row]:
            continue
        if ingest[row] and not emission[row]:
            yield "ingest", float(ingest[row] - event[row]) / 1000
        yield "join", float(join[row] - max(ingest[row], cause[row])) / 1000
        yield "train", now_s - float(join[row]) / 1000


def _stamp(batch: Batch, name: str) -> NDArray[np.float64]:
    column: Any = on_host(batch.extras[name])
    return np.asarray(column, np.float64).reshape(-1)
