"""Batches in memory, read with positions like those of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch

__all__ = ["BatchSequence"]

_PLACE = "batches"


class BatchSequence:
    """Iterates over a list of batches; a position is the number of batches read."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._begin = 0
        self._given = 0

    def __iter__(self) -> Iterator[Batch]:
        """Iterate from the beginning, or once from the restored position."""
        self._given, self._begin = self._begin, 0
        for batch in islice(self._batches, self._given, None):
            if not isinstance(batch, Batch):
                raise ConfigError(
                    f"the data holds a {type(batch).__name__}, expected a Batch; give a dataset, or a list of batches"
                )
            self._given += 1
            yield batch

    def mark(self) -> Callable[[], dict[str, Any]]:
        """Return the mark of the position behind the last batch read."""
        place = {_PLACE: self._given}
        return lambda: place

    def restore(self, place: Mapping[str, Any]) -> None:
        """Start the next iteration at a position.

        Raises:
            DataError: The position does not fit this list.
        """
        given = place.get(_PLACE)
        if not isinstance(given, int) or given > len(self._batches):
            raise DataError(f"position is {dict(place)}, expected one in a list of {len(self._batches)} batches")
        self._begin = self._given = given

    def ends_at(self, place: Mapping[str, Any]) -> bool:
        """Return whether a position is the end of the list."""
        return place.get(_PLACE) == len(self._batches)

    def is_of(self, batches: object) -> bool:
        """Return whether this object reads that very list."""
        return self._batches is batches

    def committed(self, place: Mapping[str, Any]) -> None:
        """Do nothing: a list needs no commit."""
