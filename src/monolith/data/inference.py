"""``infer_schema``: looks at the first rows of a file or dataset and proposes a schema.

Review the proposal and save it: features that the first rows lack are not in it.
"""

from __future__ import annotations

import os

from monolith.core.errors import DataError
from monolith.data import readers
from monolith.data.dataset import Dataset
from monolith.data.profile import profile_rows
from monolith.data.records.detect import detect
from monolith.data.schema import Schema

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
        ConfigError: A feature has different types in different rows.
    """
    dataset = data if isinstance(data, Dataset) else _open(data)
    return profile_rows(dataset, rows).schema()


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
