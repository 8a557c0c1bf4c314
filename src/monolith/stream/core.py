"""``JoinCore``: the Protocol of a joiner's core; ``ReferenceJoiner``: its implementation in Python.

A core holds the state of many request keys, and emits rows in a fixed order. Every core passes one conformance suite.
One thread uses a core.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Protocol

from typing_extensions import override

from monolith.stream.events import Action, Event, Impression, Row
from monolith.stream.key_rules import COUNTERS, KeyRules, KeyState
from monolith.stream.settings import JoinSettings

__all__ = ["JoinCore", "ReferenceJoiner"]


class JoinCore(Protocol):
    """Joins impressions with actions under a watermark.

    In standard mode the sequence of rows is the same for every order in which each event arrives before the watermark
    passes the close of its impression. Rows come in the order (close time, key, item). In fast mode the multiset of
    (key, item, task, label) is the same, and the negative of an impression comes first.
    """

    @property
    def settings(self) -> JoinSettings:
        """The settings of the core."""

    @property
    def watermark_ms(self) -> int | None:
        """The largest watermark; None before the first one."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Counts of duplicates, late events, orphans, overflows and sampled rows, by name."""

    @property
    def open_impressions(self) -> int:
        """Number of impressions whose window is open."""

    @property
    def held_actions(self) -> int:
        """Number of actions that wait for an impression."""

    def on_impression(self, impression: Impression) -> list[Row]:
        """Add an impression and return the rows that it causes."""

    def on_action(self, action: Action) -> list[Row]:
        """Add an action and return the rows that it causes."""

    def on_watermark(self, time_ms: int) -> list[Row]:
        """Raise the watermark and return the rows of the windows that close. A lower watermark has no effect."""

    def apply(self, events: Iterable[Event]) -> list[Row]:
        """Apply events in order and return their rows. Equals single calls, and lets a native core batch them."""


class ReferenceJoiner(JoinCore):
    """A core of plain Python dicts: the definition of the rules, for tests and small streams.

    A heap holds one timer per (key, item): the next watermark that changes it. A timer whose item changed earlier is
    skipped.

    >>> core = ReferenceJoiner(JoinSettings(window_ms=10))
    >>> core.apply([Impression(0, b"k", 7), Action(3, b"k", 7, 1)])
    []
    >>> [row.labels for row in core.on_watermark(10)]
    [(1.0,)]
    """

    def __init__(self, settings: JoinSettings) -> None:
        self._rules = KeyRules(settings)
        self._keys: dict[bytes, KeyState] = {}
        self._timers: list[tuple[int, bytes, int]] = []
        self._scheduled: dict[tuple[bytes, int], int] = {}
        self._watermark_ms: int | None = None

    @property
    @override
    def settings(self) -> JoinSettings:
        return self._rules.settings

    @property
    @override
    def watermark_ms(self) -> int | None:
        return self._watermark_ms

    @property
    @override
    def counters(self) -> Mapping[str, int]:
        return {name: self._rules.counters[name] for name in COUNTERS}

    @property
    @override
    def open_impressions(self) -> int:
        return sum(
            item_state.impression is not None and not item_state.is_closed
            for state in self._keys.values()
            for item_state in state.items.values()
        )

    @property
    @override
    def held_actions(self) -> int:
        return sum(len(item_state.held) for state in self._keys.values() for item_state in state.items.values())

    @override
    def on_impression(self, impression: Impression) -> list[Row]:
        return self._step(impression)

    @override
    def on_action(self, action: Action) -> list[Row]:
        return self._step(action)

    @override
    def on_watermark(self, time_ms: int) -> list[Row]:
        if self._watermark_ms is not None and time_ms <= self._watermark_ms:
            return []
        self._watermark_ms = time_ms
        rows: list[Row] = []
        while self._timers and self._timers[0][0] <= time_ms:
            due_ms, key, item = heapq.heappop(self._timers)
            if self._scheduled.get((key, item)) != due_ms:
                continue
            del self._scheduled[key, item]
            rows += self._rules.advance_item(self._keys[key], item, due_ms)
            self._schedule(key, item)
        return rows

    @override
    def apply(self, events: Iterable[Event]) -> list[Row]:
        rows: list[Row] = []
        for event in events:
            rows += self._step(event) if isinstance(event, Impression | Action) else self.on_watermark(event.time_ms)
        return rows

    def _step(self, event: Impression | Action) -> list[Row]:
        state, rows = self._rules.step(self._keys.get(event.key), event, self._watermark_ms)
        if state is not None:
            self._keys[event.key] = state
        self._schedule(event.key, event.item)
        return rows

    def _schedule(self, key: bytes, item: int) -> None:
        state = self._keys.get(key)
        if state is None or item not in state.items:
            if state is not None and not state.items:
                del self._keys[key]
            return
        due_ms = self._rules.next_due(state.items[item])
        scheduled_ms = self._scheduled.get((key, item))
        if scheduled_ms is None or due_ms != scheduled_ms:
            self._scheduled[key, item] = due_ms
            heapq.heappush(self._timers, (due_ms, key, item))
