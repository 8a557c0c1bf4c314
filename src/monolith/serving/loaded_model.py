"""What a server knows of a model that is loaded: its signatures, and how to ask it for scores and rows.

``monolith.serving.servable`` is the one that exports are loaded as; anything of this shape can be served. How a model
computes, and where its rows are, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monolith.data.sources.base import RecordKind

__all__ = ["DEFAULT_SIGNATURE", "LoadedModel", "Loader", "Outputs", "Signature", "TensorInfo"]

DEFAULT_SIGNATURE = "serving_default"
"""The signature of a request that names none."""

Outputs: TypeAlias = dict[str, NDArray[Any]]
"""Name of an output to its values; the first axis of each is the row."""


class TensorInfo(Protocol):
    """One input or output."""

    @property
    def dtype(self) -> Any:
        """A numpy type, or bytes."""

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes; -1 where any will do."""


class Signature(Protocol):
    """One way to call a model."""

    @property
    def inputs(self) -> Mapping[str, TensorInfo]:
        """What it takes."""

    @property
    def outputs(self) -> Mapping[str, TensorInfo]:
        """What it gives."""


class LoadedModel(Protocol):
    """A model that answers. Safe to call from several threads."""

    @property
    def signatures(self) -> Mapping[str, Any]:
        """Ways to call it, by name: each a ``Signature``."""

    def predict(self, records: Sequence[bytes], kind: RecordKind, signature: str = ...) -> Outputs:
        """Return the outputs for the rows of all the records, in order.

        Raises:
            DataError: A record cannot be read, or does not fit the model.
        """

    def predict_features(self, features: Mapping[str, Any], signature: str = ...) -> Outputs:
        """Return the outputs for rows that are given feature by feature.

        Raises:
            MonolithError: A feature is unknown, or its values do not fit it.
        """

    def lookup(self, table: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of ``ids``; zeros where there is none."""

    def assign(self, table: str, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Set rows."""

    def close(self) -> None:
        """Let go of memory and files; nobody calls it any more."""


Loader: TypeAlias = Callable[[Path], LoadedModel]
"""Loads the version that is in a folder, or raises."""
