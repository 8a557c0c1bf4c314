"""``bounded_call``: a call with a timeout, even if the callee has none.

Discovery backends have timeouts, but a job must not hang when a backend ignores its own. Each call runs in a thread
that is abandoned after the timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from monolith.core.errors import RpcTimeout

__all__ = ["bounded_call"]

T = TypeVar("T")


def bounded_call(
    call: Callable[[], T], operation: str, timeout_s: float, kind: Literal["operation", "cleanup"] = "operation"
) -> T:
    """Return the result of ``call``, or raise its error.

    Args:
        call: The call; after a timeout it may still run.
        operation: Its description, for the error of the timeout.
        timeout_s: The timeout in seconds.
        kind: Whether it is part of the work, or of the cleanup.

    Raises:
        RpcTimeout: The call takes longer.
    """
    answers: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name=f"discovery: {operation}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failures:
        raise failures[0]
    if not answers:
        raise RpcTimeout(f"Timed out during discovery {kind}: {operation} after {timeout_s * 1000:.0f}ms")
    return answers[0]
