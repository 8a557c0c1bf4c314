"""``PauseControl``: pauses and resumes the workers of a training; the seam behind StopTraining and ResumeTraining.

``RunPause`` pauses one worker by its run, ``JobPause`` of ``monolith.training.cluster`` all workers of a job, and a
``Barrier`` of ``monolith.training.hooks`` the workers of one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monolith.training.run import Run

__all__ = ["BlockStatus", "PauseControl", "RunPause", "WorkerStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStatus:
    """The workers that are paused, and the others."""

    blocked: tuple[int, ...]
    """Indices of paused workers, ascending."""
    unblocked: tuple[int, ...]
    """Indices of the other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The progress of one worker."""

    index: int
    step: int
    """Steps that the worker has taken."""
    state: str
    """training, held, done, stopping, or not there."""


class PauseControl(Protocol):
    """Pauses workers at a step boundary. Every method may be called from any thread."""

    def pause(self) -> bool:
        """Pause every worker after its current step; return False if a pause is active."""
        ...

    def resume(self) -> None:
        """Resume the workers; does nothing without a pause."""
        ...

    def status(self) -> BlockStatus:
        """Return the workers that are paused now."""
        ...


class RunPause:
    """The ``PauseControl`` of a single worker: the pause of its run."""

    def __init__(self, run: Run, index: int = 0) -> None:
        self._run = run
        self._index = index

    def pause(self) -> bool:
        """Pause the run."""
        return self._run.pause()

    def resume(self) -> None:
        """Resume the run."""
        self._run.resume()

    def status(self) -> BlockStatus:
        """Return whether the run is paused."""
        one = (self._index,)
        return BlockStatus(blocked=one, unblocked=()) if self._run.is_paused else BlockStatus(blocked=(), unblocked=one)
