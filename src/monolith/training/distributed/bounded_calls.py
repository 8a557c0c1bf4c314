"""Calls that end in time, whether or not what they call does.

Discovery backends have deadlines of their own, but a job must not hang on one that breaks its word: a call is made in
a thread that is left behind when its time is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from monolith.core.errors import RpcTimeout

__all__ = ["bounded_call"]

T = TypeVar("T")


def bounded_call(
    call: Callable[[], T], operation: str, timeout_ms: int, kind: Literal["operation", "cleanup"] = "operation"
) -> T:
    """Return what ``call`` returns, or raise what it raises.

    Args:
        call: The call; after a timeout it may still be under way.
        operation: What it is, for the text of the timeout.
        timeout_ms: How long it may take.
        kind: Whether it is part of the work, or of leaving.

    Raises:
        RpcTimeout: It takes longer.
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
    thread.join(timeout_ms / 1000)
    if failures:
        raise failures[0]
    if not answers:
        raise RpcTimeout(f"Timed out during discovery {kind}: {operation} after {timeout_ms}ms")
    return answers[0]
