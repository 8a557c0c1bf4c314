"""``World``: a seeded world of users and items that generates impressions with known click probabilities.

The true probability of every row is known. So are the best AUC that any model can reach, and the predictions of a
calibrated model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.demo.world.clicks import Clicks
from monolith.demo.world.draws import TASTES, ClickHistories, Users, dot, draw_shares, sigmoid

__all__ = ["START_S", "World"]

START_S = 1_700_000_000
"""The world's first second; drift is counted from here."""

_SEEN_BEFORE = 2  # impressions before the first second, per place of the history
_DAY_S = 86_400

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class World:
    """Users with tastes, items with appeal, and the clicks on the items that users see.

    The chance of a click on item i by user u at time t is the sigmoid of

        base + 0.7 b_u + 0.7 b_i(t) + 1.2 x_u(t) · y_i / √6 − 0.4 s_u price

    where users of one gender, and items of one category, are alike. A click turns into a like by another mixture of
    the same tastes; ``like`` is 1 where both happened. Every call is a function of its arguments and the seed.

    >>> clicks = World(users=100, items=50, seed=1).clicks(1000)
    >>> len(clicks), 0.7 < clicks.best_auc < 0.9
    (1000, True)
    """

    users: int = 5_000
    """Number of users; their ids are 1 to this."""
    items: int = 1_000
    """Number of items; their ids are 1 to this."""
    categories: int = 20
    """Number of categories of items."""
    history_length: int = 10
    """Longest history of a row."""
    zipf: float = 1.0
    """Inequality of items: the item of rank r appears in proportion to 1 / (r + 10)^zipf. The
    activity of users follows the same law with half the exponent."""
    drift: float = 0.02
    """Speed of change of tastes and appeal, in radians a day; 0 = constant. A quarter turn replaces them."""
    events_per_s: float = 20.0
    """Impressions per second."""
    seed: int = 0
    """Seed of all draws."""

    def __post_init__(self) -> None:
        for name in ("users", "items", "categories", "history_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"World.{name} is {getattr(self, name)}; give a whole number of at least 1")
        for name in ("zipf", "drift"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"World.{name} is {getattr(self, name)}; give a number of at least 0")
        if not self.events_per_s > 0:
            raise ConfigError(f"World.events_per_s is {self.events_per_s}; give a number above 0")

    def clicks(self, n: int, start_s: int = START_S) -> Clicks:
        """Return ``n`` impressions from ``start_s`` on, in the order of time.

        A user's history begins with the clicks before ``start_s`` and grows with the clicks among these rows. Two calls
        do not share clicks.

        Raises:
            ConfigError: ``n`` is below 1, or ``start_s`` is before the world's first second.
        """
        if n < 1:
            raise ConfigError(f"n is {n}, expected at least 1; ask for more clicks")
        if start_s < START_S:
            raise ConfigError(f"start_s is {start_s}; the world begins at {START_S}")
        rng = np.random.default_rng([self.seed, 1, start_s])
        users = self._drawn_users(rng, n)
        items = self._drawn_items(rng, n)
        time_s = start_s + np.sort(rng.random(n) * (n / self.events_per_s)).astype(np.int64)
        price = self._items.price[items] + 0.3 * rng.standard_normal(n)
        click_chance, like_chance = self._chances(users, items, time_s, price)
        luck = rng.random((2, n))
        click = luck[0] < click_chance
        history, offsets = ClickHistories(self.users, self.history_length, self._clicked_before).extend(
            users, items, click
        )
        return Clicks(
            user_id=users + 1,
            item_id=items + 1,
            history=history + 1,
            history_offsets=offsets,
            gender=self._users.gender[users] + 1,
            category=self._items.category[items] + 1,
            price=np.exp(2.5 + 0.8 * price).astype(np.float32),
            event_time_s=time_s,
            click=click.astype(np.float32),
            like=(click & (luck[1] < like_chance)).astype(np.float32),
            click_probability=click_chance,
            like_probability=click_chance * like_chance,
        )

    # --- users and items ----------------------------------------------------------------------------------------------

    @cached_property
    def _users(self) -> Users:
        return Users.draw(np.random.default_rng([self.seed, 2]), self.users, self.zipf / 2)

    @cached_property
    def _items(self) -> _Items:
        rng = np.random.default_rng([self.seed, 3])
        category = rng.integers(0, self.categories, self.items)
        alike = rng.standard_normal((self.categories, TASTES))
        dear = rng.standard_normal(self.categories)
        return _Items(
            category=category,
            style=np.sqrt(0.5) * (alike[category] + rng.standard_normal((self.items, TASTES))),
            appeal=rng.standard_normal(self.items),
            later_appeal=rng.standard_normal(self.items),
            quality=rng.standard_normal(self.items),
            price=np.sqrt(0.5) * (dear[category] + rng.standard_normal(self.items)),
            popularity=draw_shares(rng, self.items, self.zipf),
        )

    @cached_property
    def _clicked_before(self) -> tuple[Ints, Ints]:
        """Users and items of the clicks before the first second, sorted by user."""
        rng = np.random.default_rng([self.seed, 4])
        users = np.arange(self.users).repeat(_SEEN_BEFORE * self.history_length)
        items = self._drawn_items(rng, len(users))
        chance, _ = self._chances(users, items, np.full(len(users), START_S), self._items.price[items])
        clicked = rng.random(len(users)) < chance
        return users[clicked], items[clicked]

    # --- events -------------------------------------------------------------------------------------------------

    def _drawn_users(self, rng: np.random.Generator, n: int) -> Ints:
        return self._users.activity.searchsorted(rng.random(n), side="right")

    def _drawn_items(self, rng: np.random.Generator, n: int) -> Ints:
        return self._items.popularity.searchsorted(rng.random(n), side="right")

    def _chances(self, user: Ints, item: Ints, time_s: Ints, price: Floats) -> tuple[Floats, Floats]:
        """Return the chance of a click, and that of a like after it."""
        users, items = self._users, self._items
        turn = self.drift * (time_s - START_S) / _DAY_S
        now, later = np.cos(turn), np.sin(turn)
        style = items.style[item]
        taste = now * dot(users.taste[user], style) + later * dot(users.later_taste[user], style)
        appeal = now * items.appeal[item] + later * items.later_appeal[item]
        click = -1.0 + 0.7 * users.bias[user] + 0.7 * appeal + 1.2 * taste - 0.4 * users.thrift[user] * price
        like = -0.5 + 0.8 * items.quality[item] + 1.2 * dot(users.like_taste[user], style)
        return sigmoid(click), sigmoid(like)


@dataclass(frozen=True, kw_only=True)
class _Items:
    category: Ints
    style: Floats
    appeal: Floats
    later_appeal: Floats
    quality: Floats
    price: Floats
    popularity: Floats
    """Cumulated shares of the impressions."""
