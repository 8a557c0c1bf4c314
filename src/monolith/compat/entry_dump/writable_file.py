"""``WritableFile``: a file for a model's output, plain bytes or an item cache that a serving table can load."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from monolith import _native
from monolith.compat.entry_dump.shard_files import NewDumpFile
from monolith.core.errors import ConfigError

__all__ = ["WritableFile"]


class WritableFile:
    """Appends to a new file, which appears under its name when it is closed.

    The bytes go to ``<path>-tmp-<random>`` and are renamed on ``close``, so a reader never sees half a file. An
    earlier file at ``path`` stays until then. (The original writes under the final name from the start.) Leaving a
    ``with`` block by an exception, or dropping an unclosed file, publishes nothing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "log.txt")
    >>> with WritableFile(path) as file:
    ...     file.append("1234")
    ...     file.append(b"5678")
    >>> path.read_text()
    '12345678'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file: NewDumpFile | None = None
        self._path = Path(path)
        self._file = NewDumpFile(self._path)

    @property
    def path(self) -> Path:
        """Where the file will be."""
        return self._path

    def append(self, content: bytes | str) -> None:
        """Append bytes, or text as UTF-8.

        Raises:
            ConfigError: the content is neither, or the file is closed.
        """
        file = self._open_file("append")
        if isinstance(content, str):
            content = content.encode()
        elif not isinstance(content, bytes | bytearray | memoryview):
            raise ConfigError(f"append takes bytes or str, got {type(content).__name__}")
        file.write(content)

    def append_entry_dump(self, item_id: ArrayLike, bias: ArrayLike, embedding: ArrayLike) -> None:
        """Append one record per item: id and [bias, embedding...], without optimizer state and time.

        Shapes: scalar, scalar and (D,) for one item; (N,), (N,) or (N, 1), and (N, D) for many.

        Raises:
            ConfigError: the shapes do not fit, an id is not an integer, or the file is closed.
        """
        file = self._open_file("append_entry_dump")
        ids = np.asarray(item_id)
        if ids.dtype.kind not in "iu":
            raise ConfigError(f"item_id has dtype {ids.dtype}; give integers")
        many = ids.ndim == 1
        biases = np.asarray(bias, np.float32)
        vectors = np.asarray(embedding, np.float32)
        if (
            ids.ndim > 1
            or biases.size != ids.size
            or vectors.ndim != ids.ndim + 1
            or (many and len(vectors) != len(ids))
        ):
            raise ConfigError(
                f"item_id has shape {ids.shape}, bias {biases.shape}, embedding {vectors.shape}; "
                "give (), (), (D,) for one item or (N,), (N,), (N, D) for many"
            )
        rows = np.concatenate([biases.reshape(ids.size, 1), vectors.reshape(ids.size, -1)], axis=1)
        for row_id, row in zip(ids.reshape(-1).astype(np.int64).tolist(), rows, strict=True):
            file.write(_native.frame_item(row_id, row))

    def close(self) -> None:
        """Put the file on the disk under its name. Closing again does nothing."""
        if self._file is not None:
            file, self._file = self._file, None
            file.publish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._discard()

    def __del__(self) -> None:
        self._discard()

    def _open_file(self, action: str) -> NewDumpFile:
        if self._file is None:
            raise ConfigError(f"{action} on {self._path}, which is closed; open a new WritableFile")
        return self._file

    def _discard(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.discard()
