"""``FileCloseHook``: publishes the files that a model wrote during a run."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from monolith.compat.entry_dump.writable_file import WritableFile
from monolith.core.errors import ConfigError
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["FileCloseHook"]


class FileCloseHook(Hook):
    """Closes files at the end of a run, so that they appear under their names. A failed run publishes no file.

    Args:
        files: The files that the model appends to.

    >>> import tempfile
    >>> from pathlib import Path
    >>> file = WritableFile(Path(tempfile.mkdtemp(), "log.txt"))
    >>> hook = FileCloseHook([file])
    >>> file.append("1234")
    >>> hook.end()
    >>> file.path.read_text()
    '1234'
    """

    def __init__(self, files: Sequence[WritableFile]) -> None:
        if not isinstance(files, list | tuple):
            raise ConfigError(f"files is a {type(files).__name__}, expected a list of WritableFile")
        for position, file in enumerate(files):
            if not isinstance(file, WritableFile):
                raise ConfigError(f"files[{position}] is {file!r}, expected a WritableFile")
        self._files = tuple(files)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        if error is None:
            self.end()

    def end(self) -> None:
        """Close every file, also after one fails to close; then raise the first error."""
        first: Exception | None = None
        for file in self._files:
            try:
                file.close()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
