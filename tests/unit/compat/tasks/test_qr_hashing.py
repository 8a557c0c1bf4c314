from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.compat.tasks.qr_hashing import QuotientRemainder, quotient_remainder
from monolith.core import fid
from monolith.core.errors import ConfigError


@given(st.integers(1, 500), st.integers(1, 9))
def test_every_id_has_a_unique_pair_within_the_two_vocabularies(size: int, rate: int) -> None:
    split = QuotientRemainder(size, rate)
    remainders, quotients = split.split(np.arange(size))
    assert len(set(zip(remainders.tolist(), quotients.tolist(), strict=True))) == size
    assert remainders.max() < split.remainder_rows
    assert quotients.max() < split.quotient_rows


@given(st.lists(st.integers(0, (1 << 48) - 1), max_size=20), st.integers(0, fid.V2_SLOTS - 1))
def test_fids_keep_their_slot_and_never_share_a_row(signatures: list[int], slot: int) -> None:
    split = QuotientRemainder(1 << 48, 4)
    fids = np.array([fid.make_v2(slot, signature) for signature in signatures], np.int64)
    remainders, quotients = split.split_fids(fids)
    for part in (remainders, quotients):
        assert (fid.slot_v2(part) == slot).all()
    assert not set(remainders.tolist()) & set(quotients.tolist())
    rows = [np.array([fid.signature_v2(int(each)) for each in part], np.int64) for part in (remainders, quotients)]
    assert ((rows[1] - split.remainder_rows) * split.remainder_rows + rows[0]).tolist() == signatures


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="id -2 is negative"):
        quotient_remainder([1, -2], 10)


@pytest.mark.parametrize(("size", "rate"), [(0, 4), (10, 0), (1.5, 4)])
def test_settings_are_positive(size: int, rate: int) -> None:
    with pytest.raises(ConfigError, match="QuotientRemainder"):
        QuotientRemainder(size, rate)
