"""Parallel calls to several servers: all responses, or one error that names every failed server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monolith.core.errors import ClusterError, MonolithError
from monolith.ps.link import ServerLink

__all__ = ["call_all"]


def call_all(
    links: Sequence[ServerLink], verb: str, requests: Mapping[int, Any], timeout_s: float | None
) -> dict[int, Any]:
    """Send each server its request; return the responses by server index.

    Raises:
        MonolithError: A call failed. An error that is not retryable wins; the text names all failures.
    """
    calls = {index: links[index].begin(verb, request, timeout_s) for index, request in requests.items()}
    responses, failures = {}, []
    for index, call in calls.items():
        try:
            responses[index] = links[index].finish(verb, call)
        except MonolithError as error:
            failures.append(error)
    if failures:
        raise _worst(failures)
    return responses


def _worst(failures: Sequence[MonolithError]) -> MonolithError:
    final = [error for error in failures if not (isinstance(error, ClusterError) and error.retryable)]
    worst = (final or failures)[0]
    others = [str(error) for error in failures if error is not worst]
    if others:
        worst = type(worst)("; ".join([str(worst), *others]))
    return worst
