"""Protocol of a loaded model: its signatures, scores and rows.

``monolith.serving.servable.servable.Servable`` implements it for exports. A server can serve any implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import NDArray

from monolith.data.sources.base import RecordKind

__all__ = [
    "DEGRADED",
    "ROW_LENGTHS",
    "DegradedOutputs",
    "FeatureInfo",
    "LoadedModel",
    "Loader",
    "Outputs",
    "SignatureView",
    "TensorView",
]

Outputs: TypeAlias = dict[str, NDArray[Any]]
"""Output name to values; the first axis is the row."""

DEGRADED = "Monolith-Degraded"
"""HTTP header, and in lower case gRPC trailing metadata, of a degraded result."""

ROW_LENGTHS = ":row_lengths"
"""Suffix of the input with the number of values per row, for a feature whose lists differ in length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInfo:
    """One feature of a model, in metadata."""

    name: str
    kind: Literal["sparse", "dense"]
    value_type: str
    """Type of the values: that of training, see ``monolith.fid.ValueType``, or ``unknown`` before training; of a dense
    feature its dtype."""
    dtype: str
    """``string``, or the name of a numpy type: the tensor to send."""
    shape: tuple[int, ...]
    """Sizes; -1 for a free size."""


class DegradedOutputs(dict[str, NDArray[Any]]):
    """Outputs computed without the rows of unavailable parts.

    Args:
        outputs: The outputs.
        missing: Names of the parts, such as ``ps_1``.
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], missing: Sequence[str]) -> None:
        super().__init__(outputs)
        self.missing = tuple(missing)


class TensorView(Protocol):
    """One input or output."""

    @property
    def dtype(self) -> Any:
        """``string``, or the name of a numpy type."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes; -1 for a free size."""


class SignatureView(Protocol):
    """One way to call a model."""

    @property
    def kind(self) -> str:
        """``score`` takes records or features; any other takes arrays."""

    @property
    def inputs(self) -> Mapping[str, TensorView]:
        """Inputs by name."""

    @property
    def outputs(self) -> Mapping[str, TensorView]:
        """Outputs by name."""


class LoadedModel(Protocol):
    """A loaded model. Thread safe."""

    @property
    def signatures(self) -> Mapping[str, SignatureView]:
        """Signatures by name."""

    @property
    def features(self) -> Sequence[FeatureInfo]:
        """Features that a signature of kind ``score`` takes; empty if the model has none."""

    def predict(
        self, records: Sequence[bytes], kind: RecordKind, signature: str = ..., outputs: Sequence[str] | None = None
    ) -> Outputs:
        """Return the named outputs, or all, for the rows of all records, in order.

        Raises:
            MonolithError: A record is invalid, or does not fit the model.
        """

    def predict_features(
        self, features: Mapping[str, Any], signature: str = ..., outputs: Sequence[str] | None = None
    ) -> Outputs:
        """Return the named outputs, or all, for rows given as lists by feature name.

        Raises:
            MonolithError: A feature is unknown, or a value is invalid.
        """

    def call(self, signature: str, inputs: Mapping[str, Any]) -> Outputs:
        """Return the outputs of a signature whose kind is not ``score``.

        Raises:
            MonolithError: An input is missing or unknown, or has another type or shape.
        """

    def warm_up(self) -> int:
        """Replay the warm-up requests of the model; return their number.

        Raises:
            MonolithError: A request fails.
        """

    def close(self) -> None:
        """Release memory and files. No call follows."""


Loader: TypeAlias = Callable[[Path], LoadedModel]
"""Loads the version in a folder, or raises."""
