"""What servers answered while a trainer published, and whether it is possible: every answer is of one published cut.

A state is what the model says of the same few requests; that of a cut was noted by the trainer when it took the cut. No
process is known here, and no transport; the clock is one for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Answer", "Applied", "NotedCut", "State", "Violation", "violations"]

State: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCut:
    """A cut as its trainer knows it; number 0 is what was exported."""

    number: int
    run: str
    """The training it is of, from a start or a return to a checkpoint to the next: a new one may begin further back."""
    state: State
    taken_s: float
    """Before it was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server said."""

    server: int
    """Which process: one that was started again is another."""
    state: State
    sent_s: float
    received_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The cut that a server said it shows."""

    server: int
    number: int
    received_s: float


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that cannot have happened."""

    kind: Literal["missing", "undeclared", "mixed", "unknown", "early", "stale", "backwards"]
    """Of the cuts: a number that nobody has noted, a training that went back without beginning anew. Of an answer: of
    several cuts at once, of none, given before its cut was taken, older than what the server had said to show, older
    than an answer before."""
    text: str


def violations(cuts: Sequence[NotedCut], answers: Sequence[Answer], applied: Sequence[Applied]) -> list[Violation]:
    """Return all that is wrong with a history; of every server, the answers are in the order in which it was asked.

    Args:
        cuts: All that were published, and 0.
        answers: Of any number of servers, each asked by one caller at a time.
        applied: Of the same servers.
    """
    by_number = {cut.number: cut for cut in cuts}
    found = [*_wrong_cuts(by_number)]
    for server in sorted({answer.server for answer in answers}):
        own = [answer for answer in answers if answer.server == server]
        found += _wrong_answers(by_number, own, [one for one in applied if one.server == server])
    return found


def _wrong_cuts(cuts: Mapping[int, NotedCut]) -> Iterator[Violation]:
    for number in range(max(cuts) + 1):
        if number not in cuts:
            yield Violation("missing", f"nobody has noted cut {number}")
    newest: dict[str, NotedCut] = {}
    for number in sorted(cuts):
        cut = cuts[number]
        before = newest.get(cut.run)
        if before is not None and any(now < then for now, then in zip(cut.state, before.state, strict=True)):
            yield Violation("undeclared", f"{cut} is behind {before}, of the same training")
        newest[cut.run] = cut


def _wrong_answers(
    cuts: Mapping[int, NotedCut], answers: Sequence[Answer], applied: Sequence[Applied]
) -> Iterator[Violation]:
    numbers: dict[State, list[int]] = {}
    for number in sorted(cuts):
        numbers.setdefault(cuts[number].state, []).append(number)
    shown = 0  # the earliest cut that the last answer can be of: any later one would allow less
    said = 0
    untold = deque(sorted(applied, key=lambda one: one.received_s))
    for answer in answers:
        while untold and untold[0].received_s <= answer.sent_s:
            said = max(said, untold.popleft().number)
        same = numbers.get(answer.state)
        if same is None:
            yield _of_no_cut(cuts, answer)
            continue
        taken = [number for number in same if cuts[number].taken_s <= answer.received_s]
        if not taken:
            yield Violation("early", f"{answer} is of cut {same[0]}, which was taken at {cuts[same[0]].taken_s}")
            continue
        if taken[-1] < said:
            yield Violation("stale", f"{answer} is of cut {taken[-1]}, and the server had cut {said} before")
        elif taken[-1] < shown:
            yield Violation("backwards", f"{answer} is of cut {taken[-1]}, after one of cut {shown} or later")
        else:
            shown = next(number for number in taken if number >= max(said, shown))


def _of_no_cut(cuts: Mapping[int, NotedCut], answer: Answer) -> Violation:
    parts = zip(*(cut.state for cut in cuts.values()), strict=True)
    if all(value in known for value, known in zip(answer.state, parts, strict=True)):
        return Violation("mixed", f"{answer} has parts of several cuts")
    return Violation("unknown", f"no cut is like {answer}")
