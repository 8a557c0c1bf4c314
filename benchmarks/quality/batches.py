"""Ratings to batches: the same examples in the same order for every contestant."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from monolith.data import Batch, Ragged
from quality.movielens import ONE_VALUED, Ratings

__all__ = ["FEATURES", "ordered", "shuffled"]

FEATURES = (*ONE_VALUED, "genres")

Ints = NDArray[np.int64]


def shuffled(ratings: Ratings, size: int, *, seed: int, epoch: int) -> Iterator[Batch]:
    """Yield the batches of one epoch in an order of its own; the last, shorter one too."""
    yield from ordered(ratings.take(np.random.default_rng([seed, epoch]).permutation(len(ratings))), size)


def ordered(ratings: Ratings, size: int) -> Iterator[Batch]:
    """Yield the batches of the ratings as they are."""
    lengths = np.array([len(each) for each in ratings.genre_lists])
    starts = np.cumsum(lengths) - lengths
    flat = np.concatenate(ratings.genre_lists)
    for start in range(0, len(ratings), size):
        part = ratings.take(np.arange(start, min(start + size, len(ratings))))
        ids = {name: _single(getattr(part, name)) for name in ONE_VALUED}
        ids["genres"] = _gathered(flat, starts[part.movie], lengths[part.movie])
        yield Batch.from_arrays(ids=ids, label=part.label, event_time_s=part.time_s, uid=part.user)


def _single(values: Ints) -> Ragged:
    return Ragged(values, np.arange(len(values) + 1, dtype=np.int64))


def _gathered(flat: Ints, starts: Ints, lengths: Ints) -> Ragged:
    """Return the pieces of ``flat`` that begin at ``starts``."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return Ragged(flat[np.repeat(starts, lengths) + within], offsets)
