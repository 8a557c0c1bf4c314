from __future__ import annotations

import os
import threading

import pytest

from monolith.core.errors import ConfigError
from monolith.core.lifeline import VARIABLE, Lifeline, end_with_starter

SOON_S = 60.0


def test_the_end_of_the_starter_asks_a_process_to_end_and_then_ends_it() -> None:
    happened: list[str] = []
    with Lifeline() as lifeline:
        (held,) = lifeline.descriptors
        environment = {**lifeline.environment({}), VARIABLE: str(os.dup(held))}
        watcher = end_with_starter(
            environment, grace_s=0.0, ask=lambda: happened.append("asked"), end=lambda: happened.append("ended")
        )
        assert watcher is not None
        assert happened == [], "nothing happens while the starter lives"
    watcher.join(SOON_S)
    assert happened == ["asked", "ended"]


def test_a_server_waits_a_while_before_it_is_asked() -> None:
    asked = threading.Event()
    with Lifeline() as lifeline:
        (held,) = lifeline.descriptors
        environment = {VARIABLE: str(os.dup(held))}
        watcher = end_with_starter(environment, patience_s=3600, ask=asked.set, end=lambda: None)
    assert watcher is not None
    assert not asked.wait(0.05)
    assert watcher.is_alive()


def test_a_process_started_by_hand_watches_no_starter() -> None:
    assert end_with_starter({}) is None


@pytest.mark.parametrize("named", ["three", "987654"])
def test_a_variable_that_names_no_pipe_is_one_clear_error(named: str) -> None:
    with pytest.raises(ConfigError, match=rf"MONOLITH_LIFELINE is '{named}'.*unset it"):
        end_with_starter({VARIABLE: named})


def test_closing_twice_closes_once() -> None:
    lifeline = Lifeline()
    lifeline.close()
    others = os.pipe()  # may have the same numbers now
    lifeline.close()
    for descriptor in others:
        os.close(descriptor)
