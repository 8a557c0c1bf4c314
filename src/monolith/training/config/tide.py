"""``TideWindow``, the daily window of plentiful machines, and ``SaveTimer``, the schedule of checkpoints.

Time is an argument; no clock is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from monolith.core.errors import ConfigError
from monolith.training.config._checks import check_whole
from monolith.training.config.checkpoint import CheckpointConfig

__all__ = ["SaveTimer", "TideWindow", "is_available"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TideWindow:
    """A span of each day, in UTC, from its start until before its end; it may span midnight."""

    start_hour: int
    start_minute: int = 0
    end_hour: int
    end_minute: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "start_hour", "end_hour", at_most=23)
        check_whole(self, "start_minute", "end_minute", at_most=59)

    @classmethod
    def from_config(cls, config: CheckpointConfig) -> TideWindow | None:
        """Return the window of a configuration, or None without a window."""
        if config.tide.tide_start_hour is None or config.tide.tide_end_hour is None:
            return None
        return cls(
            start_hour=config.tide.tide_start_hour,
            start_minute=config.tide.tide_start_minute or 0,
            end_hour=config.tide.tide_end_hour,
            end_minute=config.tide.tide_end_minute or 0,
        )


def is_available(window: TideWindow, now: datetime | float) -> bool:
    """Return whether a moment is inside the window; a window that ends where it starts is the whole day.

    Args:
        window: The window.
        now: Unix seconds, or a ``datetime`` with a zone.

    Raises:
        ConfigError: ``now`` is a ``datetime`` without a zone.

    >>> night = TideWindow(start_hour=22, end_hour=6)
    >>> [is_available(night, datetime(2024, 1, 1, hour, tzinfo=UTC)) for hour in (5, 6, 12, 22)]
    [True, False, False, True]
    """
    if not isinstance(now, datetime):
        now = datetime.fromtimestamp(now, UTC)
    elif now.tzinfo is None:
        raise ConfigError(f"now is {now!r}, which has no zone; give unix seconds or a datetime with tzinfo=UTC")
    now = now.astimezone(UTC)
    moment = (now.hour, now.minute)
    start = (window.start_hour, window.start_minute)
    end = (window.end_hour, window.end_minute)
    if start < end:
        return start <= moment < end
    return moment >= start or moment < end


class SaveTimer:
    """Schedule of checkpoints.

    A save is due ``every_s`` seconds or ``every_steps`` steps after the last save. Outside the tide window only
    ``tide_save_s`` counts, if it is set. The state that a run begins with is never due, and no step is due twice.

    >>> timer = SaveTimer(every_steps=100)
    >>> timer.start(0, now_s=0.0)
    >>> timer.is_due(99, 1.0), timer.is_due(100, 1.0)
    (False, True)
    >>> timer.mark_saved(100, 1.0)
    >>> timer.is_due(100, 1.0), timer.is_due(200, 2.0)
    (False, True)
    """

    def __init__(
        self,
        *,
        every_s: float | None = None,
        every_steps: int | None = None,
        tide: TideWindow | None = None,
        tide_save_s: float | None = None,
    ) -> None:
        """Make a timer that has not started.

        Args:
            every_s: Seconds between saves; with neither this nor ``every_steps``, no save is due inside the window.
            every_steps: Steps between saves.
            tide: The window; None = always inside.
            tide_save_s: Seconds between saves outside the window; None = as inside.

        Raises:
            ConfigError: ``every_s`` and ``every_steps`` are both given.
        """
        if every_s is not None and every_steps is not None:
            raise ConfigError(f"every_s is {every_s} and every_steps is {every_steps}; give one of the two")
        self._every_s = every_s
        self._every_steps = every_steps
        self._tide = tide
        self._tide_save_s = tide_save_s
        self._last: tuple[int, float] | None = None

    @classmethod
    def from_config(cls, config: CheckpointConfig) -> SaveTimer:
        """Return the timer of whole checkpoints."""
        return cls(
            every_s=config.save_checkpoints_s,
            every_steps=config.save_checkpoints_steps,
            tide=TideWindow.from_config(config),
            tide_save_s=config.tide.tide_save_s,
        )

    @classmethod
    def dense_only(cls, config: CheckpointConfig) -> SaveTimer:
        """Return the timer of the extra saves of the dense part, which ignore the tide."""
        return cls(
            every_s=config.dense_only_save_checkpoints_s,
            every_steps=config.dense_only_save_checkpoints_steps,
        )

    @property
    def last(self) -> tuple[int, float] | None:
        """Step and time from which the timer counts; None before its start."""
        return self._last

    def start(self, step: int, now_s: float) -> None:
        """Start to count at the first step of the run."""
        self._last = (step, now_s)

    def is_due(self, step: int, now_s: float) -> bool:
        """Return whether a save is due at ``step``; the first call starts a timer that was not started."""
        if self._last is None:
            self.start(step, now_s)
            return False
        last_step, last_s = self._last
        if now_s < last_s:  # the wall clock was set back; waiting for it could take hours
            self._last = (last_step, now_s)
            return False
        if step == last_step:
            return False
        waited_s = now_s - last_s
        if self._tide is not None and self._tide_save_s is not None and not is_available(self._tide, now_s):
            return waited_s >= self._tide_save_s
        if self._every_s is not None:
            return waited_s >= self._every_s
        return self._every_steps is not None and step >= last_step + self._every_steps

    def mark_saved(self, step: int, now_s: float) -> None:
        """Start to count from a save."""
        self._last = (step, now_s)
