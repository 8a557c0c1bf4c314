"""Vectors 18, 32 and 40 of the runtime: slow start, the save timer, and the precedence of settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from monolith.core.config import load
from monolith.training.config import SaveTimer, TideWindow, slow_start_step


def test_slow_start() -> None:
    assert [slow_start_step(index, 100) for index in range(6)] == [0, 69, 109, 138, 160, 179]


@pytest.mark.parametrize(("hour", "waits"), [(23, {5: False, 15: True}), (12, {2: False, 9: True})])
def test_the_save_timer_inside_and_outside_the_tide_window(hour: int, waits: dict[int, bool]) -> None:
    began_s = datetime(2024, 1, 1, hour, tzinfo=UTC).timestamp()
    for seconds, is_due in waits.items():
        timer = SaveTimer(every_s=10, tide=TideWindow(start_hour=22, end_hour=6), tide_save_s=5)
        timer.start(0, began_s)
        assert timer.is_due(1, began_s + seconds) is is_due


@dataclass(frozen=True, kw_only=True)
class _Parent:
    value: int = 0


@dataclass(frozen=True, kw_only=True)
class _Child(_Parent):
    other: int = 0


def test_code_beats_a_flag_and_a_flag_beats_the_default() -> None:
    assert load(_Parent, code={"value": 1}, command_line={"value": "2"}).config.value == 1
    assert load(_Parent, command_line={"value": "3"}).config.value == 3


def test_a_value_of_code_that_equals_the_default_beats_a_flag_too() -> None:
    assert load(_Parent, code={"value": 0}, command_line={"value": "3"}).config.value == 0


def test_an_empty_environment_variable_sets_nothing() -> None:
    assert load(_Parent, environment={"MONOLITH_VALUE": ""}).config.value == 0
    assert load(_Parent, environment={"MONOLITH_VALUE": "3"}).config.value == 3


def test_flags_are_inherited() -> None:
    assert load(_Child, command_line={"value": "3", "other": "4"}).config == _Child(value=3, other=4)
