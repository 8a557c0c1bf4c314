"""The end of a stream as batches: real ones, then stop batches without end.

Workers that take every step together cannot stop reading alone. A worker without data continues with batches that have
no effect on the model and are marked as such, until all workers reach the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from monolith.core.errors import DataError
from monolith.data import Batch, Dataset
from monolith.data.batch import Ragged

__all__ = ["STOPPING", "StopBatches", "is_stopping"]

STOPPING = "stopping"
"""The extra of a batch, (size,) bool: whether it is a stop batch."""


class StopBatches:
    """The batches of a dataset, then stop batches for ever. Each has the extra ``stopping``.

    A stop batch is like the last real one with empty ids, no label and weight 0.

    Args:
        dataset: A dataset that ends, in batches.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, then stop batches without end.

        Raises:
            DataError: There was no batch to make stop batches like.
        """
        last: Batch | None = None
        for batch in self._dataset:
            last = batch
            yield _mark(batch, False)
        if last is None:
            raise DataError("the data ended before its first batch, so stop batches have no form; check the files")
        stop = _mark(_empty(last), True)
        while True:
            yield stop

    def state(self) -> dict[str, Any]:
        """Return the dataset's position, which is its end during stop batches."""
        return self._dataset.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Start at a position of ``state``."""
        self._dataset.restore(state)

    def committed(self, state: Mapping[str, Any]) -> None:
        """Pass on that a checkpoint holds ``state``."""
        self._dataset.committed(state)


def is_stopping(batch: Batch) -> bool:
    """Return whether a batch is a stop batch."""
    return STOPPING in batch.extras and bool(np.asarray(batch.extras[STOPPING]).any())


def _mark(batch: Batch, stopping: bool) -> Batch:
    def mark(each: Batch) -> Batch:
        return replace(each, extras={**each.extras, STOPPING: np.full(each.size, stopping)})

    return batch.changed(mark)


def _empty(batch: Batch) -> Batch:
    return batch.changed(_without_content)


def _without_content(batch: Batch) -> Batch:
    nothing = Ragged(np.zeros(0, np.int64), np.zeros(batch.size + 1, np.int64))
    return replace(
        batch,
        ids=dict.fromkeys(batch.ids, nothing),
        label_mask=np.zeros_like(batch.label_mask),
        weight=np.zeros_like(batch.weight),
        actions=nothing,
    )
