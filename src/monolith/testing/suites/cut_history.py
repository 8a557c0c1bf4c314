"""Checks the answers of servers while a trainer publishes: every answer must be the state of one published cut.

A state is the model's output for the same few requests; the trainer records it with each cut. All times come from one
clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Answer", "Applied", "NotedCut", "State", "CutViolation", "violations"]

State: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCut:
    """A cut as its trainer recorded it; number 0 is the export."""

    number: int
    run: str
    """Training of the cut. A start or a rollback begins a new training, which may begin further back."""
    state: State
    taken_s: float
    """Time before its publishing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of a server."""

    server: int
    """Instance of the server: a restart makes a new one."""
    state: State
    sent_s: float
    received_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The cut that a server reported."""

    server: int
    number: int
    received_s: float


@dataclass(frozen=True, slots=True)
class CutViolation:
    """A contradiction in a history."""

    kind: Literal["missing", "undeclared", "mixed", "unknown", "early", "stale", "backwards"]
    """One of:

    - missing: no trainer recorded a cut of this number.
    - undeclared: a cut is behind an earlier cut of the same training.
    - mixed: an answer has parts of several cuts.
    - unknown: an answer has a state of no cut.
    - early: a server answered with a cut before it was taken.
    - stale: an answer is older than the cut that the server reported before.
    - backwards: an answer is older than an earlier answer.
    """
    text: str


def violations(cuts: Sequence[NotedCut], answers: Sequence[Answer], applied: Sequence[Applied]) -> list[CutViolation]:
    """Return all contradictions in a history. The answers of a server are in the order of its requests.

    Args:
        cuts: All published cuts, and cut 0.
        answers: Answers of any number of servers; each server has one caller at a time.
        applied: Reports of the same servers.
    """
    by_number = {cut.number: cut for cut in cuts}
    found = [*_wrong_cuts(by_number)]
    for server in sorted({answer.server for answer in answers}):
        own = [answer for answer in answers if answer.server == server]
        found += _wrong_answers(by_number, own, [one for one in applied if one.server == server])
    return found


def _wrong_cuts(cuts: Mapping[int, NotedCut]) -> Iterator[CutViolation]:
    for number in range(max(cuts) + 1):
        if number not in cuts:
            yield CutViolation("missing", f"no trainer recorded cut {number}")
    newest: dict[str, NotedCut] = {}
    for number in sorted(cuts):
        cut = cuts[number]
        before = newest.get(cut.run)
        if before is not None and any(now < then for now, then in zip(cut.state, before.state, strict=True)):
            yield CutViolation("undeclared", f"{cut} is behind {before}, of the same training")
        newest[cut.run] = cut


def _wrong_answers(
    cuts: Mapping[int, NotedCut], answers: Sequence[Answer], applied: Sequence[Applied]
) -> Iterator[CutViolation]:
    numbers: dict[State, list[int]] = {}
    for number in sorted(cuts):
        numbers.setdefault(cuts[number].state, []).append(number)
    shown = 0  # the earliest possible cut of the last answer, which excludes the least
    reported = 0
    unreported = deque(sorted(applied, key=lambda one: one.received_s))
    for answer in answers:
        while unreported and unreported[0].received_s <= answer.sent_s:
            reported = max(reported, unreported.popleft().number)
        same = numbers.get(answer.state)
        if same is None:
            yield _of_no_cut(cuts, answer)
            continue
        taken = [number for number in same if cuts[number].taken_s <= answer.received_s]
        if not taken:
            yield CutViolation("early", f"{answer} is of cut {same[0]}, which was taken at {cuts[same[0]].taken_s}")
            continue
        if taken[-1] < reported:
            yield CutViolation("stale", f"{answer} is of cut {taken[-1]}, and the server had cut {reported} before")
        elif taken[-1] < shown:
            yield CutViolation("backwards", f"{answer} is of cut {taken[-1]}, after one of cut {shown} or later")
        else:
            shown = next(number for number in taken if number >= max(reported, shown))


def _of_no_cut(cuts: Mapping[int, NotedCut], answer: Answer) -> CutViolation:
    parts = zip(*(cut.state for cut in cuts.values()), strict=True)
    if all(value in known for value, known in zip(answer.state, parts, strict=True)):
        return CutViolation("mixed", f"{answer} has parts of several cuts")
    return CutViolation("unknown", f"no cut is like {answer}")
