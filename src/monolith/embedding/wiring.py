"""``Wiring``: how the rows of tables become the tensors of a model, by numbers. The engine and GPUs read it.

Tables, features, parts and tensors are counted from 0, in the order of their lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monolith import _native

__all__ = ["WiredFeature", "WiredPart", "Wiring"]


class WiredFeature(NamedTuple):
    """One input: the table of its ids, and how a bag of them is pooled."""

    table: int
    combiner: str
    """"sum", "mean" or "first"."""
    length: int
    """Ids that an example shows, of "first"; else 0."""


class WiredPart(NamedTuple):
    """Columns of a feature's rows, and their floats in an example of an output."""

    output: int
    feature: int
    column: int
    """First column of the rows."""
    width: int
    offset: int
    """First float of the output."""
    stride: int
    """Floats from one id of a "first" feature to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The tables, features, parts and outputs of a model."""

    tables: Sequence[str]
    dims: Sequence[int]
    """Columns of each table."""
    features: Sequence[WiredFeature]
    parts: Sequence[WiredPart]
    widths: Sequence[int]
    """Floats per example of each output."""
    id_transforms: Sequence[tuple[int, int, int, bool]] = ()
    """Feature, vocabulary size, divisor, and whether the quotient counts; see ``_native.Layouts``."""

    def kernel(self) -> _native.Layouts:
        """Return the native kernel that plans batches and fills all outputs in host memory."""
        return _native.Layouts(self.dims, self.features, self.parts, self.widths, self.id_transforms)
