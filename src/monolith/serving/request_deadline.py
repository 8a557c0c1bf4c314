"""Until when the request that this thread computes is wanted; a model that asks others bounds its calls by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["request_deadline_s", "until"]

_deadline_s: ContextVar[float | None] = ContextVar("monolith_request_deadline_s", default=None)


def request_deadline_s() -> float | None:
    """Return the moment, on the server's monotonic clock; None outside of a request."""
    return _deadline_s.get()


@contextmanager
def until(deadline_s: float | None) -> Iterator[None]:
    """Compute what is wanted until then; None = without end."""
    token = _deadline_s.set(deadline_s)
    try:
        yield
    finally:
        _deadline_s.reset(token)
