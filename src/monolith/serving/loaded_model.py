"""What a server knows of a model that is loaded: its signatures, and how to ask it for scores and rows.

``monolith.serving.servable`` is the one that exports are loaded as; anything of this shape can be served. How a model
computes, and where its rows are, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from monolith.data.sources.base import RecordKind

__all__ = ["DEGRADED", "DegradedOutputs", "LoadedModel", "Loader", "Outputs", "Signature", "TensorInfo"]

Outputs: TypeAlias = dict[str, NDArray[Any]]
"""Name of an output to its values; the first axis of each is the row."""

DEGRADED = "Monolith-Degraded"
"""Header of HTTP, and in small letters trailing metadata of gRPC, of an answer without some of its rows."""


class DegradedOutputs(dict[str, NDArray[Any]]):
    """Outputs that were computed without rows which nobody could give.

    Args:
        outputs: The outputs.
        missing: Who did not give rows: ``ps_1``, ...
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], missing: Sequence[str]) -> None:
        super().__init__(outputs)
        self.missing = tuple(missing)


class TensorInfo(Protocol):
    """One input or output."""

    @property
    def dtype(self) -> Any:
        """``string``, or what numpy calls it."""

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes; -1 where any will do."""


class Signature(Protocol):
    """One way to call a model."""

    @property
    def kind(self) -> str:
        """``score`` takes records or features; any other takes arrays."""

    @property
    def inputs(self) -> Mapping[str, TensorInfo]:
        """What it takes."""

    @property
    def outputs(self) -> Mapping[str, TensorInfo]:
        """What it gives."""


class LoadedModel(Protocol):
    """A model that answers. Safe to call from several threads."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Ways to call it, by name."""

    def predict(
        self, records: Sequence[bytes], kind: RecordKind, signature: str = ..., outputs: Sequence[str] | None = None
    ) -> Outputs:
        """Return the named outputs, or all, for the rows of all the records, in order.

        Raises:
            MonolithError: A record cannot be read, or does not fit the model.
        """

    def predict_features(
        self, features: Mapping[str, Any], signature: str = ..., outputs: Sequence[str] | None = None
    ) -> Outputs:
        """Return the same for rows whose features are given as lists, by name.

        Raises:
            MonolithError: A feature is unknown, or its values do not fit it.
        """

    def call(self, signature: str, inputs: Mapping[str, Any]) -> Outputs:
        """Return what a signature of another kind than ``score`` gives for these arrays.

        Raises:
            MonolithError: An input is missing, unknown, or of another type or shape.
        """

    def warm_up(self) -> int:
        """Answer the requests that it carries for that, and return how many there were.

        Raises:
            MonolithError: One of them cannot be answered.
        """

    def close(self) -> None:
        """Let go of memory and files; nobody calls it any more."""


Loader: TypeAlias = Callable[[Path], LoadedModel]
"""Loads the version that is in a folder, or raises."""
