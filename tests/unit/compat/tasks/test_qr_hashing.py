from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.compat.tasks.qr_hashing import quotient_remainder
from monolith.core.errors import ConfigError
from monolith.features import QuotientRemainder


@given(st.integers(1, 500), st.integers(1, 9))
def test_every_id_has_a_unique_pair_within_the_two_vocabularies(size: int, rate: int) -> None:
    split = QuotientRemainder(size, rate)
    remainders, quotients = split.split(np.arange(size))
    assert len(set(zip(remainders.tolist(), quotients.tolist(), strict=True))) == size
    assert remainders.max() < split.remainder_rows
    assert quotients.max() < split.quotient_rows


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="id is -2, expected 0 or more"):
        quotient_remainder([1, -2], 10)


@pytest.mark.parametrize(("size", "rate"), [(0, 4), (10, 0), (1.5, 4)])
def test_settings_are_positive(size: int, rate: int) -> None:
    with pytest.raises(ConfigError, match="QuotientRemainder"):
        QuotientRemainder(size, rate)
