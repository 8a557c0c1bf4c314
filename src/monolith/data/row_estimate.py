"""``estimate_rows``: the number of rows of files of columns, without reading them.

Parquet files have it in their footers. Rows of CSV and JSON lines are estimated from the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from monolith.core import storage
from monolith.core.errors import MonolithError
from monolith.data.readers import TableKind
from monolith.data.sources.arrow_columns import load_pyarrow
from monolith.data.sources.text_tables import without_compression

__all__ = ["estimate_rows"]

_MOST_FILES = 1000
_SAMPLE_BYTES = 1 << 18


def estimate_rows(paths: Sequence[str], kind: TableKind) -> int | None:
    """Return about how many rows files have; None where it is unknown, as of compressed files."""
    if len(paths) > _MOST_FILES:
        return None
    try:
        if kind == "parquet":
            return sum(_parquet_rows(path) for path in paths)
        if kind == "arrow" or any(without_compression(path) != path for path in paths):
            return None
        lines = _count_lines(paths)
        return max(1, lines - len(paths)) if kind == "csv" else lines
    except (MonolithError, OSError, load_pyarrow().ArrowException):
        return None  # the reader will name the error


def _parquet_rows(path: str) -> int:
    with storage.open_file(path) as file:
        return int(load_pyarrow("pyarrow.parquet").read_metadata(file).num_rows)


def _count_lines(paths: Sequence[str]) -> int:
    """Return the lines of files: exactly for small ones, else by the mean length of the first lines."""
    total, sampled_lines, sampled_bytes, other_bytes = 0, 0, 0, 0
    for path in paths:
        size = storage.file_bytes(path)
        if size > _SAMPLE_BYTES and sampled_lines:
            other_bytes += size
            continue
        with storage.open_file(path) as file:
            sample = storage.read_up_to(file, _SAMPLE_BYTES)
        lines = sample.count(b"\n")
        if size <= _SAMPLE_BYTES:
            total += lines + (not sample.endswith(b"\n"))
        else:
            sampled_lines, sampled_bytes, other_bytes = lines, sample.rfind(b"\n") + 1, other_bytes + size
    return total + (round(other_bytes * sampled_lines / sampled_bytes) if sampled_bytes else 0)
