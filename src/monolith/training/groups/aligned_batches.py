"""Data of one member that ends together with the data of all members.

A member whose data has ended continues with empty batches until no member has data left. It then adds nothing to the
gradients of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from monolith.core.errors import ClusterError
from monolith.data import Batch, Ragged
from monolith.embedding.ranks.channel import Channel
from monolith.features.declaration import Declaration
from monolith.training.run import Mark, no_position

__all__ = ["AlignedBatches", "PaddedBatches", "StepSizes", "empty_batch"]

StepSizes = deque[list[int]]
"""The examples of each rank in the steps to come, in order."""


class PaddedBatches:
    """The data of one member, followed by empty batches without end.

    Args:
        dataset: This member's part.
        declaration: The features of the model.
    """

    def __init__(self, dataset: Any, declaration: Declaration) -> None:
        self._dataset = dataset
        self._declaration = declaration

    def __iter__(self) -> Iterator[Batch]:
        """Iterate without end."""
        yield from self._dataset
        while True:
            yield empty_batch(self._declaration)

    def mark(self) -> Mark:
        """Return the mark behind the last batch with examples."""
        mark: Callable[[], Mark] = getattr(self._dataset, "mark", lambda: no_position)
        return mark()

    def committed(self, place: Any) -> None:
        """Report to the data that a position is durable in a checkpoint."""
        self._dataset.committed(place)


class AlignedBatches:
    """The data of one rank, read in step with the others, to the end of the longest data.

    Args:
        dataset: This rank's part.
        declaration: The features of the model.
        channel: The channel by which ranks agree.
        sizes: Receives the number of examples of each rank, batch by batch.
    """

    def __init__(self, dataset: Any, declaration: Declaration, channel: Channel, sizes: StepSizes) -> None:
        self._dataset = dataset
        self._declaration = declaration
        self._channel = channel
        self._sizes = sizes

    def __iter__(self) -> Iterator[Batch]:
        """Read to the end of the longest data of all ranks.

        Raises:
            ClusterError: Another rank cannot read its data; all of them end at the same batch.
        """
        batches = iter(self._dataset)
        while True:
            batch, failures = _read(batches)
            ranks = self._channel.all_gather_ints(
                [0 if batch is None else batch.size, batch is not None, len(failures)]
            )
            if failures:
                raise failures.pop()  # an exception in a variable of its frame would never be freed
            if ranks[:, 2].any():
                failed = ", ".join(str(rank) for rank in np.flatnonzero(ranks[:, 2]))
                raise ClusterError(f"rank {failed} cannot read its data; see the log of that rank")
            if not ranks[:, 1].any():
                return
            self._sizes.append(ranks[:, 0].tolist())
            yield empty_batch(self._declaration) if batch is None else batch

    def mark(self) -> Mark:
        """Return the mark behind the last batch of this rank."""
        mark: Callable[[], Mark] = getattr(self._dataset, "mark", lambda: no_position)
        return mark()

    def committed(self, place: Any) -> None:
        """Report to the data that a position is durable in a checkpoint."""
        self._dataset.committed(place)


def _read(batches: Iterator[Batch]) -> tuple[Batch | None, list[Exception]]:
    try:
        return next(batches, None), []
    except Exception as error:  # raised when all ranks know: none may wait for this one
        return None, [error]


def empty_batch(declaration: Declaration) -> Batch:
    """Return a batch without an example, with every feature of a model."""
    labels = (0, declaration.labels)
    return Batch(
        size=0,
        ids={name: Ragged.from_lists([]) for name in declaration.inputs},
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
