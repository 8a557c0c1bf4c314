from __future__ import annotations

import pytest

from monolith.core.errors import ConfigError
from monolith.data.records.data_source import data_source_key, java_hash


def test_letters_beyond_ascii_are_hashed_as_java_does() -> None:
    assert java_hash("") == 0
    assert java_hash("é") == 233
    assert java_hash("😀") == 0xD83D * 31 + 0xDE00  # two UTF-16 units


def test_a_source_with_the_key_of_no_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="key 0"):
        data_source_key("")
