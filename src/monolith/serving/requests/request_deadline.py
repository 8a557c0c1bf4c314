"""Deadline of the request that the current thread serves; remote calls inherit it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["deadline", "request_deadline_s"]

_deadline_s: ContextVar[float | None] = ContextVar("monolith_request_deadline_s", default=None)


def request_deadline_s() -> float | None:
    """Return the deadline on the server's monotonic clock; None outside of a request."""
    return _deadline_s.get()


@contextmanager
def deadline(deadline_s: float | None) -> Iterator[None]:
    """Set the deadline of the current thread; None removes it."""
    token = _deadline_s.set(deadline_s)
    try:
        yield
    finally:
        _deadline_s.reset(token)
