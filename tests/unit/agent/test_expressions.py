"""Expressions are computed without eval, and errors show the position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.agent.expressions import Condition, compute_number
from monolith.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-7 // 2", -4),
        ("7 % 4", 3),
        ("2 ** 10", 1024),
        ("1.5 * 2", 3.0),
        ("+3", 3),
    ],
)
def test_arithmetic(text: str, value: float) -> None:
    assert compute_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "x",
        "1 if 1 else 2",
        "[1, 2]",
        "'a' * 3",
        "True",
        "1 < 2",
        "lambda: 1",
        "2 ** 65",
        "2 ** 63",
        "9" * 30,
        "9" * 5000,
        "1 << 60",
        "(-8) ** 0.5",
        "1e308 * 10 ** 60 ** 1 / 0",
        "(" * 300 + "1" + ")" * 300,
        "().__class__",
    ],
)
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        compute_number(text)


@pytest.mark.parametrize(
    ("text", "true_for"),
    [
        ("i % 2 == 1", [1, 3, 5]),
        ("1 <= i < 3", [1, 2]),
        ("i in (0, 4)", [0, 4]),
        ("i not in [0, 4]", [1, 2, 3, 5]),
        ("not i", [0]),
        ("i == 1 or i == 2 and i > 5", [1]),
        ("True", [0, 1, 2, 3, 4, 5]),
        ("False", []),
        ("i != 0 and 6 % i == 0", [1, 2, 3]),
    ],
)
def test_conditions(text: str, true_for: list[int]) -> None:
    condition = Condition(f"  {text} ", ["i"])
    assert [i for i in range(6) if condition.holds({"i": i})] == true_for


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("j > 1", "'j' is not bound"),
        ("i % 0 == 1", "division by zero"),
        ("i == 1 or 1 / 0", "division by zero"),
        ("i in 3", "needs a list"),
        ("i.bit_length()", "not allowed"),
        ("i is 3", "not allowed"),
        ("False and i.x", "not allowed"),
        ("i if i else 1", "not allowed"),
        ("f'{i}'", "not allowed"),
        ("i >", "cannot be parsed"),
    ],
)
def test_a_condition_that_can_never_be_computed_is_refused_at_start(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Condition(text, ["i"])


def test_a_condition_may_fail_for_one_value() -> None:
    condition = Condition("6 % i == 0", ["i"])
    assert condition.holds({"i": 3})
    with pytest.raises(ConfigError, match="division by zero"):
        condition.holds({"i": 0})


@given(st.text(alphabet="0123456789+-*/%()<>=! .,ijandort[]", max_size=40))
def test_any_text_gives_a_value_or_a_config_error(text: str) -> None:
    reason = ""
    try:
        Condition(text, ["i"]).holds({"i": 3})
    except ConfigError as error:
        reason = str(error)
    assert not reason or "^" in reason
