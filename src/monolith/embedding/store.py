"""``EmbeddingStore``: the interface between a model and the owner of its rows. ``RowStore``: its calls of one step.

Owners are this process, parameter servers, peers and serving tables. Every backend passes
``tests/conformance/test_embedding_store.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.embedding.specs import TableSpec

__all__ = ["EmbeddingStore", "Ids", "Manifest", "RowStore", "Rows"]

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of a snapshot."""

    path: Path
    """Folder of the snapshot."""
    rows: Mapping[str, int]
    """Table name to rows written, in sorted-name order; expired rows are not written."""
    max_time_s: Mapping[str, int]
    """Table name to the newest update time that the table has seen."""


class RowStore(Protocol):
    """Rows of distinct ids, by table: the calls of one training step."""

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id. The ids of a table are unique; absent ones show zeros (or their first values)."""
        ...

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id.

        Args:
            ids: Unique ids per table.
            grads: One gradient per id, summed over its occurrences.
            counts: Occurrences behind each id, for admission; None or a table left out = one each.
            learning_rates: One rate per slice; None or a table left out = from the spec at ``step``.
            time_s: Event time of the batch.
            step: Number of the batch.
        """
        ...


@runtime_checkable
class EmbeddingStore(RowStore, Protocol):
    """Store of rows that a model trains on."""

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """The tables, in sorted-name order."""
        ...

    def snapshot(self, path: str | PathLike[str]) -> Manifest:
        """Write all rows to ``path`` atomically."""
        ...

    def restore(self, path: str | PathLike[str]) -> object:
        """Replace all rows by the snapshot in ``path``."""
        ...
