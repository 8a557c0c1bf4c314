"""``DriftingWorld``: a world whose items are born, trend and die, so that a model of an hour ago is wrong.

``Drift`` holds the speeds of change. ``DriftingWorld`` generates impressions with their true click probabilities, and
the probabilities that a perfect model with a publish interval would give. Every result is a function of the arguments
and the seed. The state of a world is computed forward in blocks and cached; a world belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.demo.world.clicks import Clicks
from monolith.demo.world.draws import TASTES, ClickHistories, Users, dot, draw_shares, sigmoid
from monolith.demo.world.world import START_S

__all__ = ["Drift", "DriftingWorld"]

_DAY_S = 86_400
_CELLS = 128  # steps of the noise in one block
_CELLS_PER_MEMORY = 100  # steps of the noise in one correlation time
_TASTE_MEMORY_S = 12 * 3600.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Speeds of change of a ``DriftingWorld``, in seconds of event time.

    The defaults change within hours. ``Drift.fast()`` changes within minutes, for experiments.
    """

    amplitude: float = 2.0
    """Standard deviation of the peak of an item's trend, in logits."""
    rise_s: float = 1_800.0
    """Median age at which the trend of an item peaks."""
    life_s: float = 4 * 3600.0
    """Mean life of an item. A new item with a new id takes the place of a dead one."""
    memory_s: float = 2 * 3600.0
    """Correlation time of the noise in an item's appeal."""
    turn: float = 0.02
    """Rotation of tastes in radians a day."""
    noise: float = 0.3
    """Share of the variance of tastes that moves as noise with a correlation time of twelve hours, from 0 to 1."""

    def __post_init__(self) -> None:
        for name in ("rise_s", "life_s", "memory_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"Drift.{name} is {getattr(self, name)}, expected seconds above 0")
        for name in ("amplitude", "turn"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"Drift.{name} is {getattr(self, name)}, expected a number of at least 0")
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"Drift.noise is {self.noise}, expected a share from 0 to 1")

    @classmethod
    def fast(cls) -> Drift:
        """Return a drift that makes an hour-old model clearly worse than a fresh one."""
        return cls(amplitude=2.5, rise_s=600.0, life_s=2 * 3600.0, memory_s=1_800.0)


@dataclass(frozen=True, kw_only=True)
class DriftingWorld:
    """Users with moving tastes, and slots of items that replace each other.

    The logit of a click on item i by user u at second s is

        base + 0.7 b_u + T_i(s) + 0.7 o_i(s) + 1.2 x_u(s) · y_i / √6 − price_weight thrift_u price

    T_i rises to its peak at the age ``rise_s`` and falls, o_i and part of x_u are Ornstein-Uhlenbeck noise. Popularity
    belongs to the slot. Items of one category, and users of one gender, are alike.

    >>> clicks = DriftingWorld(users=100, items=50, seed=1).clicks(1000)
    >>> len(clicks), 0.7 < clicks.best_auc < 0.95
    (1000, True)
    """

    users: int = 5_000
    """Number of users; their ids are 1 to this."""
    items: int = 1_000
    """Number of slots of items. Item ids grow with every birth."""
    categories: int = 20
    """Number of categories of items."""
    history_length: int = 10
    """Longest history of a row."""
    zipf: float = 1.0
    """Inequality of slots: the slot of rank r appears in proportion to 1 / (r + 10)^zipf."""
    user_zipf: float = 0.5
    """Inequality of users, by the same law."""
    base: float = -1.5
    """Logit of a click on an average item by an average user."""
    price_weight: float = 0.4
    """Weight of the price in the logit."""
    drift: Drift = field(default_factory=Drift)
    """Speeds of change."""
    events_per_s: float = 20.0
    """Impressions per second."""
    seed: int = 0
    """Seed of all draws."""

    def __post_init__(self) -> None:
        for name in ("users", "items", "categories", "history_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"DriftingWorld.{name} is {getattr(self, name)}, expected a whole number from 1 up")
        for name in ("zipf", "user_zipf", "price_weight"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"DriftingWorld.{name} is {getattr(self, name)}, expected a number of at least 0")
        if not self.events_per_s > 0:
            raise ConfigError(f"DriftingWorld.events_per_s is {self.events_per_s}, expected a number above 0")

    # --- impressions --------------------------------------------------------------------------------------------------

    def clicks(self, n: int, start_s: int = START_S) -> Clicks:
        """Return ``n`` impressions from ``start_s`` on, in the order of time.

        Raises:
            ConfigError: ``n`` is below 1, or ``start_s`` is before the world's first second.
        """
        if n < 1:
            raise ConfigError(f"n is {n}, expected at least 1; ask for more clicks")
        return next(self.stream(n, start_s))

    def stream(self, n: int, start_s: int = START_S) -> Iterator[Clicks]:
        """Yield impressions without end, ``n`` at a time; histories continue from one part to the next.

        Raises:
            ConfigError: ``start_s`` is before the world's first second.
        """
        if start_s < START_S:
            raise ConfigError(f"start_s is {start_s}, expected at least {START_S}, the world's first second")
        histories = ClickHistories(self.users, self.history_length)
        for rng, age_s in self._parts(n, start_s):
            user = self._users.activity.searchsorted(rng.random(n), side="right")
            slot = self._popularity.searchsorted(rng.random(n), side="right")
            yield self._fill(rng, user, slot, age_s, histories)

    def pages(self, n: int, width: int, start_s: int = START_S) -> Iterator[Clicks]:
        """Yield requests without end, ``n`` at a time: ``width`` rows each, of one user and of distinct items.

        All histories of a part are those before the part, as a server knows them.

        Raises:
            ConfigError: ``start_s`` is before the world's first second, or ``width`` exceeds the number of items.
        """
        if not 1 <= width <= self.items:
            raise ConfigError(f"width is {width}, expected 1 to {self.items}, the number of items")
        if start_s < START_S:
            raise ConfigError(f"start_s is {start_s}, expected at least {START_S}, the world's first second")
        histories = ClickHistories(self.users, self.history_length)
        weight = np.log(np.diff(self._popularity, prepend=0.0))
        for rng, age_s in self._parts(n * width, start_s):
            user = self._users.activity.searchsorted(rng.random(n), side="right").repeat(width)
            slot = np.argpartition(-(weight + rng.gumbel(size=(n, self.items))), width - 1, axis=1)[:, :width]
            yield self._fill(rng, user, slot.reshape(-1), age_s[::width].repeat(width), histories, is_page=True)

    def _parts(self, n: int, start_s: int) -> Iterator[tuple[np.random.Generator, Floats]]:
        """Yield the generator and the times of each part."""
        length_s = n / self.events_per_s
        number = 0
        while True:
            rng = np.random.default_rng([self.seed, 1, start_s, number])
            yield rng, start_s - START_S + number * length_s + np.sort(rng.random(n)) * length_s
            number += 1

    def _fill(
        self,
        rng: np.random.Generator,
        user: Ints,
        slot: Ints,
        age_s: Floats,
        histories: ClickHistories,
        *,
        is_page: bool = False,
    ) -> Clicks:
        n = len(age_s)
        item = self._timeline.items_at(slot, age_s)
        price = self._timeline.price(item) + 0.3 * rng.standard_normal(n)
        click_chance = self._chance(user, slot, item, age_s, age_s, price)
        like_chance = sigmoid(-0.5 + 1.2 * dot(self._users.like_taste[user], self._timeline.style(item)))
        luck = rng.random((2, n))
        click = luck[0] < click_chance
        if is_page:
            history, offsets = histories.extend(user, item + 1, np.zeros(n, np.bool_))
            histories.extend(user, item + 1, click)
        else:
            history, offsets = histories.extend(user, item + 1, click)
        return Clicks(
            user_id=user + 1,
            item_id=item + 1,
            history=history,
            history_offsets=offsets,
            gender=self._users.gender[user] + 1,
            category=self._timeline.category(item) + 1,
            price=np.exp(2.5 + 0.8 * price).astype(np.float32),
            event_time_s=START_S + age_s.astype(np.int64),
            click=click.astype(np.float32),
            like=(click & (luck[1] < like_chance)).astype(np.float32),
            click_probability=click_chance,
            like_probability=click_chance * like_chance,
            slot=slot,
        )

    # --- truth --------------------------------------------------------------------------------------------------------

    def stale_probability(self, clicks: Clicks, interval_s: float) -> Floats:
        """Return the click probabilities of a perfect model that is published every ``interval_s``.

        Row times are rounded down to a publish. An item that was not born then is scored without the terms of the item.

        Raises:
            ConfigError: The rows have no slots, so they are of another world; or the interval is not above 0.
        """
        if clicks.slot is None:
            raise ConfigError("clicks.slot is None, expected rows of a DriftingWorld; take them from its clicks()")
        if not interval_s > 0:
            raise ConfigError(f"interval_s is {interval_s}, expected seconds above 0")
        age_s = (clicks.event_time_s - START_S).astype(np.float64)
        known_s = np.floor(age_s / interval_s) * interval_s
        price = (np.log(clicks.price.astype(np.float64)) - 2.5) / 0.8
        return self._chance(clicks.user_id - 1, clicks.slot, clicks.item_id - 1, age_s, known_s, price)

    def _chance(self, user: Ints, slot: Ints, item: Ints, age_s: Floats, known_s: Floats, price: Floats) -> Floats:
        """Return the chance of a click on rows of the second ``age_s``, as known at ``known_s``."""
        users, timeline = self._users, self._timeline
        born_s = timeline.born_s(item)
        age = np.maximum(known_s - born_s, 0.0) / timeline.rise_s(item)
        of_item = timeline.peak(item) * age * np.exp(1.0 - age) + 0.7 * timeline.noise_at(slot, item, known_s)
        of_item += 1.2 * dot(self._tastes_at(user, known_s), timeline.style(item))
        logit = self.base + 0.7 * users.bias[user] + np.where(born_s <= known_s, of_item, 0.0)
        return sigmoid(logit - self.price_weight * users.thrift[user] * price)

    def _tastes_at(self, user: Ints, age_s: Floats) -> Floats:
        turn = (self.drift.turn * age_s / _DAY_S)[:, None]
        rotated = np.cos(turn) * self._users.taste[user] + np.sin(turn) * self._users.later_taste[user]
        if not self.drift.noise:
            return rotated
        noise = self._taste_noise.values(user, age_s)
        mixed: Floats = np.sqrt(1 - self.drift.noise) * rotated + np.sqrt(self.drift.noise) * noise
        return mixed

    @cached_property
    def _users(self) -> Users:
        return Users.draw(np.random.default_rng([self.seed, 2]), self.users, self.user_zipf)

    @cached_property
    def _popularity(self) -> Floats:
        return draw_shares(np.random.default_rng([self.seed, 3]), self.items, self.zipf)

    @cached_property
    def _timeline(self) -> _Timeline:
        return _Timeline(self.items, self.categories, self.drift, self.seed)

    @cached_property
    def _taste_noise(self) -> _Noise:
        return _Noise((self.users, TASTES), _TASTE_MEMORY_S, [self.seed, 5])


class _Noise:
    """Ornstein-Uhlenbeck noise of variance 1, on a grid of times that grows block by block."""

    def __init__(self, shape: tuple[int, ...], memory_s: float, seed: list[int]) -> None:
        self.cell_s = memory_s / _CELLS_PER_MEMORY
        self._keep = np.exp(-1.0 / _CELLS_PER_MEMORY)
        self._seed = seed
        self._grid = np.random.default_rng([*seed, 0]).standard_normal((1, *shape))

    def values(self, place: Ints, age_s: Floats) -> Floats:
        """Return the noise of each place at each time, by linear interpolation."""
        cell, part = self._cells(age_s)
        shape = (-1, *(1,) * (self._grid.ndim - 2))
        between: Floats = self._grid[cell, place] * (1 - part).reshape(shape)
        between += self._grid[cell + 1, place] * part.reshape(shape)
        return between

    def _cells(self, age_s: Floats) -> tuple[Ints, Floats]:
        at = age_s / self.cell_s
        cell = at.astype(np.int64)
        self._grow(int(cell.max(initial=0)) + 2)
        return cell, at - cell

    def _grow(self, cells: int) -> None:
        while len(self._grid) < cells:
            rng = np.random.default_rng([*self._seed, len(self._grid)])
            fresh = rng.standard_normal((_CELLS, *self._grid.shape[1:]))
            fresh *= np.sqrt(1 - self._keep**2)
            last = self._grid[-1]
            for step in fresh:
                step += self._keep * last
                last = step
            self._grid = np.concatenate([self._grid, fresh])


class _Timeline:
    """The items of all slots in the order of birth, from before the world's first second on.

    Lives are exponential, so births of a slot are a Poisson process, which is drawn block by block.
    """

    def __init__(self, slots: int, categories: int, drift: Drift, seed: int) -> None:
        self._slots = slots
        self._drift = drift
        self._seed = seed
        self._block_s = drift.life_s
        self._blocks = 0
        rng = np.random.default_rng([seed, 4])
        self._category_style = rng.standard_normal((categories, TASTES))
        self._category_price = rng.standard_normal(categories)
        self._noise = _Noise((slots,), drift.memory_s, [seed, 6])
        born_s = -np.sort(rng.exponential(drift.life_s, slots))[::-1]
        self._items = self._draw(rng, born_s, rng.permutation(slots))
        self._by_slot: tuple[Floats, Ints] = (np.empty(0), np.empty(0, np.int64))
        self._sort()

    def items_at(self, slot: Ints, age_s: Floats) -> Ints:
        """Return the item that each slot holds at each time."""
        while age_s.max(initial=0.0) >= self._blocks * self._block_s:
            self._add_block()
        order, items = self._by_slot
        return items[order.searchsorted(self._key(slot, age_s), side="right") - 1]

    def born_s(self, item: Ints) -> Floats:
        """Return the time of birth of each item."""
        return self._items.born_s[item]

    def rise_s(self, item: Ints) -> Floats:
        """Return the age at which the trend of each item peaks."""
        return self._items.rise_s[item]

    def peak(self, item: Ints) -> Floats:
        """Return the peak of the trend of each item."""
        return self._items.peak[item]

    def style(self, item: Ints) -> Floats:
        """Return the latent vector of each item."""
        return self._items.style[item]

    def price(self, item: Ints) -> Floats:
        """Return the mean log price of each item."""
        return self._items.price[item]

    def category(self, item: Ints) -> Ints:
        """Return the category of each item."""
        return self._items.category[item]

    def noise_at(self, slot: Ints, item: Ints, age_s: Floats) -> Floats:
        """Return the noise in the appeal of each item.

        It starts at the item's own first value: the noise of the slot at the birth is taken out, and its trace fades.
        """
        elapsed_s = np.maximum(age_s - self._items.born_s[item], 0.0)
        faded = np.exp(-elapsed_s / self._drift.memory_s)
        born_s = np.maximum(self._items.born_s[item], 0.0)
        now = self._noise.values(slot, np.maximum(age_s, 0.0))
        started: Floats = now + faded * (self._items.first_noise[item] - self._noise.values(slot, born_s))
        return started

    def _add_block(self) -> None:
        rng = np.random.default_rng([self._seed, 7, self._blocks])
        count = int(rng.poisson(self._slots * self._block_s / self._drift.life_s))
        born_s = self._blocks * self._block_s + np.sort(rng.random(count)) * self._block_s
        self._items = self._items.extend(self._draw(rng, born_s, rng.integers(0, self._slots, count)))
        self._blocks += 1
        self._sort()

    def _draw(self, rng: np.random.Generator, born_s: Floats, slot: Ints) -> _Items:
        count = len(born_s)
        category = rng.integers(0, len(self._category_price), count)
        alike = self._category_style[category] + rng.standard_normal((count, TASTES))
        return _Items(
            slot=slot,
            born_s=born_s,
            category=category,
            style=np.sqrt(0.5) * alike,
            price=np.sqrt(0.5) * (self._category_price[category] + rng.standard_normal(count)),
            rise_s=self._drift.rise_s * np.exp(0.5 * rng.standard_normal(count)),
            peak=self._drift.amplitude * rng.standard_normal(count),
            first_noise=rng.standard_normal(count),
        )

    def _sort(self) -> None:
        keys = self._key(self._items.slot, self._items.born_s)
        order = keys.argsort(kind="stable")
        self._by_slot = keys[order], order

    def _key(self, slot: Ints, age_s: Floats) -> Floats:
        """Return numbers that sort by slot, then by time. No time is beyond 5e9 seconds from the first second."""
        return slot * 1e10 + age_s


@dataclass(frozen=True, kw_only=True)
class _Items:
    slot: Ints
    born_s: Floats
    category: Ints
    style: Floats
    price: Floats
    rise_s: Floats
    peak: Floats
    first_noise: Floats

    def extend(self, newer: _Items) -> _Items:
        """Return these items and then the newer ones."""
        return _Items(**{name: np.concatenate([mine, getattr(newer, name)]) for name, mine in vars(self).items()})
