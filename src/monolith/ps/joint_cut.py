"""One moment of several servers, to be saved or published: of each worker's pushes it has the same ones everywhere.

A push goes to all servers at once, and reaches them one after the other. So first all servers hold pushes back, then
each lets those through that another one has applied already, and is cut. A server goes on as soon as it is cut: what it
applies from then on waits at those that are not.

A push that one server lost in a crash, or that a killed worker sent to some servers only, comes to the others never.
It is waited for twice, and then given up.
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
"""How long held servers wait for a push that another has applied: on its way it takes milliseconds."""
PATIENCE_S = 2.0
"""How long pushes flow again before such a push is waited for once more."""
_ATTEMPTS = 6
_RELEASE_S = 5.0

_Missing = dict[int, set[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class _Act:
    """What servers do at the moment that is theirs together."""

    verb: str
    keeps_cut: bool
    request: Callable[..., Any]
    """Takes instance, hold, awaited and timeout_ms."""
    is_late: Callable[[Any], bool]
    """Whether an answer says that a push was awaited in vain."""


_CUT = _Act("Cut", False, messages.CutRequest, lambda answer: not answer.cut)


class JointCut:
    """Cuts all servers of a job at one moment, or writes their logs, as often as it is asked to. For several threads.

    Args:
        links: All servers.
        clock: Measures waits.
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
        self._given_up: set[tuple[int, tuple[int, int]]] = set()
        self._turn = threading.Lock()  # a hold of ours would end another one

    def take(self, instances: Mapping[int, int], timeout_s: float) -> dict[int, int]:
        """Cut the servers; return the number of each one's cut.

        Args:
            instances: The start of each server that the caller knows.
            timeout_s: For one call.

        Raises:
            ClusterError: A server is away, or was cut off too long; ``retryable`` says whether to try again.
        """
        answers = self._reach(_CUT, instances, timeout_s)
        return {i: answer.cut for i, answer in answers.items()}

    def flush(self, instances: Mapping[int, int], timeout_s: float, table: str) -> dict[int, Any]:
        """Have all servers write their logs as they are at one moment; return what each answered.

        Args:
            instances: The start of each server that the caller knows.
            timeout_s: For one call.
            table: Whose rows at that moment are in the answers.

        Raises:
            ClusterError: As ``take``.
        """

        def request(**values: Any) -> messages.FlushDeltasRequest:
            return messages.FlushDeltasRequest(table=table, **values)

        return self._reach(_Act("FlushDeltas", True, request, lambda answer: answer.is_late), instances, timeout_s)

    def _reach(self, act: _Act, instances: Mapping[int, int], timeout_s: float) -> dict[int, Any]:
        if len(self._links) == 1:
            return call_all(self._links, act.verb, {0: act.request(instance=instances[0])}, timeout_s)
        with self._turn:
            before: _Missing = {}
            for _ in range(_ATTEMPTS):
                answers, missing = self._attempt(act, instances, timeout_s)
                if not missing:
                    return answers
                if not self._give_up(before, missing):
                    self._clock.sleep_s(self._patience_s)
                before = missing
        raise RpcTimeout(f"pushes were under way to all servers at {_ATTEMPTS} attempts to cut them; try again")

    def _attempt(self, act: _Act, instances: Mapping[int, int], timeout_s: float) -> tuple[dict[int, Any], _Missing]:
        """Return the answers, and what was waited for in vain."""
        everyone = range(len(self._links))
        # So that the segments of the moment itself are small, and soon written.
        call_all(self._links, "FlushDeltas", dict.fromkeys(everyone, messages.FlushDeltasRequest()), timeout_s)
        hold = secrets.randbits(63) | 1
        is_done = False
        started_s = self._clock.monotonic_s()
        try:
            holds = {
                i: messages.HoldRequest(instance=instances[i], hold=hold, keeps_cut=act.keeps_cut) for i in everyone
            }
            held = call_all(self._links, "Hold", holds, timeout_s)
            missing = self._awaited({i: answer.marks for i, answer in held.items()})
            requests = {i: self._request(act, instances[i], hold, missing.get(i, set())) for i in everyone}
            answers = call_all(self._links, act.verb, requests, timeout_s)
            late = {i: missing.get(i, set()) for i, answer in answers.items() if act.is_late(answer)}
            is_done = not late
            held_s = self._clock.monotonic_s() - started_s
            logger.debug("all servers were reached at one moment call=%s seconds=%.4f late=%s", act.verb, held_s, late)
            return answers, late
        finally:
            if not is_done:
                self._release(hold)

    def _awaited(self, marks: Mapping[int, bytes]) -> _Missing:
        found = missing_pushes(marks)
        return {i: {push for push in pushes if (i, push) not in self._given_up} for i, pushes in found.items()}

    def _request(self, act: _Act, instance: int, hold: int, awaited: set[tuple[int, int]]) -> Any:
        names = [messages.PushName(client=client, sequence=sequence) for client, sequence in sorted(awaited)]
        return act.request(instance=instance, hold=hold, awaited=names, timeout_ms=max(1, int(self._settle_s * 1000)))

    def _give_up(self, before: _Missing, missing: _Missing) -> bool:
        """Give up what two attempts have waited for; return whether there was any."""
        gone = {(i, push) for i, pushes in missing.items() for push in pushes & before.get(i, set())}
        self._given_up |= gone
        if gone:
            servers = sorted({i for i, _ in gone})
            logger.warning("pushes will not reach all servers any more servers=%s pushes=%d", servers, len(gone))
        return bool(gone)

    def _release(self, hold: int) -> None:
        calls = [(link, link.begin("Release", messages.ReleaseRequest(hold=hold), _RELEASE_S)) for link in self._links]
        for link, call in calls:
            with suppress(MonolithError):  # away, or without tables: its hold ends by itself
                link.finish("Release", call)
