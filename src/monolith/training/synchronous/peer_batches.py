"""Batches that all ranks take in step, until the last of them has none left.

A rank whose data has ended before that of others goes on with empty batches: it looks up the rows of others and adds
nothing to their gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from monolith.core.errors import ClusterError
from monolith.data import Batch, Ragged
from monolith.features.declaration import Declaration
from monolith.training.synchronous.peers import Channel

__all__ = ["PeerBatches", "StepSizes", "empty_batch"]

StepSizes = deque[list[int]]
"""The examples of each rank in the steps to come, in order."""


class PeerBatches:
    """The data of one rank, read in step with the others.

    Args:
        dataset: This rank's part.
        declaration: What a batch of the model holds.
        channel: Where ranks agree.
        sizes: Is told how many examples each rank has, batch by batch.
    """

    def __init__(self, dataset: Any, declaration: Declaration, channel: Channel, sizes: StepSizes) -> None:
        self._dataset = dataset
        self._declaration = declaration
        self._channel = channel
        self._sizes = sizes

    def __iter__(self) -> Iterator[Batch]:
        """Read to the end of the longest rank's data.

        Raises:
            ClusterError: Another rank cannot read its data; all of them end at the same batch.
        """
        batches = iter(self._dataset)
        while True:
            batch, failures = _read(batches)
            said = self._channel.numbers([0 if batch is None else batch.size, batch is not None, len(failures)])
            if failures:
                raise failures.pop()  # an exception that a variable of its own frame holds would outlive everything
            if said[:, 2].any():
                ranks = ", ".join(str(rank) for rank in np.flatnonzero(said[:, 2]))
                raise ClusterError(f"rank {ranks} cannot read its data; see what it said")
            if not said[:, 1].any():
                return
            self._sizes.append(said[:, 0].tolist())
            yield empty_batch(self._declaration) if batch is None else batch

    def mark(self) -> Callable[[], Any]:
        """Return what gives the place behind the last batch of this rank."""
        mark: Callable[[], Any] = getattr(self._dataset, "mark", lambda: lambda: None)()
        return mark

    def committed(self, place: Any) -> None:
        """Pass on that a place is safe in a checkpoint."""
        self._dataset.committed(place)


def _read(batches: Iterator[Batch]) -> tuple[Batch | None, list[Exception]]:
    try:
        return next(batches, None), []
    except Exception as error:  # told when all ranks know: none may wait for this one
        return None, [error]


def empty_batch(declaration: Declaration) -> Batch:
    """Return a batch without an example, with every feature of a model."""
    labels = (0, declaration.labels)
    return Batch(
        size=0,
        ids={name: Ragged.from_lists([]) for name in declaration.feature_names},
        dense={name: np.empty((0, feature.width), np.float32) for name, feature in declaration.dense.items()},
        label=np.empty(labels, np.float32),
        label_mask=np.empty(labels, np.bool_),
        weight=np.empty(0, np.float32),
        sample_rate=np.empty(0, np.float32),
        event_time_s=np.empty(0, np.int64),
        uid=np.empty(0, np.int64),
        actions=Ragged.from_lists([]),
        extras={},
    )
