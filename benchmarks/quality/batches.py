"""Ratings to batches: the same examples in the same order for every contestant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from monolith.data import Batch, Ragged
from quality.movielens import ONE_VALUED, Ratings

__all__ = ["FEATURES", "Renamed", "ordered", "shuffled"]

FEATURES = (*ONE_VALUED, "genres")

Ints = NDArray[np.int64]
Renamed = Mapping[str, Ints]
"""Feature to the new id of each of its ids."""


def shuffled(ratings: Ratings, size: int, *, seed: int, epoch: int, renamed: Renamed | None = None) -> Iterator[Batch]:
    """Yield the batches of one epoch in an order of its own; the last, shorter one too."""
    order = np.random.default_rng([seed, epoch]).permutation(len(ratings))
    yield from ordered(ratings.take(order), size, renamed=renamed)


def ordered(ratings: Ratings, size: int, *, renamed: Renamed | None = None) -> Iterator[Batch]:
    """Yield the batches of the ratings as they are; features in ``renamed`` get their ids from there."""
    lengths = np.array([len(each) for each in ratings.genre_lists])
    starts = np.cumsum(lengths) - lengths
    flat = np.concatenate(ratings.genre_lists)
    for start in range(0, len(ratings), size):
        part = ratings.take(np.arange(start, min(start + size, len(ratings))))
        ids = {name: _single(_renamed(renamed, name, getattr(part, name))) for name in ONE_VALUED}
        ids["genres"] = _gathered(flat, starts[part.movie], lengths[part.movie])
        yield Batch.from_arrays(ids=ids, label=part.label, event_time_s=part.time_s, uid=part.user)


def _renamed(renamed: Renamed | None, name: str, ids: Ints) -> Ints:
    return renamed[name][ids] if renamed is not None and name in renamed else ids


def _single(values: Ints) -> Ragged:
    return Ragged(values, np.arange(len(values) + 1, dtype=np.int64))


def _gathered(flat: Ints, starts: Ints, lengths: Ints) -> Ragged:
    """Return the pieces of ``flat`` that begin at ``starts``."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return Ragged(flat[np.repeat(starts, lengths) + within], offsets)
