"""``JoinSettings``: windows, late policy, mode, sampling and bounds of a joiner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from monolith.core.errors import ConfigError

__all__ = ["JoinSettings", "parse_tasks"]

MAX_CODE = (1 << 31) - 1
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinSettings:
    """Settings of a joiner. Times are milliseconds.

    Args:
        tasks: Positive action codes of each task; label i of a row belongs to task i.
        window_ms: Time after an impression in which its actions count.
        horizon_ms: Time after the close in which the joiner remembers an impression. None is a day, or 10 minutes
            if the late policy is ``drop``.
        orphan_hold_ms: Time for which an action waits for its impression. None is the window.
        skew_ms: Time by which an action may precede its impression.
        late: Policy for late actions. ``drop`` counts them, ``reemit`` emits the whole row again, ``correct`` emits an
            undo row and its replacement.
        mode: ``standard`` emits at the close of the window. ``fast`` emits each impression immediately as a negative,
            and each positive when its action arrives.
        sample_rate: Share of rows without a positive label that are kept.
        sampling: Correction of the sample rate: ``logit`` writes it into the rows, ``weight`` divides the weight by it.
            None is ``weight`` for several tasks in standard mode, else ``logit``.
        salt: Number that changes the sampled set.
        max_codes: Most distinct codes per impression.
        max_orphans: Most waiting actions per (key, item).
        out_of_order_ms: Disorder that the watermark allows for.
        future_ms: Most time by which an event may be ahead of its ingest time.
        idle_ms: Silence after which the watermark ignores a partition.
        max_record_bytes: Largest input record.

    Raises:
        ConfigError: A value is out of range, or two settings contradict each other.

    >>> JoinSettings(tasks=parse_tasks("click:1;like:2")).sampling
    'weight'
    """

    tasks: tuple[frozenset[int], ...] = (frozenset({1}),)
    window_ms: int = 10 * MINUTE_MS
    horizon_ms: int | None = None
    orphan_hold_ms: int | None = None
    skew_ms: int = 2_000
    late: Literal["drop", "reemit", "correct"] = "drop"
    mode: Literal["standard", "fast"] = "standard"
    sample_rate: float = 1.0
    sampling: Literal["logit", "weight"] | None = None
    salt: int = 0
    max_codes: int = 64
    max_orphans: int = 1_024
    out_of_order_ms: int = 10_000
    future_ms: int = 300_000
    idle_ms: int = 10_000
    max_record_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(_check_task(index, codes) for index, codes in enumerate(self.tasks)))
        if not self.tasks:
            raise ConfigError("tasks is empty, expected at least one set of positive codes, such as ({1},)")
        _check_choice("late", self.late, ("drop", "reemit", "correct"))
        _check_choice("mode", self.mode, ("standard", "fast"))
        if self.horizon_ms is None:
            object.__setattr__(self, "horizon_ms", 10 * MINUTE_MS if self.late == "drop" else DAY_MS)
        if self.orphan_hold_ms is None:
            object.__setattr__(self, "orphan_hold_ms", self.window_ms)
        if self.sampling is None:
            is_multi_task = self.mode == "standard" and len(self.tasks) > 1
            object.__setattr__(self, "sampling", "weight" if is_multi_task else "logit")
        _check_choice("sampling", str(self.sampling), ("logit", "weight"))
        for name in ("window_ms", "max_codes", "max_orphans", "max_record_bytes"):
            _check_whole(name, getattr(self, name), least=1)
        for name in ("horizon_ms", "orphan_hold_ms", "skew_ms", "out_of_order_ms", "future_ms", "idle_ms", "salt"):
            _check_whole(name, getattr(self, name), least=0)
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"sample_rate is {self.sample_rate!r}, expected above 0 and at most 1; 1 keeps all rows")
        if self.mode == "fast" and self.late == "correct":
            raise ConfigError("late is 'correct' in fast mode, expected 'drop' or 'reemit'; use mode='standard'")
        if self.sampling == "logit" and self.mode == "standard" and len(self.tasks) > 1:
            raise ConfigError(
                f"sampling is 'logit' for {len(self.tasks)} tasks in standard mode, expected 'weight'; "
                "one rate does not fit a row that is positive for one task and negative for another"
            )

    @property
    def horizon(self) -> int:
        """``horizon_ms`` with its default applied."""
        return self.horizon_ms or 0

    @property
    def orphan_hold(self) -> int:
        """``orphan_hold_ms`` with its default applied."""
        return self.orphan_hold_ms or 0

    def digest(self) -> str:
        """Return a hash of all settings. A snapshot holds it, to detect settings that changed."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["tasks"] = [sorted(codes) for codes in self.tasks]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JoinSettings:
        """Return the settings that ``to_json`` wrote.

        Raises:
            ConfigError: A value is out of range, or a name is unknown.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"join setting {unknown[0]!r} is unknown, expected one of {', '.join(sorted(known))}")
        return cls(**{**values, "tasks": tuple(frozenset(codes) for codes in values["tasks"])})


def parse_tasks(text: str) -> tuple[frozenset[int], ...]:
    """Return the tasks of a text such as ``click:1;like:2,3``. Names only help the reader of the text.

    Raises:
        ConfigError: A part does not have the form ``name:code,code``.

    >>> [sorted(codes) for codes in parse_tasks("click:1;like:2,3")]
    [[1], [2, 3]]
    """
    tasks = []
    for part in text.split(";"):
        name, _, codes = part.partition(":")
        try:
            tasks.append(frozenset(int(code) for code in codes.split(",")))
        except ValueError:
            raise ConfigError(
                f"task {part!r} of {text!r} is malformed, expected name:code,code; try 'click:1'"
            ) from None
        if not name.strip():
            raise ConfigError(f"task {part!r} of {text!r} has no name, expected name:code,code; try 'click:1'")
    return tuple(tasks)


def _check_task(index: int, codes: Iterable[int]) -> frozenset[int]:
    task = frozenset(codes)
    if not task or any(type(code) is not int or not 0 <= code <= MAX_CODE for code in task):
        raise ConfigError(f"tasks[{index}] is {sorted(task)!r}, expected codes from 0 to {MAX_CODE}; try {{1}}")
    return task


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(choices)}")


def _check_whole(name: str, value: object, *, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {least}")
