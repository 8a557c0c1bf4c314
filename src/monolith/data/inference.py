"""``infer_schema``: looks at the first rows of a file or dataset and proposes a schema.

Review the proposal and save it: features that the first rows lack are not in it.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from typing import Any

from monolith.core import fid
from monolith.core.errors import ConfigError, DataError
from monolith.data import readers
from monolith.data.dataset import Dataset
from monolith.data.records.detect import detect
from monolith.data.schema import DenseFeature, Schema, SparseFeature

__all__ = ["infer_schema"]


def infer_schema(data: Dataset | str | os.PathLike[str], *, rows: int = 1000) -> Schema:
    """Return a schema that reads every feature of the first rows.

    Features with fids become sparse, with their slot when all their ids agree on one. Floats, integers and byte strings
    become dense, as wide as the widest row, padded when rows differ.

    Args:
        data: A dataset without ``batch``, or a file: Parquet, CSV, JSON lines, Arrow, or records, whose framing,
            compression and message are detected.
        rows: How many rows to look at.

    Raises:
        DataError: There are no rows, or the file is of no known format.
    """
    dataset = data if isinstance(data, Dataset) else _open(data)
    seen: dict[str, _Seen] = {}
    heads = 0
    count = 0
    for example in itertools.islice(iter(dataset), rows):
        count += 1
        heads = max(heads, len(example.label))
        for named in example.named_feature:
            seen.setdefault(named.name, _Seen()).add(named.feature)
    if not count:
        raise DataError("there are no rows to infer a schema from")
    return Schema(
        sparse=[SparseFeature(name, each.slot()) for name, each in seen.items() if each.kind() == "fid"],
        dense=[each.dense(name) for name, each in seen.items() if each.kind() in ("float32", "int64", "bytes")],
        labels=heads,
    )


def _open(path: str | os.PathLike[str]) -> Dataset:
    if (kind := readers.table_kind(os.fspath(path))) is not None:
        opened: Dataset = getattr(readers, kind)(path)
        return opened
    found = detect(path)
    if found.record is None or found.framing is None:
        raise DataError(
            f"{os.fspath(path)}: {' '.join(found.evidence)}; give a dataset with record= and framing= instead"
        )
    return readers.files(os.fspath(path), record=found.record, framing=found.framing, compression=found.compression)


class _Seen:
    """Statistics of one feature in the rows."""

    _KINDS = (("fid_", "fid"), ("float", "float32"), ("double", "float32"), ("int64", "int64"), ("bytes", "bytes"))

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._widths: Counter[int] = Counter()
        self._slots: set[int] = set()

    def add(self, feature: Any) -> None:
        arm = feature.WhichOneof("type")
        if arm is None:
            return
        kind = next(kind for prefix, kind in self._KINDS if arm.startswith(prefix))
        values = _values(getattr(feature, arm), arm)
        self._kinds[kind] += 1
        self._widths[len(values)] += 1
        if kind == "fid":
            slot = fid.slot_v1 if "v1" in arm else fid.slot_v2
            self._slots.update(slot(int(value)) for value in values)

    def kind(self) -> str:
        if len(self._kinds) > 1:
            raise ConfigError(f"a feature holds {' and '.join(self._kinds)} in different rows; declare it by hand")
        return next(iter(self._kinds), "")

    def slot(self) -> int | None:
        return next(iter(self._slots)) if len(self._slots) == 1 else None

    def dense(self, name: str) -> DenseFeature:
        width = max(1, max(self._widths))
        is_even = set(self._widths) <= {0, width}
        return DenseFeature(name, width, self.kind(), pad=not is_even)  # type: ignore[arg-type]


def _values(value: Any, arm: str) -> list[Any]:
    if arm.endswith("_value"):
        return [value]
    if arm.endswith("_lists"):
        return [each for inner in value.list for each in inner.value]
    return list(value.value)
