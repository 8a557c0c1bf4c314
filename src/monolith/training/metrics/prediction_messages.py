"""Predictions as messages: sampling of rows, and the fields of each message.

A user is sampled as a whole: all rows whose uid falls into the first buckets of a thousand, so that the sample holds
whole histories and is the same in every run and on every worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch
from monolith.data.prediction_files import folder_of
from monolith.training.metrics.batch_fields import field_values, on_host

if TYPE_CHECKING:
    from monolith.training.run import HeadResult

__all__ = ["UID_BUCKETS", "folder_by_day", "prediction_messages", "sampled_rows"]

UID_BUCKETS = 1000

_GID_NAMES = ("__FEED_ID__", "feedid", "gid")


def sampled_rows(uid: Any, ratio: float) -> NDArray[np.int64]:
    """Return the rows with ``uid mod 1000 < 1000 · ratio``, rounded up to whole buckets.

    A row without a uid (0) is sampled only when all rows are.

    >>> sampled_rows([1000, 1010, 9, 10, 0, -1], 0.01).tolist()
    [0, 2]

    Raises:
        ConfigError: ``ratio`` is not between 0 and 1.
    """
    if not 0 <= ratio <= 1:
        raise ConfigError(f"the sample ratio must be between 0 and 1, got {ratio}")
    ids = on_host(uid).astype(np.int64)
    if ratio == 1:
        return np.arange(len(ids))
    buckets = math.ceil(ratio * UID_BUCKETS - 1e-9)
    return np.flatnonzero((ids % UID_BUCKETS < buckets) & (ids != 0))


def prediction_messages(
    rows: NDArray[np.int64],
    batch: Batch,
    heads: Mapping[str, HeadResult],
    *,
    model_name: str,
    extra_fields: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Yield a message of JSON values for each of ``rows``.

    ``predict`` and ``label`` map heads to numbers; a label that is not there is left out. Extra fields are put by
    their type into ``extra_int``, ``extra_float`` and ``extra_str``, and a name of the item id on top as well, where
    ``PredictionFiles`` looks for it. Fields of several values are lists.

    Raises:
        ConfigError: The batch has no field of such a name.
    """
    chosen = rows.tolist()
    extras = {name: field_values(batch, name, chosen) for name in extra_fields}
    uid, time_s, rate = (on_host(each)[rows].tolist() for each in (batch.uid, batch.event_time_s, batch.sample_rate))
    predict = {name: on_host(head.predictions)[rows].tolist() for name, head in heads.items()}
    label = {name: _labels(head, rows) for name, head in heads.items()}
    for place in range(len(chosen)):
        message: dict[str, Any] = {
            "model_name": model_name,
            "req_time": time_s[place],
            "uid": uid[place],
            "sample_rate": rate[place],
            "predict": {name: values[place] for name, values in predict.items()},
            "label": {name: values[place] for name, values in label.items() if values[place] is not None},
        }
        for name, values in extras.items():
            _add_extra(message, name, values[place])
        yield message


def folder_by_day(message: Mapping[str, Any], worker: int, base: Path) -> Path:
    """Return ``<base>/<model_name>/<YYYYMMDD>/worker_<n>``, the day of ``req_time`` in UTC, for ``PredictionFiles``.

    >>> folder_by_day({"model_name": "m", "req_time": 1_700_000_000}, 3, Path("/base")).as_posix()
    '/base/m/20231114/worker_3'

    Raises:
        DataError: The model's name would lead out of ``base``, or the time is out of range.
    """
    try:
        day = datetime.fromtimestamp(message["req_time"], UTC).strftime("%Y%m%d")
    except (OverflowError, ValueError, OSError) as exc:
        raise DataError(f"req_time is {message['req_time']}, expected unix time in seconds") from exc
    return folder_of({"model_name": message["model_name"], "req_time": day}, worker, base)


def _labels(head: HeadResult, rows: NDArray[np.int64]) -> list[float | None]:
    if head.label is None:
        return [None] * len(rows)
    labels = on_host(head.label)[rows].tolist()
    is_there = [True] * len(rows) if head.mask is None else on_host(head.mask)[rows].tolist()
    return [value if there else None for value, there in zip(labels, is_there, strict=True)]


def _add_extra(message: dict[str, Any], name: str, values: list[Any]) -> None:
    value = values[0] if len(values) == 1 else values
    group = {str: "extra_str", int: "extra_int"}.get(type(values[0]) if values else float, "extra_float")
    message.setdefault(group, {})[name] = value
    if name in _GID_NAMES:
        message[name] = value
