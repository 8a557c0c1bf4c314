"""Turns of taste: the items that become liked or disliked, and the impressions that show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.demo.world.clicks import Clicks

__all__ = ["Turn", "as_features", "turns"]

_LIKED, _DISLIKED = 0.95, 0.02
_BUSIEST = 100
"""Number of items that may turn: the most frequent ones."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """An item that is liked, or disliked, from now on."""

    shown: Clicks
    """One impression of it."""
    chance: float
    """Chance of a click on it, from now on."""
    events: Clicks
    """Impressions: every fourth shows the item, the rest show other items."""

    @property
    def item_id(self) -> int:
        """Id of the item."""
        return int(self.shown.item_id[0])

    @property
    def is_up(self) -> bool:
        """Whether it is liked now."""
        return self.chance == _LIKED


def turns(shown: Clicks, rows: int, seed: int = 0) -> Iterator[Turn]:
    """Iterate over turns without end, each of another item until all have turned; ``rows`` events each.

    Items with few clicks become liked, and items with many clicks disliked.
    """
    rng = np.random.default_rng([seed, 5])
    _, places, of_row, counts = np.unique(shown.item_id, return_index=True, return_inverse=True, return_counts=True)
    rates = np.bincount(of_row, shown.click) / counts
    busiest = counts.argsort(kind="stable")[::-1][:_BUSIEST]
    while True:
        for at in rng.permutation(busiest):
            chance = _DISLIKED if rates[at] > np.median(rates[busiest]) else _LIKED
            one = shown.rows(int(places[at]), int(places[at]) + 1)
            begin = int(rng.integers(0, max(1, len(shown) - rows)))
            yield Turn(shown=one, chance=chance, events=_events(shown.rows(begin, begin + rows), one, chance, rng))


def as_features(shown: Clicks) -> dict[str, Any]:
    """Return one impression as the features of a request."""
    return {
        "user_id": int(shown.user_id[0]),
        "item_id": int(shown.item_id[0]),
        "history": shown.history.tolist(),
        "gender": int(shown.gender[0]),
        "category": int(shown.category[0]),
        "price": round(float(shown.price[0]), 2),
    }


def _events(others: Clicks, one: Clicks, chance: float, rng: np.random.Generator) -> Clicks:
    """Put the item into every fourth row."""
    is_turned = np.arange(len(others)) % 4 == 0
    click = rng.random(len(others)) < chance
    put: dict[str, NDArray[Any]] = {
        "item_id": one.item_id,
        "category": one.category,
        "price": one.price,
        "click": click.astype(np.float32),
        "like": np.zeros(1, np.float32),
        "click_probability": np.full(1, chance),
        "like_probability": np.zeros(1),
    }
    return replace(others, **{name: np.where(is_turned, value, getattr(others, name)) for name, value in put.items()})
