"""``KeyRules``: the rules of the join for the state of one request key.

A (key, item) is in one of four states::

    none   --action-->      held    the action waits for its impression, and leaves as an orphan after orphan_hold
    none   --impression-->  open    held actions apply in order of (time, code)
    open   --W >= close-->  stub    standard mode emits; then after-window actions meet the late policy
    stub   --W >= close + horizon-->  none

``close`` is the time of the impression plus the window. Held actions also exist beside an open impression or a stub, if
they precede the impression by more than the skew.

The rules read no clock, draw no random number and depend on no hash order. An engine that owns the state, such as
Flink, passes the state of a key to ``step`` and stores the returned state. One thread uses a state at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace

from monolith.stream.events import INVALID, Action, Event, Impression, Row
from monolith.stream.hashes import draw_uniform
from monolith.stream.settings import JoinSettings

__all__ = ["COUNTERS", "ItemState", "KeyRules", "KeyState"]

COUNTERS = (
    "dup_impression",
    "dup_action",
    "late_impression",
    "late_impression_dropped",
    "late_dropped",
    "late_emitted",
    "late_no_change",
    "orphan",
    "action_overflow",
    "orphan_overflow",
    "sampled_out",
)
"""Names of the counters of a core."""


@dataclass(slots=True)
class ItemState:
    """State of one (key, item)."""

    impression: Impression | None = None
    """The impression, open or closed; None if it is unknown."""
    is_closed: bool = False
    codes: dict[int, int] = field(default_factory=dict)
    """Earliest time of each code that counts: in the window, or accepted by the late policy."""
    after: dict[int, int] = field(default_factory=dict)
    """Earliest time of each after-window code that waits for the close. Disjoint from ``codes``."""
    held: set[tuple[int, int]] = field(default_factory=set)
    """(time, code) of each action that waits for an impression."""
    emission: int = 0
    """Number of the last emission, also if the sampler removed its row."""
    emitted: tuple[int, ...] = ()
    """``actions`` of the last row."""
    first_weight: float = 0.0
    """Weight of the row of emission 0; 0 if the sampler removed the row."""


@dataclass(slots=True)
class KeyState:
    """State of one request key: its items."""

    items: dict[int, ItemState] = field(default_factory=dict)


class KeyRules:
    """The rules of the join under some settings, with counters.

    >>> rules = KeyRules(JoinSettings(window_ms=10))
    >>> state, rows = rules.step(None, Impression(0, b"k", 7), None)
    >>> state, rows = rules.step(state, Action(3, b"k", 7, 1), None)
    >>> rules.advance(state, 10)[0].labels
    (1.0,)
    """

    def __init__(self, settings: JoinSettings) -> None:
        self.settings = settings
        self.counters: Counter[str] = Counter()

    # --- one key ------------------------------------------------------------------------------------------------------

    def step(self, state: KeyState | None, event: Event, watermark_ms: int | None) -> tuple[KeyState | None, list[Row]]:
        """Apply an event to the state of its key, which the call may change in place.

        Args:
            state: State of the key; None if the key is new.
            event: An impression or action of the key, or a watermark.
            watermark_ms: Watermark before the event; None before the first one.

        Returns:
            The new state, None if nothing is left of it; and the emitted rows.
        """
        state = KeyState() if state is None else state
        if isinstance(event, Impression):
            rows = self.add_impression(state, event, watermark_ms)
        elif isinstance(event, Action):
            rows = self.add_action(state, event, watermark_ms)
        else:
            rows = self.advance(state, max(event.time_ms, event.time_ms if watermark_ms is None else watermark_ms))
        return (state if state.items else None), rows

    def advance(self, state: KeyState, watermark_ms: int) -> list[Row]:
        """Close windows and forget state that a watermark passes, in order of (time, item)."""
        due = [(self.next_due(item_state), item) for item, item_state in state.items.items()]
        heapq.heapify(due)
        rows = []
        while due and due[0][0] <= watermark_ms:
            time_ms, item = heapq.heappop(due)
            rows += self.advance_item(state, item, time_ms)
            if item in state.items:
                heapq.heappush(due, (self.next_due(state.items[item]), item))
        return rows

    # --- one item -----------------------------------------------------------------------------------------------------

    def next_due(self, item_state: ItemState) -> int:
        """Return the smallest watermark that changes the state of an item."""
        times = [time_ms + self.settings.orphan_hold for time_ms, _ in item_state.held]
        if item_state.impression is not None:
            close_ms = item_state.impression.time_ms + self.settings.window_ms
            times.append(close_ms + self.settings.horizon if item_state.is_closed else close_ms)
        return min(times)

    def advance_item(self, state: KeyState, item: int, time_ms: int) -> list[Row]:
        """Apply a watermark to one item, and remove the item if nothing is left of it."""
        item_state = state.items[item]
        rows: list[Row] = []
        impression = item_state.impression
        if impression is not None:
            close_ms = impression.time_ms + self.settings.window_ms
            if not item_state.is_closed and time_ms >= close_ms:
                rows = self._close(item_state)
            if item_state.is_closed and time_ms >= close_ms + self.settings.horizon:
                item_state = state.items[item] = ItemState(held=item_state.held)
        expired = {held for held in item_state.held if time_ms >= held[0] + self.settings.orphan_hold}
        self.counters["orphan"] += len(expired)
        item_state.held -= expired
        _prune(state, item)
        return rows

    def add_impression(self, state: KeyState, impression: Impression, watermark_ms: int | None) -> list[Row]:
        """Open an impression. A late impression also closes, unless its horizon has passed."""
        close_ms = impression.time_ms + self.settings.window_ms
        is_late = watermark_ms is not None and watermark_ms >= close_ms
        if watermark_ms is not None and watermark_ms >= close_ms + self.settings.horizon:
            self.counters["late_impression_dropped"] += 1
            return []
        item_state = state.items.setdefault(impression.item, ItemState())
        first = item_state.impression
        if first is not None:
            self.counters["dup_impression"] += 1
            is_earlier = (impression.time_ms, impression.event_id) < (first.time_ms, first.event_id)
            if self.settings.mode == "fast" or item_state.is_closed or not is_earlier:
                return []
        self._judge_again(item_state, impression)
        rows = self._emit_first(item_state) if self.settings.mode == "fast" else []
        start_ms = impression.time_ms - self.settings.skew_ms
        for time_ms, code in sorted(held for held in item_state.held if held[0] >= start_ms):
            item_state.held.discard((time_ms, code))
            rows += self._take(item_state, time_ms, code)
        if is_late:
            if self.settings.mode == "standard":
                self.counters["late_impression"] += 1
            rows += self._close(item_state)
        return rows

    def add_action(self, state: KeyState, action: Action, watermark_ms: int | None) -> list[Row]:
        """Apply an action to its impression, or hold it until the impression arrives."""
        item_state = state.items.setdefault(action.item, ItemState())
        impression = item_state.impression
        if impression is None or action.time_ms < impression.time_ms - self.settings.skew_ms:
            self._hold(item_state, action, watermark_ms)
            _prune(state, action.item)
            return []
        if item_state.is_closed:
            return self._take_late(item_state, action.time_ms, action.code)
        return self._take(item_state, action.time_ms, action.code)

    # --- actions ------------------------------------------------------------------------------------------------------

    def _hold(self, item_state: ItemState, action: Action, watermark_ms: int | None) -> None:
        if watermark_ms is not None and watermark_ms >= action.time_ms + self.settings.orphan_hold:
            self.counters["orphan"] += 1
        elif (action.time_ms, action.code) in item_state.held:
            self.counters["dup_action"] += 1
        elif len(item_state.held) >= self.settings.max_orphans:
            self.counters["orphan_overflow"] += 1
        else:
            item_state.held.add((action.time_ms, action.code))

    def _judge_again(self, item_state: ItemState, impression: Impression) -> None:
        """Set the impression, and sort known actions into its window or behind it.

        An earlier impression moves the window back, so no known action precedes the new window.
        """
        known = item_state.codes | item_state.after
        close_ms = impression.time_ms + self.settings.window_ms
        item_state.impression = impression
        item_state.codes = {code: time_ms for code, time_ms in known.items() if time_ms < close_ms}
        item_state.after = {code: time_ms for code, time_ms in known.items() if time_ms >= close_ms}

    def _take(self, item_state: ItemState, time_ms: int, code: int) -> list[Row]:
        """Apply an action to an open impression."""
        assert item_state.impression is not None
        is_after = time_ms >= item_state.impression.time_ms + self.settings.window_ms
        if self.settings.mode == "fast":
            return self._take_late(item_state, time_ms, code) if is_after else self._learn(item_state, time_ms, code)
        codes, after = item_state.codes, item_state.after
        if code in codes or code in after:
            self.counters["dup_action"] += 1
            if code in codes:
                codes[code] = min(codes[code], time_ms)
            elif is_after:
                after[code] = min(after[code], time_ms)
            else:
                del after[code]
                codes[code] = time_ms
        elif len(codes) + len(after) >= self.settings.max_codes:
            self.counters["action_overflow"] += 1
        else:
            (after if is_after else codes)[code] = time_ms
        return []

    def _take_late(self, item_state: ItemState, time_ms: int, code: int) -> list[Row]:
        """Apply the late policy to an action."""
        if self.settings.late == "drop" and code not in item_state.codes:
            self.counters["late_dropped"] += 1
            return []
        return self._learn(item_state, time_ms, code)

    def _learn(self, item_state: ItemState, time_ms: int, code: int) -> list[Row]:
        """Add a code to an impression whose first emission is over, and emit if a label changes."""
        if code in item_state.codes:
            self.counters["dup_action"] += 1
            return []
        if len(item_state.codes) >= self.settings.max_codes:
            self.counters["action_overflow"] += 1
            return []
        old_codes = tuple(sorted(item_state.codes))
        old_labels = self._labels(item_state)
        item_state.codes[code] = time_ms
        labels = self._labels(item_state)
        is_standard = self.settings.mode == "standard"
        if labels == old_labels:
            self.counters["late_no_change"] += is_standard
            return []
        self.counters["late_emitted"] += is_standard
        item_state.emission += 1
        cause_ms = max(time_ms, self._first_row_ms(item_state))
        is_changed = [new != old for new, old in zip(labels, old_labels, strict=True)]
        rows = []
        if self.settings.late == "correct" and item_state.first_weight:
            undone = _keep(old_labels, is_changed)
            rows.append(self._row(item_state, undone, old_codes, -item_state.first_weight, cause_ms))
        if not is_standard or self.settings.late == "correct":
            labels = _keep(labels, is_changed)
        codes = tuple(sorted(item_state.codes))
        rows.append(self._row(item_state, labels, codes, 1.0, cause_ms))
        item_state.emitted = codes
        return rows

    # --- emissions ----------------------------------------------------------------------------------------------------

    def _close(self, item_state: ItemState) -> list[Row]:
        item_state.is_closed = True
        rows = []
        if self.settings.mode == "standard":
            rows = self._emit_first(item_state)
            for time_ms, code in sorted((time_ms, code) for code, time_ms in item_state.after.items()):
                rows += self._take_late(item_state, time_ms, code)
            item_state.after = {}
        if self.settings.late == "drop" and item_state.impression is not None:
            item_state.impression = replace(item_state.impression, payload=b"")  # no later row needs the features
        return rows

    def _emit_first(self, item_state: ItemState) -> list[Row]:
        """Return the row of emission 0, or no row if the sampler removes it."""
        assert item_state.impression is not None
        labels = self._labels(item_state)
        weight = 1.0
        if not any(labels):
            rate = self.settings.negatives.sample_rate
            if (
                draw_uniform(item_state.impression.key, item_state.impression.item, self.settings.negatives.salt)
                >= rate
            ):
                self.counters["sampled_out"] += 1
                return []
            weight = 1.0 / rate if self.settings.negatives.sampling == "weight" else 1.0
        codes = tuple(sorted(item_state.codes))
        row = self._row(item_state, labels, codes, weight, self._first_row_ms(item_state))
        item_state.first_weight = weight
        item_state.emitted = codes
        return [row]

    def _labels(self, item_state: ItemState) -> tuple[float, ...]:
        return tuple(float(any(code in item_state.codes for code in task)) for task in self.settings.tasks)

    def _first_row_ms(self, item_state: ItemState) -> int:
        """Return the event time from which the row of emission 0 can exist."""
        assert item_state.impression is not None
        return item_state.impression.time_ms + (0 if self.settings.mode == "fast" else self.settings.window_ms)

    def _row(
        self, item_state: ItemState, labels: tuple[float, ...], actions: tuple[int, ...], weight: float, cause_ms: int
    ) -> Row:
        assert item_state.impression is not None
        return Row(
            impression=item_state.impression,
            labels=labels,
            actions=actions,
            pre_actions=item_state.emitted,
            emission=item_state.emission,
            weight=weight,
            sample_rate=self.settings.negatives.sample_rate if self.settings.negatives.sampling == "logit" else 1.0,
            cause_time_ms=cause_ms,
        )


def _keep(labels: tuple[float, ...], is_kept: list[bool]) -> tuple[float, ...]:
    return tuple(label if kept else INVALID for label, kept in zip(labels, is_kept, strict=True))


def _prune(state: KeyState, item: int) -> None:
    item_state = state.items[item]
    if item_state.impression is None and not item_state.held:
        del state.items[item]
