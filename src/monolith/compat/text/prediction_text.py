"""``PredictionText``: the predictions of a run as one text file per worker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import ArrayLike

from monolith.compat.entry_dump.writable_file import WritableFile
from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch
from monolith.training.metrics.batch_fields import field_values, on_host

__all__ = ["PredictionText"]


class PredictionText:
    """Writes ``<folder>/part-00000``: a line per row, chosen fields of the batch and then the heads' predictions.

    The file appears when it is closed; leaving a ``with`` block by an exception discards it. Several values of a field
    are joined by commas. Numbers are written so that they read back exactly. The order of the heads is that of the
    first batch.

    Args:
        folder: Created if missing.
        fields: Fields of a batch to write, such as "uid", "label" or the name of a feature or an extra field.
        worker: The number in the file's name.
        delimiter: Separator of two columns.

    Raises:
        ConfigError: The delimiter could occur inside a value.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        fields: Sequence[str] = ("uid",),
        *,
        worker: int = 0,
        delimiter: str = "\t",
    ) -> None:
        if not delimiter or any(char in delimiter for char in "0123456789.+-,\r\n"):
            raise ConfigError(
                f"delimiter must be text without digits, '.', '+', '-', ',' or line ends, got {delimiter!r}"
            )
        self._fields = list(fields)
        self._delimiter = delimiter
        self._heads: list[str] | None = None
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = WritableFile(Path(folder) / f"part-{worker:05d}")

    @property
    def path(self) -> Path:
        """Where the file will be."""
        return self._file.path

    def write(self, batch: Batch, predictions: Mapping[str, ArrayLike]) -> None:
        """Add the rows of a batch.

        Args:
            batch: Where the fields are taken from.
            predictions: (B,) or (B, n) by head.

        Raises:
            ConfigError: The batch has no such field, or the heads are others than before.
            DataError: A text holds the delimiter or a line end.
        """
        heads = list(predictions) if self._heads is None else self._heads
        if set(heads) != set(predictions):
            raise ConfigError(f"the file has the heads {heads}, this batch has {list(predictions)}; they must agree")
        self._heads = heads
        rows = range(batch.size)
        columns = [self._texts(name, field_values(batch, name, rows)) for name in self._fields]
        for name in heads:
            values = on_host(predictions[name])
            columns.append(self._texts(name, values.reshape(batch.size, -1 if values.size else 0).tolist()))
        lines = (self._delimiter.join(cells) + "\n" for cells in zip(*columns, strict=True))
        self._file.append("".join(lines))

    def close(self) -> None:
        """Publish the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def _texts(self, name: str, values: list[list[Any]]) -> list[str]:
        texts = [",".join(map(str, each)) for each in values]
        for text in texts:
            if self._delimiter in text or "\n" in text or "\r" in text:
                raise DataError(
                    f"field {name!r} has the value {text!r}, which would break its line; choose another delimiter, or "
                    "remove the line end"
                )
        return texts
