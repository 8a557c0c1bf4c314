from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.training.config import slow_start_step


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_chief_begins_immediately_and_no_worker_before_a_lower_one(index: int, steps: int) -> None:
    assert slow_start_step(0, steps) == 0
    assert slow_start_step(index, 0) == 0
    assert slow_start_step(index, steps) <= slow_start_step(index + 1, steps)


@pytest.mark.parametrize(("index", "steps"), [(-1, 10), (1, -10)])
def test_negative_arguments_are_refused(index: int, steps: int) -> None:
    with pytest.raises(ConfigError, match="give neither below 0"):
        slow_start_step(index, steps)
