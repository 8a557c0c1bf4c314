"""Files that a model writes while it runs appear under their names when the run ends well."""

from __future__ import annotations

from collections.abc import Sequence

from monolith.embedding import writable_file
from monolith.embedding.writable_file import WritableFile
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

__all__ = ["FileCloseHook"]


class FileCloseHook(Hook):
    """Closes files at the end of a run. After a failed run they are left unpublished, as a failed ``with`` block does.

    Args:
        files: What the model appends to.
    """

    def __init__(self, files: Sequence[WritableFile]) -> None:
        self._closing = writable_file.FileCloseHook(files)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Publish every file; one that cannot be does not keep the others back."""
        if error is None:
            self._closing.end()
