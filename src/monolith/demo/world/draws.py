"""Draws and small laws that all worlds share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["TASTES", "ClickHistories", "Users", "dot", "draw_shares", "sigmoid"]

TASTES: Final = 6
"""Length of the latent vectors."""
_GENDERS = 3

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def draw_shares(rng: np.random.Generator, count: int, exponent: float) -> Floats:
    """Return cumulated shares with drawn ranks. The last is 1, so that every draw below 1 has a result."""
    shares = rng.permutation((np.arange(count) + 10.0) ** -exponent)
    summed = np.cumsum(shares)
    summed /= summed[-1]
    return summed


def dot(left: Floats, right: Floats) -> Floats:
    """Return the products of two lists of latent vectors, scaled to a variance that does not depend on their length."""
    products: Floats = np.einsum("ij,ij->i", left, right) / np.sqrt(left.shape[1])
    return products


def sigmoid(x: Floats) -> Floats:
    """Return the chances of logits."""
    chances: Floats = 1.0 / (1.0 + np.exp(-x))
    return chances


@dataclass(frozen=True, kw_only=True)
class Users:
    """The users of a world. Users of one gender are alike."""

    gender: Ints
    taste: Floats
    later_taste: Floats
    """Taste that rotation turns to."""
    like_taste: Floats
    """Taste that decides likes."""
    bias: Floats
    thrift: Floats
    activity: Floats
    """Cumulated shares of the impressions."""

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int, zipf: float) -> Self:
        """Draw users whose activity follows Zipf's law with the exponent ``zipf``."""
        gender = rng.integers(0, _GENDERS, count)
        alike = rng.standard_normal((_GENDERS, TASTES))
        taste = np.sqrt(0.3) * alike[gender] + np.sqrt(0.7) * rng.standard_normal((count, TASTES))
        return cls(
            gender=gender,
            taste=taste,
            later_taste=rng.standard_normal((count, TASTES)),
            like_taste=0.5 * taste + np.sqrt(0.75) * rng.standard_normal((count, TASTES)),
            bias=rng.standard_normal(count),
            thrift=np.abs(rng.standard_normal(count)),
            activity=draw_shares(rng, count, zipf),
        )


class ClickHistories:
    """The items that each user clicked, oldest first, carried from one part of a stream to the next.

    Args:
        users: Number of users.
        length: Longest history of a row.
        earlier: Users and items of clicks before the first part, sorted by user.
    """

    def __init__(self, users: int, length: int, earlier: tuple[Ints, Ints] | None = None) -> None:
        self._users = users
        self._length = length
        empty = np.empty(0, np.int64)
        self._earlier = earlier or (empty, empty)

    def extend(self, user: Ints, item: Ints, click: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the history of each row before it, as values and offsets, and remember the clicks of the rows."""
        earlier_user, earlier_item = self._earlier
        all_users = np.concatenate([earlier_user, user[click]])
        order = all_users.argsort(kind="stable")
        clicked = np.concatenate([earlier_item, item[click]])[order]
        before = np.bincount(earlier_user, minlength=self._users)
        counts = before + np.bincount(user[click], minlength=self._users)
        first = np.cumsum(counts) - counts  # of each user, among the clicks sorted by user
        end = first[user] + before[user] + _count_earlier(user, click)
        begin = np.maximum(first[user], end - self._length)
        offsets = np.zeros(len(user) + 1, np.int64)
        np.cumsum(end - begin, out=offsets[1:])
        places = np.arange(offsets[-1]) + (begin - offsets[:-1]).repeat(end - begin)
        self._remember(all_users[order], clicked, first + counts)
        return clicked[places], offsets

    def _remember(self, users: Ints, items: Ints, ends: Ints) -> None:
        """Keep the newest clicks of each user, sorted by user."""
        is_new = np.arange(len(users)) >= ends[users] - self._length
        self._earlier = users[is_new], items[is_new]


def _count_earlier(group: Ints, mark: NDArray[np.bool_]) -> Ints:
    """For each row, count the marked rows of its group before it."""
    order = group.argsort(kind="stable")
    sorted_group, sorted_mark = group[order], mark[order].astype(np.int64)
    before = np.cumsum(sorted_mark) - sorted_mark
    is_first = np.r_[True, sorted_group[1:] != sorted_group[:-1]]
    at_first = before[is_first][np.cumsum(is_first) - 1]
    counts = np.empty(len(group), np.int64)
    counts[order] = before - at_first
    return counts
