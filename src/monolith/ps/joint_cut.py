"""Joint cut: one consistent point of all servers, to save or to publish. Every server has the same pushes in it.

NOTE. Protocol, as the client that leads it sees it (the server's side is ``cuts``):

    1. FlushDeltas to all servers: the segments of the cut itself stay small.
    2. Hold(h) to all servers, in parallel. Each server delays further pushes and returns its marks: the pushes that it
       has applied, per worker. A worker sends one push to all servers, so marks differ by pushes on the way.
    3. ``missing_pushes`` compares the marks: a push that any server has applied is awaited at all others.
    4. Cut(h, awaited) to all servers, in parallel. Each server applies the awaited pushes, cuts its tables and resumes.
       A push that arrives after that point is in no cut: servers that are not cut yet still delay it.
    5. An awaited push that does not arrive within ``settle_s`` makes the attempt void: Release(h), let pushes flow for
       ``patience_s``, and retry from 1.

        worker: push 7 --> server 0   applied     Hold: marks {7}    Cut(awaited -)   cut, resumes
        worker: push 7 --> server 1   delayed     Hold: marks {6}    Cut(awaited 7)   applies 7, cut, resumes

Some pushes never arrive: a server lost one in a crash, or a killed worker sent it to some servers only. A push that two
attempts awaited at the same server is abandoned: later attempts do not await it. Held pushes wait, at most for the
lease of the hold; no push is refused or lost by a cut.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from monolith.core.clock import Clock
from monolith.core.errors import MonolithError, RpcTimeout
from monolith.ps import messages
from monolith.ps.fan_out import call_all
from monolith.ps.link import ServerLink
from monolith.ps.push_marks import missing_pushes

__all__ = ["JointCut"]

logger = logging.getLogger(__name__)

SETTLE_S = 1.0
"""Timeout of an awaited push under a hold; a push normally takes milliseconds to arrive."""
PATIENCE_S = 2.0
"""How long pushes flow between two attempts."""
_ATTEMPTS = 6
_RELEASE_S = 5.0

_Missing = dict[int, set[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class _Act:
    """The call that all servers execute at the consistent point."""

    verb: str
    keeps_cut: bool
    request: Callable[..., Any]
    """Takes instance, hold, awaited and timeout_ms."""
    is_late: Callable[[Any], bool]
    """Returns whether the response reports a missing push."""


_CUT = _Act("Cut", False, messages.CutRequest, lambda response: not response.cut)


class JointCut:
    """Cuts all servers of a job, or flushes their delta logs, at one consistent point. Thread safe.

    Args:
        links: All servers.
        clock: Measures timeouts.
        settle_s: See ``SETTLE_S``.
        patience_s: See ``PATIENCE_S``.
    """

    def __init__(
        self,
        links: Sequence[ServerLink],
        clock: Clock,
        *,
        settle_s: float = SETTLE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._links = links
        self._clock = clock
        self._settle_s = settle_s
        self._patience_s = patience_s
        self._abandoned: set[tuple[int, tuple[int, int]]] = set()
        self._lock = threading.Lock()  # a second hold would replace the first

    def take(self, instances: Mapping[int, int], timeout_s: float) -> dict[int, int]:
        """Cut the servers; return the number of each one's cut.

        Args:
            instances: The instance of each server, as the caller knows it.
            timeout_s: Timeout of one call.

        Raises:
            ClusterError: A server is unreachable, or lost its hold; retry if the error is ``retryable``.
        """
        responses = self._reach(_CUT, instances, timeout_s)
        return {i: response.cut for i, response in responses.items()}

    def flush(self, instances: Mapping[int, int], timeout_s: float, table: str) -> dict[int, Any]:
        """Flush the delta logs of all servers at one consistent point; return the response of each.

        Args:
            instances: The instance of each server, as the caller knows it.
            timeout_s: Timeout of one call.
            table: The table whose rows at that point are in the responses.

        Raises:
            ClusterError: See ``take``.
        """

        def request(**values: Any) -> messages.FlushDeltasRequest:
            return messages.FlushDeltasRequest(table=table, **values)

        return self._reach(_Act("FlushDeltas", True, request, lambda response: response.is_late), instances, timeout_s)

    def _reach(self, act: _Act, instances: Mapping[int, int], timeout_s: float) -> dict[int, Any]:
        if len(self._links) == 1:
            return call_all(self._links, act.verb, {0: act.request(instance=instances[0])}, timeout_s)
        with self._lock:
            before: _Missing = {}
            for _ in range(_ATTEMPTS):
                responses, missing = self._attempt(act, instances, timeout_s)
                if not missing:
                    return responses
                if not self._abandon(before, missing):
                    self._clock.sleep_s(self._patience_s)
                before = missing
        raise RpcTimeout(f"a joint cut missed pushes in {_ATTEMPTS} attempts, expected all servers to agree; try again")

    def _attempt(self, act: _Act, instances: Mapping[int, int], timeout_s: float) -> tuple[dict[int, Any], _Missing]:
        """Return the responses, and the awaited pushes that did not arrive."""
        everyone = range(len(self._links))
        # Keeps the segments of the cut itself small, and the hold short.
        call_all(self._links, "FlushDeltas", dict.fromkeys(everyone, messages.FlushDeltasRequest()), timeout_s)
        hold = secrets.randbits(63) | 1
        is_done = False
        started_s = self._clock.monotonic_s()
        try:
            holds = {
                i: messages.HoldRequest(instance=instances[i], hold=hold, keeps_cut=act.keeps_cut) for i in everyone
            }
            held = call_all(self._links, "Hold", holds, timeout_s)
            missing = self._awaited({i: response.marks for i, response in held.items()})
            requests = {i: self._request(act, instances[i], hold, missing.get(i, set())) for i in everyone}
            responses = call_all(self._links, act.verb, requests, timeout_s)
            late = {i: missing.get(i, set()) for i, response in responses.items() if act.is_late(response)}
            is_done = not late
            held_s = self._clock.monotonic_s() - started_s
            logger.debug("joint cut attempted call=%s seconds=%.4f late=%s", act.verb, held_s, late)
            return responses, late
        finally:
            if not is_done:
                self._release(hold)

    def _awaited(self, marks: Mapping[int, bytes]) -> _Missing:
        missing = missing_pushes(marks)
        return {i: {push for push in pushes if (i, push) not in self._abandoned} for i, pushes in missing.items()}

    def _request(self, act: _Act, instance: int, hold: int, awaited: set[tuple[int, int]]) -> Any:
        names = [messages.PushName(client=client, sequence=sequence) for client, sequence in sorted(awaited)]
        return act.request(instance=instance, hold=hold, awaited=names, timeout_ms=max(1, int(self._settle_s * 1000)))

    def _abandon(self, before: _Missing, missing: _Missing) -> bool:
        """Abandon pushes that two attempts awaited; return whether there were any."""
        gone = {(i, push) for i, pushes in missing.items() for push in pushes & before.get(i, set())}
        self._abandoned |= gone
        if gone:
            servers = sorted({i for i, _ in gone})
            logger.warning("abandoned incomplete pushes servers=%s pushes=%d", servers, len(gone))
        return bool(gone)

    def _release(self, hold: int) -> None:
        calls = [(link, link.begin("Release", messages.ReleaseRequest(hold=hold), _RELEASE_S)) for link in self._links]
        for link, call in calls:
            with suppress(MonolithError):  # unreachable, or without tables: the lease ends its hold
                link.finish("Release", call)
