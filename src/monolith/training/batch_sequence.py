"""Batches that are in memory already, read with places like those of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch

__all__ = ["BatchSequence"]

_PLACE = "batches"


class BatchSequence:
    """Gives a list of batches in order; a place is the number of those given."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._begin = 0
        self._given = 0

    def __iter__(self) -> Iterator[Batch]:
        """Read from the beginning, or once from the restored place."""
        self._given, self._begin = self._begin, 0
        for batch in islice(self._batches, self._given, None):
            if not isinstance(batch, Batch):
                raise ConfigError(f"the data holds a {type(batch).__name__}; give a dataset, or a list of batches")
            self._given += 1
            yield batch

    def mark(self) -> Callable[[], dict[str, Any]]:
        """Return what gives the place behind the batch that was read last."""
        place = {_PLACE: self._given}
        return lambda: place

    def restore(self, place: Mapping[str, Any]) -> None:
        """Let the next iteration start at a place.

        Raises:
            DataError: It is not a place in this list.
        """
        given = place.get(_PLACE)
        if not isinstance(given, int) or given > len(self._batches):
            raise DataError(f"the data is a list of {len(self._batches)} batches, and the saved place is {dict(place)}")
        self._begin = self._given = given

    def ends_at(self, place: Mapping[str, Any]) -> bool:
        """Return whether nothing follows a place."""
        return place.get(_PLACE) == len(self._batches)

    def is_of(self, batches: object) -> bool:
        """Return whether this very list is what it reads."""
        return self._batches is batches

    def committed(self, place: Mapping[str, Any]) -> None:
        """Do nothing: nobody waits for it."""
