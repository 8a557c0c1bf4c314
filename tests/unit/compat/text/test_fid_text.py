from __future__ import annotations

import pytest

from monolith.compat.text.fid_text import parse_fid_list
from monolith.core.errors import ConfigError


def test_ids_are_signed_each_once_and_in_order() -> None:
    assert parse_fid_list("18446744073709551615, 5,-1,5") == (-1, 5)
    assert parse_fid_list("") == ()
    assert parse_fid_list(" , ") == ()


def test_numbers_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="'18446744073709551616'"):
        parse_fid_list("1,18446744073709551616")
