"""``profile_rows``: statistics of the features of the first rows, for a schema, a report and warnings.

A ``DataProfile`` has one ``ColumnProfile`` per feature. It looks at a sample only: later rows may differ.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from monolith.core import fid
from monolith.core.errors import ConfigError, DataError
from monolith.data.dataset import Dataset
from monolith.data.schema import DenseFeature, Schema, SparseFeature

__all__ = ["ColumnProfile", "DataProfile", "ValueType", "profile_rows"]

ValueType: TypeAlias = Literal["ids", "int", "float", "text"]
"""The type of the values of a column."""

_ARMS: tuple[tuple[str, ValueType], ...] = (
    ("fid_", "ids"),
    ("float", "float"),
    ("double", "float"),
    ("int64", "int"),
    ("bytes", "text"),
)
_DTYPES: dict[ValueType, Literal["float32", "int64", "bytes"]] = {"float": "float32", "int": "int64", "text": "bytes"}
_FIRST_VALUES = 3
_FEWEST_SORTED = 200
_ROWS_PER_VALUE = 5
"""A column with fewer rows per distinct value may predict a label by chance."""


@dataclass(slots=True)
class ColumnProfile:
    """Statistics of one feature."""

    name: str
    rows: int = 0
    """Rows with at least one value."""
    types: Counter[ValueType] = field(default_factory=Counter)
    widths: Counter[int] = field(default_factory=Counter)
    slots: set[int] = field(default_factory=set)
    values: dict[int, Any] = field(default_factory=dict)
    """The value of each row that has exactly one, by row."""
    first: list[str] = field(default_factory=list)

    def add(self, row: int, feature: Any) -> None:
        """Count the feature of one row."""
        arm = feature.WhichOneof("type")
        if arm is None:
            return
        kind = next(kind for prefix, kind in _ARMS if arm.startswith(prefix))
        values = _values(getattr(feature, arm), arm)
        self.types[kind] += 1
        self.widths[len(values)] += 1
        if not values:
            return
        self.rows += 1
        if kind == "ids":
            slot = fid.slot_v1 if "v1" in arm else fid.slot_v2
            self.slots.update(slot(int(value)) for value in values)
        if len(values) == 1:
            self.values[row] = values[0]
        if len(self.first) < _FIRST_VALUES:
            self.first.append(_show(values))

    @property
    def type(self) -> ValueType | None:
        """The type of the values; None without a value.

        Raises:
            ConfigError: Rows have different types.
        """
        if len(self.types) > 1:
            raise ConfigError(f"feature {self.name!r} has {' and '.join(self.types)} in different rows; declare it")
        return next(iter(self.types), None)

    @property
    def is_list(self) -> bool:
        """True if a row has several values."""
        return any(width > 1 for width in self.widths)

    @property
    def is_whole(self) -> bool:
        """True if the values are whole numbers that are stored as reals."""
        return self.type == "float" and bool(self.values) and all(each.is_integer() for each in self.values.values())

    @property
    def is_sorted(self) -> bool:
        """True if the rows are sorted by this column."""
        values = [self.values[row] for row in sorted(self.values)]
        if len(values) < _FEWEST_SORTED or values[0] == values[-1]:
            return False
        return all(before <= after for before, after in itertools.pairwise(values)) or all(
            before >= after for before, after in itertools.pairwise(values)
        )

    @property
    def counts_rows(self) -> bool:
        """True if the values are whole numbers that grow by one from row to row."""
        if self.type != "int" or len(self.values) < _FEWEST_SORTED:
            return False
        first_row = next(iter(self.values))
        return all(value - self.values[first_row] == row - first_row for row, value in self.values.items())

    @property
    def holds_times(self) -> bool:
        """True if the values are texts of a date and a time of day, in ISO 8601."""
        if self.type != "text" or len(self.values) < _FEWEST_SORTED:
            return False
        return all(map(_is_time, self.values.values()))

    def predicts(self, labels: dict[int, float]) -> bool:
        """Return True if the column decides the label of every row of the sample, and not by chance."""
        pairs = [(self.values[row], label) for row, label in labels.items() if row in self.values]
        if len(pairs) < _FEWEST_SORTED or len({label for _, label in pairs}) < 2:
            return False
        if self.type in ("float", "int") and _is_threshold(pairs):
            return True
        by_value: dict[Any, set[float]] = {}
        for value, label in pairs:
            by_value.setdefault(value, set()).add(label)
        return len(by_value) * _ROWS_PER_VALUE <= len(pairs) and all(len(each) == 1 for each in by_value.values())

    def dense(self) -> DenseFeature:
        """Return the column as a dense feature, as wide as the widest row, padded when rows differ."""
        kind = self.type
        assert kind is not None
        width = max(1, max(self.widths))
        return DenseFeature(self.name, width, _DTYPES[kind], pad=not set(self.widths) <= {0, width})

    def slot(self) -> int | None:
        """Return the slot that all ids have; None if they differ."""
        return next(iter(self.slots)) if len(self.slots) == 1 else None


@dataclass(frozen=True, slots=True)
class DataProfile:
    """The first rows of a dataset."""

    rows: int
    heads: int
    """Labels of the record itself, at most, per row."""
    columns: dict[str, ColumnProfile]
    labelled: int
    """Rows with a label in the record itself."""
    timed: int
    """Rows with an event time."""
    weighted: int
    """Rows with a weight in the record itself."""

    def schema(self) -> Schema:
        """Return a schema that reads every feature."""
        columns = self.columns.items()
        return Schema(
            sparse=[SparseFeature(name, each.slot()) for name, each in columns if each.type == "ids"],
            dense=[each.dense() for _, each in columns if each.type in _DTYPES],
            labels=self.heads,
        )


def profile_rows(dataset: Dataset, rows: int = 1000) -> DataProfile:
    """Return the statistics of the first rows of a dataset.

    Raises:
        DataError: There are no rows.
    """
    columns: dict[str, ColumnProfile] = {}
    count = heads = labelled = timed = weighted = 0
    for row, example in enumerate(itertools.islice(iter(dataset), rows)):
        count += 1
        heads = max(heads, len(example.label))
        labelled += len(example.label) > 0
        timed += example.line_id.req_time > 0
        weighted += example.instance_weight not in (0.0, 1.0)
        for named in example.named_feature:
            columns.setdefault(named.name, ColumnProfile(named.name)).add(row, named.feature)
    if not count:
        raise DataError("there are no rows to infer a schema from")
    return DataProfile(count, heads, columns, labelled, timed, weighted)


def _is_threshold(pairs: list[tuple[Any, float]]) -> bool:
    """Return True if a threshold of the value separates two labels."""
    labels = sorted({label for _, label in pairs})
    if len(labels) != 2:
        return False
    low, high = ([value for value, label in pairs if label == each] for each in labels)
    return bool(max(low) < min(high) or max(high) < min(low))


def _is_time(value: bytes) -> bool:
    try:
        datetime.fromisoformat(value.decode("ascii"))
    except ValueError:
        return False
    return b":" in value


def _values(value: Any, arm: str) -> list[Any]:
    if arm.endswith("_value"):
        return [value]
    if arm.endswith("_lists"):
        return [each for inner in value.list for each in inner.value]
    return list(value.value)


def _show(values: list[Any]) -> str:
    texts = [_show_one(each) for each in values[:3]]
    text = ", ".join(texts) + (", ..." if len(values) > 3 else "")
    text = f"[{text}]" if len(values) > 1 else text
    return text if len(text) <= 24 else text[:21] + "..."


def _show_one(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
