"""Inputs of a client call become columns without a change of their values, or the call is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import InvalidRequest
from monolith.data import Ragged
from monolith.serving.api.client_values import as_column

VALUES = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)),
    st.lists(st.integers(0, 2**64 - 1)),
    st.lists(st.floats(allow_nan=False)),
    st.lists(st.binary(max_size=4)),
)


@given(VALUES)
def test_a_list_of_values_is_itself(values: list[Any]) -> None:
    assert as_column(values, "user").tolist() == values
    assert as_column(tuple(values), "user").tolist() == values


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)))
def test_lists_of_different_lengths_keep_their_rows(rows: list[list[int]]) -> None:
    expected = as_column(rows, "user").tolist()
    assert expected == rows
    assert as_column(Ragged.from_lists(rows), "user").tolist() == expected
    assert as_column(pa.array(rows, pa.list_(pa.int64())), "user").tolist() == expected


def test_text_becomes_utf_8() -> None:
    assert as_column(["\u00e9", b"\x00"], "user").tolist() == ["\u00e9".encode(), b"\x00"]
    assert as_column(np.array([["a", "b"], ["c"]], object), "user").tolist() == [[b"a", b"b"], [b"c"]]


def test_columns_of_pandas_keep_integers_lists_and_missing_values() -> None:
    pandas = pytest.importorskip("pandas")
    lists = pandas.Series([["Drama"], ["Comedy", "Drama"], None])
    assert as_column(lists, "genres").tolist() == [[b"Drama"], [b"Comedy", b"Drama"], []]
    assert as_column(pandas.Series([1, 2**62 + 1]), "user").tolist() == [1, 2**62 + 1]
    assert as_column(pandas.Series([1, None]), "user").tolist() == [[1.0], []]
    assert as_column(pandas.Series([2**62 + 1, None], dtype="Int64"), "user").tolist() == [[2**62 + 1], []]
    assert as_column(pandas.Series(["a", "b"], dtype="category"), "user").tolist() == [b"a", b"b"]


def test_an_array_of_numbers_is_sent_as_it_is() -> None:
    array = np.arange(6, dtype=np.int32).reshape(3, 2)
    assert as_column(array, "user").values is array
    assert as_column([[1, 2], [3, 4]], "user").values.shape == (2, 2)
    assert as_column([], "user").tolist() == []
    assert as_column(b"record", "examples").tolist() == [b"record"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([{"a": 1}], "row 0 is {'a': 1} of type dict"),
        ([1, "1"], "row 1 is '1' of type str"),
        (["a", 1], "row 0 is 'a' of type str"),
        ([[1], [2, [3]]], "row 1 is \\[3\\] of type list"),
        (np.array([1, object()], object), "row 1 is <object"),
        ([2**64], "expected int64, or uint64"),
        ([-1, 2**63], "expected int64, or uint64"),
        (np.array(["2020-01-01"], "datetime64[D]"), "datetime64"),
        (object(), "object"),
        ([0.5, 2**53 + 1], "row 1 is 9007199254740993 beside floats, expected integers up to 2.53"),
        ([np.zeros((2, 2)), np.zeros((2, 2))], "row 0 is array"),
    ],
)
def test_an_object_is_refused_with_input_row_and_type(value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"input 'user'.*{reason}"):
        as_column(value, "user")
