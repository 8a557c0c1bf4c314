from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from monolith.testing.suites.cut_history import Answer, Applied, NotedCut, violations

Parts = tuple[list[NotedCut], list[Answer], list[Applied]]


def history(seed: int) -> Parts:
    """Two trainings, the second of which begins further back, and two servers that follow with different delays."""
    chance = random.Random(seed)
    cuts = [NotedCut(number=0, run="exported", state=(0.0, 0.0), taken_s=0.0)]
    count = 0.0
    for number in range(1, 41):
        count = 7.0 if number == 21 else count + chance.randint(1, 4)
        cuts.append(
            NotedCut(number=number, run="first" if number < 21 else "second", state=(count, count), taken_s=number)
        )
    answers, applied = [], []
    for server in (0, 1):
        shown, now_s = 0, 0.0
        while shown < 40:
            now_s += chance.uniform(0.1, 1.5)
            if chance.random() < 0.5:
                shown = max(shown, min(40, chance.randint(int(now_s) - 3, int(now_s))))
                if chance.random() < 0.5:
                    applied.append(Applied(server=server, number=shown, received_s=now_s))
            answers.append(Answer(server=server, state=cuts[shown].state, sent_s=now_s + 0.01, received_s=now_s + 0.02))
    return cuts, answers, applied


def test_answers_of_following_servers_are_possible(seed: int) -> None:
    for offset in range(50):
        assert violations(*history(seed + offset)) == []


def no_note(parts: Parts, chance: random.Random) -> Parts:
    cuts, answers, applied = parts
    gone = chance.randint(1, 39)
    kept = [cut for cut in cuts if cut.number != gone]
    return kept, [answer for answer in answers if answer.state != cuts[gone].state], applied


def undeclared_return(parts: Parts, chance: random.Random) -> Parts:
    cuts, answers, applied = parts
    return [replace(cut, run="first") if cut.number else cut for cut in cuts], answers, applied


def half_a_cut(parts: Parts, chance: random.Random) -> Parts:
    cuts, answers, applied = parts
    where = chance.randrange(len(answers))
    state = answers[where].state
    other = chance.choice([cut.state for cut in cuts if cut.state != state])
    mixed = replace(answers[where], state=(state[0], other[1]))
    return cuts, [*answers[:where], mixed, *answers[where + 1 :]], applied


def never_published(parts: Parts, chance: random.Random) -> Parts:
    cuts, answers, applied = parts
    where = chance.randrange(len(answers))
    return cuts, [*answers[:where], replace(answers[where], state=(0.5, 0.5)), *answers[where + 1 :]], applied


def too_early(parts: Parts, chance: random.Random) -> Parts:
    cuts, answers, applied = parts
    first = min(answer.received_s for answer in answers)
    return [replace(cut, taken_s=cut.taken_s + (first if cut.number else 0) + 100) for cut in cuts], answers, applied


def one_back(parts: Parts, chance: random.Random) -> Parts:
    """The last but one answer and the last of a server change places, both in the second training."""
    cuts, answers, _ = parts
    own = [answer for answer in answers if answer.server == 0]
    last = own[-1]
    before = next(cut for cut in reversed(cuts) if cut.state != last.state and cut.number > 21)
    late = replace(last, state=before.state, sent_s=last.sent_s + 1, received_s=last.received_s + 1)
    return cuts, [*own, late], []


def not_the_very_next(parts: Parts, chance: random.Random) -> Parts:
    """A server reported the last cut, and gets a request after that."""
    cuts, answers, applied = parts
    own = [answer for answer in answers if answer.server == 1]
    first = next(answer for answer in own if answer.state == cuts[40].state)
    told = Applied(server=1, number=40, received_s=first.sent_s)
    late = replace(own[-1], state=cuts[39].state, sent_s=first.sent_s + 1, received_s=first.sent_s + 2)
    return cuts, [*own, late], [*applied, told]


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (no_note, "missing"),
        (undeclared_return, "undeclared"),
        (half_a_cut, "mixed"),
        (never_published, "unknown"),
        (too_early, "early"),
        (one_back, "backwards"),
        (not_the_very_next, "stale"),
    ],
)
def test_a_contradiction_is_found(spoil: Callable[[Parts, random.Random], Parts], kind: str, seed: int) -> None:
    for offset in range(20):
        found = violations(*spoil(history(seed + offset), random.Random(seed + offset)))
        assert kind in {one.kind for one in found}, f"seed {seed + offset}: {found}"


def test_an_answer_after_a_return_may_be_of_the_cut_that_has_the_same_state_again() -> None:
    def cut(number: int, run: str, value: float) -> NotedCut:
        return NotedCut(number=number, run=run, state=(value,), taken_s=number)

    def answers(*values: float) -> list[Answer]:
        return [Answer(server=0, state=(value,), sent_s=9, received_s=9) for value in values]

    cuts = [cut(0, "", 0), cut(1, "a", 5), cut(2, "a", 6), cut(3, "b", 4), cut(4, "b", 5)]
    assert violations(cuts, answers(0, 5, 6, 4, 5, 5), []) == []
    assert violations(cuts, answers(5, 4, 5), []) == []
    assert [one.kind for one in violations(cuts, answers(5, 4, 6), [])] == ["backwards"]
    assert [one.kind for one in violations(cuts, answers(4, 6), [])] == ["backwards"]
    told = [Applied(server=0, number=3, received_s=8)]
    assert violations(cuts, answers(5), told) == [], "the fourth cut has it too"
    assert [one.kind for one in violations(cuts, answers(6), told)] == ["stale"]
