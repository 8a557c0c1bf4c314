"""Evaluating beside a training: the newest checkpoint, again and again, until the last one.

Listing and evaluating checkpoints are arguments; this module waits and counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ArtifactError, CheckpointMissing, ConfigError

__all__ = ["ListCheckpoints", "evaluate_checkpoints", "follow_checkpoints"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

ListCheckpoints: TypeAlias = Callable[[], Sequence[tuple[int, Path]]]
"""Returns (step, folder) of the checkpoints there are now, in any order."""

TIMEOUT_S = 5 * 3600.0
"""How long without a new checkpoint before the training is taken for ended."""


def follow_checkpoints(
    list_checkpoints: ListCheckpoints,
    *,
    max_steps: int | None = None,
    timeout_s: float | None = TIMEOUT_S,
    poll_s: float = 10.0,
    after_step: int = -1,
    clock: Clock | None = None,
) -> Iterator[tuple[int, Path]]:
    """Yield the newest checkpoint whenever it is newer than the last one yielded; steps only go up.

    Those between that came while the caller was busy are left out. Ends after a checkpoint of ``max_steps`` or more, or
    when no new one came for ``timeout_s``.

    Args:
        list_checkpoints: Returns the checkpoints of the folder.
        max_steps: The step with which the training ends; None = only time ends the waiting.
        timeout_s: Seconds without a new checkpoint; the time that the caller spends on one does not count. None waits
            for ever.
        poll_s: Seconds from one look to the next.
        after_step: Checkpoints up to this step are old, as after a restart.
        clock: Where the time comes from; the system's when not given.
    """
    if not poll_s > 0:
        raise ConfigError(f"poll_s is {poll_s}; give a positive number of seconds")
    return _follow(list_checkpoints, max_steps, timeout_s, poll_s, after_step, clock or SystemClock())


def _follow(
    list_checkpoints: ListCheckpoints,
    max_steps: int | None,
    timeout_s: float | None,
    poll_s: float,
    last: int,
    clock: Clock,
) -> Iterator[tuple[int, Path]]:
    deadline = Deadline(clock, timeout_s)
    while max_steps is None or last < max_steps:
        step, path = max(list_checkpoints(), default=(last, Path()))
        if step > last:
            last = step
            yield step, path
            deadline = Deadline(clock, timeout_s)
        elif deadline.is_past:
            logger.info("no new checkpoint, the waiting ends last_step=%d timeout_s=%s", last, timeout_s)
            return
        else:
            clock.sleep_s(min(poll_s, deadline.remaining_s()))


def evaluate_checkpoints(
    checkpoints: Iterator[tuple[int, Path]], evaluate: Callable[[int, Path], T]
) -> Iterator[tuple[int, T]]:
    """Yield (step, result) of each checkpoint, such as those of ``follow_checkpoints``.

    A checkpoint that retention removed before it was read, or meanwhile, is passed over: a newer one is there.
    """
    for step, path in checkpoints:
        try:
            result = evaluate(step, path)
        except (ArtifactError, FileNotFoundError) as error:
            if path.exists() and not isinstance(error, CheckpointMissing):
                raise
            logger.warning("checkpoint is gone before it was evaluated step=%d path=%s reason=%s", step, path, error)
            continue
        yield step, result
