"""``KeyColumns``: columns of the data that stand beside predictions, with the values that the data has.

A key is read as a separate feature, so a column may be a key and a feature of the model. Its type comes from the first
rows. Whole numbers are read as ids, which have 64 bits and no value where the row has none. Text is read twice: the ids
count the values of each row. Other numbers have 32 bits. Ids of record files are keys too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch, DenseFeature, Ragged, Schema, SparseFeature, Texts
from monolith.data.profile import ColumnProfile, DataProfile

__all__ = ["KEY_PREFIX", "KeyColumns"]

logger = logging.getLogger(__name__)

KEY_PREFIX = "__key__"
"""Begins the names of dense features that hold keys; a row without a value has NaN there."""
_COUNT_PREFIX = "__key_count__"
_MOST_EXACT = 2**24
"""A whole number above it may not fit 32 bits."""


class KeyColumns:
    """Reads keys with the schema of a model.

    Args:
        names: The columns.
        profile: The first rows of the data.

    Raises:
        ConfigError: The data has no such column.
    """

    def __init__(self, names: Sequence[str], profile: DataProfile) -> None:
        found = profile.schema()
        dense = {each.name: each for each in found.dense_features}
        sparse = {each.name: each for each in found.sparse_features}
        for name in names:
            if name not in dense and name not in sparse:
                known = ", ".join([*dense, *sparse])
                raise ConfigError(f"keys names {name!r}, expected a column of the data; its columns are: {known}")
        self._names = list(names)
        self._lists = {name for name in names if profile.columns[name].is_list}
        self._dense: list[DenseFeature] = []
        self._sparse: list[SparseFeature] = []
        for name in names:
            if name in sparse:
                self._sparse.append(SparseFeature(KEY_PREFIX + name, sparse[name].slot, name))
            elif _is_whole(profile.columns[name]):
                self._sparse.append(SparseFeature(KEY_PREFIX + name, column=name, value_type="integer"))
            elif dense[name].dtype == "bytes":
                self._sparse.append(SparseFeature(_COUNT_PREFIX + name, column=name, value_type="text"))
                self._dense.append(replace(dense[name], name=KEY_PREFIX + name, column=name, pad=True))
            else:
                self._dense.append(
                    replace(dense[name], name=KEY_PREFIX + name, column=name, pad=True, default=math.nan)
                )
        self._rounded: set[str] = set()

    def extend(self, schema: Schema) -> Schema:
        """Return a schema that also reads the keys."""
        dense: list[DenseFeature] = [*schema.dense_features, *self._dense]
        return replace(schema, dense=dense, sparse=[*schema.sparse_features, *self._sparse])

    def read(self, batch: Batch) -> Mapping[str, Any]:
        """Return the keys of a batch by name: one value per row, or one list of values; None without a value.

        Raises:
            DataError: A row has more texts than every one of the first rows.
        """
        return {name: self._read(name, batch) for name in self._names}

    def _read(self, name: str, batch: Batch) -> list[Any]:
        column: Any = batch[KEY_PREFIX + name]
        if isinstance(column, Ragged):
            rows = [column[row].tolist() for row in range(batch.size)]
        elif isinstance(column, Texts):
            rows = self._read_texts(name, column, batch)
        else:
            rows = self._read_reals(name, np.asarray(column))
        return [values if name in self._lists or len(values) > 1 else next(iter(values), None) for values in rows]

    def _read_texts(self, name: str, column: Texts, batch: Batch) -> list[list[str]]:
        counts = np.diff(batch.ids[_COUNT_PREFIX + name].expanded(batch.size).offsets)
        width = len(column) // max(batch.size, 1)
        if (counts > width).any():
            raise DataError(
                f"key {name!r} has {counts.max()} values in a row, expected at most {width}, as in the first rows; "
                "leave it out of keys"
            )
        return [
            [column[row * width + place].decode("utf-8", "backslashreplace") for place in range(count)]
            for row, count in enumerate(counts.tolist())
        ]

    def _read_reals(self, name: str, column: np.ndarray[Any, Any]) -> list[list[float]]:
        if name not in self._rounded and (np.abs(column) > _MOST_EXACT).any():
            self._rounded.add(name)
            logger.warning("key rounded to 32 bits name=%s; store it as integers or text for exact values", name)
        return [[value for value in row if not math.isnan(value)] for row in column.reshape(len(column), -1).tolist()]


def _is_whole(column: ColumnProfile) -> bool:
    """Return True for integers, and for integers with missing values that are stored as reals."""
    if column.type != "float":
        return column.type == "int"
    return column.is_whole and max(map(abs, column.values.values())) > _MOST_EXACT
