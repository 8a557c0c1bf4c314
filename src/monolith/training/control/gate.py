"""What holds the workers of a training and lets them go on: the seam behind StopTraining and ResumeTraining.

One worker is held by its own run (``RunGate``), several by a ``Barrier`` of ``monolith.training.hooks``. No transport
is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monolith.training.run import Run

__all__ = ["BlockStatus", "Gate", "RunGate", "WorkerStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStatus:
    """Which workers stand still."""

    blocked: tuple[int, ...]
    """Indices of those that do, ascending."""
    unblocked: tuple[int, ...]
    """Indices of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """Where one worker stands."""

    index: int
    step: int
    """Steps that it has taken."""
    state: str
    """training, held, done, stopping, or not there."""


class Gate(Protocol):
    """Holds workers at a step boundary. Every method may be called from any thread."""

    def place(self) -> bool:
        """Hold every worker after the step it is at; False when they are being held already."""
        ...

    def remove(self) -> None:
        """Let the workers go on; does nothing when they are not held."""
        ...

    def status(self) -> BlockStatus:
        """Return who stands still now."""
        ...


class RunGate:
    """The gate of a single worker: its run's own pause."""

    def __init__(self, run: Run, index: int = 0) -> None:
        self._run = run
        self._index = index

    def place(self) -> bool:
        """Pause the run."""
        return self._run.pause()

    def remove(self) -> None:
        """Resume the run."""
        self._run.resume()

    def status(self) -> BlockStatus:
        """Return whether the run stands still."""
        one = (self._index,)
        return BlockStatus(blocked=one, unblocked=()) if self._run.is_paused else BlockStatus(blocked=(), unblocked=one)
