"""Keys beside predictions have exactly the values of the data."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import monolith as mt
from monolith.core.errors import DataError
from monolith.data import Schema
from monolith.data.profile import profile_rows
from monolith.training.key_columns import KeyColumns


def read_keys(column: Any, sample: int | None = None) -> list[Any]:
    rows = mt.data.frame(pa.table({"key": column}))
    keys = KeyColumns(["key"], profile_rows(rows, sample or 1000))
    batches = rows.with_schema(keys.extend(Schema())).batch(2)
    return [value for batch in batches for value in keys.read(batch)["key"]]


@pytest.mark.parametrize(
    "values",
    [
        [7, None, -(2**62) - 1],
        ["ada", None, ""],
        [0.5, None, 0.0],
        [[1, 2, 3], [], [4]],
        [["a"], [], ["b", ""]],
        [[0.5], [], [0.25, 0.0]],
    ],
)
def test_a_key_has_the_values_of_its_row_and_none_where_the_row_has_none(values: list[Any]) -> None:
    assert read_keys(pa.array(values)) == values


def test_integers_that_are_stored_as_reals_keep_all_digits() -> None:
    assert read_keys(pa.array([123_456_789.0, None, 9_007_199_254_740_991.0])) == [123456789, None, 2**53 - 1]


def test_a_key_that_is_rounded_to_32_bits_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    read_keys(pa.array([1_700_005_000.5, 0.5]))
    assert "key rounded to 32 bits name=key" in caplog.text


def test_a_row_with_more_texts_than_the_first_rows_is_an_error() -> None:
    with pytest.raises(DataError, match=r"key 'key' has 3 values in a row, expected at most 2"):
        read_keys(pa.array([["a", "b"], ["a", "b", "c"]]), sample=1)
