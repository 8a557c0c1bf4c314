"""``KeyColumns``: columns of the data that stand beside predictions, with the values that the data has.

A key is read as a separate dense feature, so a column may be a key and a feature of the model. Its type comes from the
first rows. Ids of record files are keys too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from monolith.core.errors import ConfigError
from monolith.data import Batch, DenseFeature, Ragged, Schema, SparseFeature, Texts

__all__ = ["KeyColumns"]

_PREFIX = "__key__"


class KeyColumns:
    """Reads keys with the schema of a model.

    Args:
        names: The columns.
        found: The schema of the data, as ``infer_schema`` returns it.

    Raises:
        ConfigError: The data has no such column.
    """

    def __init__(self, names: Sequence[str], found: Schema) -> None:
        dense = {each.column or each.name: each for each in found.dense_features}
        sparse = {each.column or each.name: each for each in found.sparse_features}
        for name in names:
            if name not in dense and name not in sparse:
                known = ", ".join([*dense, *sparse])
                raise ConfigError(f"keys names {name!r}, expected a column of the data; its columns are: {known}")
        self._names = list(names)
        self._dense = [
            replace(dense[name], name=_PREFIX + name, column=name, pad=True) for name in names if name in dense
        ]
        self._sparse = [SparseFeature(_PREFIX + name, sparse[name].slot, name) for name in names if name in sparse]

    def extend(self, schema: Schema) -> Schema:
        """Return a schema that also reads the keys."""
        dense: list[DenseFeature] = [*schema.dense_features, *self._dense]
        return replace(schema, dense=dense, sparse=[*schema.sparse_features, *self._sparse])

    def read(self, batch: Batch) -> Mapping[str, Any]:
        """Return the keys of a batch by name."""
        return {name: _values(batch[_PREFIX + name], batch.size) for name in self._names}


def _values(column: Any, rows: int) -> Any:
    """Return one value per row, or one list of values."""
    if isinstance(column, Texts):
        texts = [column[place].decode("utf-8", "backslashreplace") for place in range(len(column))]
        width = len(texts) // max(rows, 1)
        return texts if width == 1 else [texts[row * width : (row + 1) * width] for row in range(rows)]
    if isinstance(column, Ragged):
        lists = [
            column.values[begin:end].tolist() for begin, end in zip(column.offsets, column.offsets[1:], strict=False)
        ]
        return [values[0] if len(values) == 1 else values for values in lists]
    array = np.asarray(column)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
