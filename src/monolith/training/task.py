"""``Task``: the interface of a job that brings its own data and model. ``monolith.compat.tasks`` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

__all__ = ["Mode", "Task"]

Mode: TypeAlias = Literal["train", "eval", "predict"]
"""The purpose of a task's data."""


@runtime_checkable
class Task(Protocol):
    """A job as two functions: one makes the data, one makes the model."""

    def create_input_fn(self, mode: Mode) -> Callable[..., Any]:
        """Return a function that returns the data for a mode."""
        ...

    def create_model_fn(self) -> Callable[..., Any]:
        """Return the model, or a function that returns it."""
        ...
