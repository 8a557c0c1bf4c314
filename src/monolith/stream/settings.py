"""``JoinSettings``: windows, late policy, mode, sampling and bounds of a joiner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from monolith.core.config_sections import fill_sections, flat_fields, section
from monolith.core.errors import ConfigError

__all__ = ["IntakeSettings", "JoinSettings", "NegativeSampling", "parse_tasks"]

MAX_CODE = (1 << 31) - 1
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
MOST_MS = 1 << 60
"""Longest time of a setting, so that sums of event times, windows and horizons stay within int64."""
MOST_COUNT = (1 << 63) - 1
MOST_RECORD_BYTES = (16 << 20) - (64 << 10)
"""A record of the event log has at most 16 MiB; the rest is for labels, LineId and key of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NegativeSampling:
    """Which rows without a positive label are kept."""

    sample_rate: float = 1.0
    """Share of rows without a positive label that are kept."""
    sampling: Literal["logit", "weight"] | None = None
    """Correction of the sample rate: ``logit`` writes it into the rows, ``weight`` divides the weight by it. None is
    ``weight`` for several tasks in standard mode, else ``logit``."""
    salt: int = 0
    """Number that changes the sampled set."""

    def __post_init__(self) -> None:
        if self.sampling is not None:
            _check_choice("sampling", str(self.sampling), ("logit", "weight"))
        _check_whole("salt", self.salt, least=0, most=(1 << 64) - 1)
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"sample_rate is {self.sample_rate!r}, expected above 0 and at most 1; 1 keeps all rows")


@dataclass(frozen=True, kw_only=True, slots=True)
class IntakeSettings:
    """Bounds of input records, and how the watermark follows them."""

    out_of_order_ms: int = 10_000
    """Disorder that the watermark allows for."""
    future_ms: int = 300_000
    """Most time by which an event may be ahead of its ingest time."""
    idle_ms: int = 10_000
    """Silence after which the watermark ignores a partition."""
    max_record_bytes: int = MOST_RECORD_BYTES
    """Largest input record, and largest Example of an event."""

    def __post_init__(self) -> None:
        for name in ("out_of_order_ms", "future_ms", "idle_ms"):
            _check_whole(name, getattr(self, name), least=0, most=MOST_MS)
        _check_whole("max_record_bytes", self.max_record_bytes, least=1, most=MOST_COUNT)


@dataclass(frozen=True, kw_only=True, init=False)
class JoinSettings:
    """Settings of a joiner. Times are milliseconds.

    The constructor takes sections, single fields of them, or both.

    Raises:
        ConfigError: A value is out of range, or two settings contradict each other.

    >>> JoinSettings(tasks=parse_tasks("click:1;like:2"), sample_rate=0.5).negatives
    NegativeSampling(sample_rate=0.5, sampling='weight', salt=0)
    """

    tasks: tuple[frozenset[int], ...] = (frozenset({1}),)
    """Positive action codes of each task; label i of a row belongs to task i."""
    window_ms: int = 10 * MINUTE_MS
    """Time after an impression in which its actions count."""
    horizon_ms: int | None = None
    """Time after the close in which the joiner remembers an impression. None is a day, or 10 minutes if the late policy
    is ``drop``."""
    orphan_hold_ms: int | None = None
    """Time for which an action waits for its impression. None is the window."""
    skew_ms: int = 2_000
    """Time by which an action may precede its impression."""
    late: Literal["drop", "reemit", "correct"] = "drop"
    """Policy for late actions: ``drop`` counts them, ``reemit`` emits the whole row again, ``correct`` emits an undo
    row and its replacement."""
    mode: Literal["standard", "fast"] = "standard"
    """``standard`` emits at the close of the window. ``fast`` emits each impression immediately as a negative, and each
    positive when its action arrives."""
    max_codes: int = 64
    """Most distinct codes per impression."""
    max_orphans: int = 1_024
    """Most waiting actions per (key, item)."""
    negatives: NegativeSampling = section(NegativeSampling)
    intake: IntakeSettings = section(IntakeSettings)

    def __init__(self, **settings: Any) -> None:
        fill_sections(self, settings, {})
        self.__post_init__()

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
        is_multi_task = self.mode == "standard" and len(self.tasks) > 1
        if self.negatives.sampling is None:
            object.__setattr__(
                self, "negatives", replace(self.negatives, sampling="weight" if is_multi_task else "logit")
            )
        _check_whole("window_ms", self.window_ms, least=1, most=MOST_MS)
        for name in ("max_codes", "max_orphans"):
            _check_whole(name, getattr(self, name), least=1, most=MOST_COUNT)
        for name in ("horizon_ms", "orphan_hold_ms", "skew_ms"):
            _check_whole(name, getattr(self, name), least=0, most=MOST_MS)
        if self.mode == "fast" and self.late == "correct":
            raise ConfigError("late is 'correct' in fast mode, expected 'drop' or 'reemit'; use mode='standard'")
        if self.negatives.sampling == "logit" and is_multi_task:
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
        values = {name: field.read(self) for name, field in flat_fields(JoinSettings).items()}
        values["tasks"] = [sorted(codes) for codes in self.tasks]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JoinSettings:
        """Return the settings that ``to_json`` wrote.

        Raises:
            ConfigError: A value is out of range, or a name is unknown.
        """
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


def _check_whole(name: str, value: object, *, least: int, most: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {least}")
    if value > most:
        raise ConfigError(f"{name} is {value!r}, expected a whole number from {least} to {most}; give a smaller one")
