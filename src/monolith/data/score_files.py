"""``open_score_file``: writes columns of keys and predictions, as JSON lines or as a Parquet file.

A file appears under its name when it is complete. Columns are arrays or lists with one value, or one list, per row.
"""

from __future__ import annotations

import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np
from typing_extensions import override

from monolith.core.errors import ConfigError, DataError
from monolith.core.storage import NewFile, is_url
from monolith.data.sources.arrow_columns import load_pyarrow

__all__ = ["ScoreFile", "open_score_file"]

_GROUP_ROWS = 100_000


class ScoreFile(ABC):
    """An open output. As a context manager, it publishes the file, or removes it after an error."""

    @abstractmethod
    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows.

        Raises:
            ConfigError: The columns have different numbers of rows.
            DataError: A column has another type than in the first rows of a Parquet file.
        """

    @abstractmethod
    def publish(self) -> None:
        """Complete the file, and give it its name."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.publish()
        except BaseException:
            self.discard()
            raise


def open_score_file(path: str | None) -> ScoreFile:
    """Return the output of a path: Parquet for ``.parquet``, else JSON lines; None = standard output.

    Raises:
        ConfigError: The path is a folder, or its folder does not exist.
    """
    if path is None:
        return _JsonText(sys.stdout)
    if not is_url(path):
        if Path(path).is_dir():
            raise ConfigError(f"out is {path!r}, a folder, expected the path of a file; give a name in that folder")
        folder = Path(path).parent
        if not folder.is_dir():
            raise ConfigError(f"out is {path!r}, expected a path in an existing folder; make '{folder}'")
    return _ParquetScores(path) if path.lower().endswith(".parquet") else _JsonScores(path)


def _check_rows(columns: Mapping[str, Any]) -> None:
    sizes = {name: len(value) if getattr(value, "ndim", 1) else None for name, value in columns.items()}
    if len(set(sizes.values())) != 1:
        raise ConfigError(f"the outputs have {sizes} rows, expected one row per example; check the extra outputs")


def _as_lines(columns: Mapping[str, Any]) -> str:
    _check_rows(columns)
    values = [value.tolist() if isinstance(value, np.ndarray) else list(value) for value in columns.values()]
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))
    return "".join(_as_json(row) + "\n" for row in rows)


def _as_json(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False)
    except ValueError:  # JSON has neither NaN nor infinity
        return json.dumps(_without_nan(row))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _JsonText(ScoreFile):
    """JSON lines on an open stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @override
    def write(self, columns: Mapping[str, Any]) -> None:
        self._stream.write(_as_lines(columns))

    @override
    def publish(self) -> None:
        self._stream.flush()

    @override
    def discard(self) -> None:
        pass


class _JsonScores(ScoreFile):
    """JSON lines in a file."""

    def __init__(self, path: str) -> None:
        self._file = NewFile(path)

    @override
    def write(self, columns: Mapping[str, Any]) -> None:
        self._file.write(_as_lines(columns).encode())

    @override
    def publish(self) -> None:
        self._file.publish()

    @override
    def discard(self) -> None:
        self._file.discard()


class _Sink:
    """The part of a binary file that pyarrow writes to."""

    closed = False

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._size = 0
        self.is_discarded = False
        """Drop all further writes: the end of a writer of pyarrow writes the end of the file."""

    def write(self, data: Any) -> int:
        content = bytes(data)
        if not self.is_discarded:
            self._file.write(content)
        self._size += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class _ParquetScores(ScoreFile):
    """A Parquet file. Memory holds one row group."""

    def __init__(self, path: str) -> None:
        self._arrow, self._parquet = load_pyarrow(), load_pyarrow("pyarrow.parquet")
        self._path = path
        self._file = NewFile(path)
        self._target = _Sink(self._file)
        self._sink = self._arrow.PythonFile(self._target, mode="w")
        self._writer: Any = None
        self._tables: list[Any] = []
        self._rows = 0

    @override
    def write(self, columns: Mapping[str, Any]) -> None:
        _check_rows(columns)
        table = self._arrow.table({name: self._array(value) for name, value in columns.items()})
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= _GROUP_ROWS:
            self._flush()

    @override
    def publish(self) -> None:
        self._flush()
        if self._writer is None:  # no row
            self._writer = self._parquet.ParquetWriter(self._sink, self._arrow.schema([]))
        self._writer.close()
        self._sink.close()
        self._file.publish()

    @override
    def discard(self) -> None:
        self._target.is_discarded = True
        self._file.discard()

    def _array(self, value: Sequence[Any] | np.ndarray[Any, Any]) -> Any:
        if isinstance(value, np.ndarray) and value.ndim > 1:
            return self._arrow.array(value.tolist())
        return self._arrow.array(value)

    def _flush(self) -> None:
        if not self._tables:
            return
        # A batch without a single value of a key has a column without a type.
        table = self._arrow.concat_tables(self._tables, promote_options="permissive")
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._sink, table.schema)
        self._writer.write_table(self._cast(table))
        self._tables, self._rows = [], 0

    def _cast(self, table: Any) -> Any:
        """Return rows with the types of the first row group, which the file has."""
        schema = self._writer.schema
        try:
            return table.cast(schema)
        except self._arrow.ArrowException as error:
            now = {field.name: str(field.type) for field in table.schema if field.type != schema.field(field.name).type}
            then = {name: str(schema.field(name).type) for name in now}
            raise DataError(
                f"the columns of {self._path} have the types {now}, expected {then} as in the first rows ({error}); "
                "write JSON lines: give a name without .parquet"
            ) from error
