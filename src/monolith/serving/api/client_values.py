"""Turn the inputs of a client call into columns: NumPy arrays, or lists of different lengths.

``Column`` is one input. ``as_column`` takes lists, lists of lists, NumPy arrays, ``Ragged``, Arrow arrays and series of
pandas or polars. It refuses any object whose text form would be sent in place of a value. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import InvalidRequest
from monolith.data import Ragged

__all__ = ["Column", "as_column"]

_INT64, _UINT64 = np.iinfo(np.int64), np.iinfo(np.uint64)
_MOST_FLOAT = 2**53


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Values of one input."""

    values: NDArray[Any]
    """The first axis is the row; of lists, the values of all rows, row after row."""

    lengths: NDArray[np.int64] | None = None
    """Number of values per row, if rows are lists of different lengths."""

    def tolist(self) -> list[Any]:
        """Return one entry per row."""
        values: list[Any] = self.values.tolist()
        if self.lengths is None:
            return values
        ends = np.cumsum(self.lengths).tolist()
        return [values[end - count : end] for end, count in zip(ends, self.lengths.tolist(), strict=True)]


def as_column(value: Any, name: str) -> Column:
    """Return the column of an input.

    Args:
        value: An array, a sequence with one value or one list of values per row, or a column of a frame. None and the
            missing values of a frame are rows without a value.
        name: Name of the input, in errors.

    Raises:
        InvalidRequest: A value is an object, or values differ in their types.
    """
    if isinstance(value, bytes):
        return Column(_texts([value]))
    if isinstance(value, Ragged):
        return _of_rows(value.tolist(), name)
    if hasattr(value, "to_pylist"):  # pyarrow
        return _of_rows(value.to_pylist(), name)
    if hasattr(value, "isna") and hasattr(value, "tolist"):  # pandas, whose missing values are NaN
        pairs = zip(value.tolist(), value.isna().tolist(), strict=True)
        return _of_rows([None if is_missing else each for each, is_missing in pairs], name)
    if hasattr(value, "to_list"):  # polars
        return _of_rows(value.to_list(), name)
    if isinstance(value, list | tuple):
        return _of_rows(value, name)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"input {name!r} is a {type(value).__name__}, expected an array or a list") from error
    if array.dtype.kind in "biufUS":
        return Column(array)
    if array.dtype != object or not array.ndim:
        raise InvalidRequest(f"input {name!r} has type {array.dtype}, expected numbers, text or bytes")
    return _of_rows(array.tolist(), name)


def _of_rows(rows: Sequence[Any], name: str) -> Column:
    is_list = [_is_list(row) for row in rows]
    if not any(is_list) and all(row is not None for row in rows):
        return Column(_array(rows, name, range(len(rows))))
    lists: list[Any] = [
        list(row) if nested else [] if row is None else [row] for row, nested in zip(rows, is_list, strict=True)
    ]
    numbers = [number for number, row in enumerate(lists) for _ in row]
    flat = [value for row in lists for value in row]
    lengths = np.array([len(row) for row in lists], np.int64)
    values = _array(flat, name, numbers)
    if all(is_list) and len(set(lengths.tolist())) == 1:
        return Column(values.reshape(len(lists), -1))
    return Column(values, lengths)


def _array(values: Sequence[Any], name: str, rows: Sequence[int]) -> NDArray[Any]:
    """Return an array of values of one family: numbers, or text and bytes. No number loses digits."""
    if all(isinstance(each, str | bytes) for each in values) and values:
        return _texts([each.encode() if isinstance(each, str) else each for each in values])
    for row, value in zip(rows, values, strict=True):
        if not isinstance(value, int | float | np.number | np.bool_):
            raise InvalidRequest(
                f"input {name!r}, row {row} is {value!r} of type {type(value).__name__}, expected a number, text or "
                "bytes of one type per input, or a flat list of them"
            )
    if any(isinstance(each, float | np.floating) for each in values):
        for row, value in zip(rows, values, strict=True):
            if isinstance(value, int | np.integer) and abs(int(value)) > _MOST_FLOAT:
                raise InvalidRequest(
                    f"input {name!r}, row {row} is {value!r} beside floats, expected integers up to 2^53 there; give "
                    "numbers of one type"
                )
        return np.array(values, np.float64)
    integers = [int(each) for each in values]
    low, high = min(integers, default=0), max(integers, default=0)
    if low < _INT64.min or high > _UINT64.max or (low < 0 and high > _INT64.max):
        raise InvalidRequest(f"input {name!r} has integers from {low} to {high}, expected int64, or uint64")
    return np.array(integers, np.uint64 if high > _INT64.max else np.int64)


def _texts(values: Sequence[bytes]) -> NDArray[Any]:
    array = np.empty(len(values), object)  # numpy byte strings lose trailing zeros
    array[:] = values
    return array


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
