"""Samples of a metric: the rows of a batch that have a label, checked once for all metrics of a head.

Knows arrays only; batches, heads' losses and files are elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError, DataError

__all__ = ["Samples", "select_probabilities", "select_values"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Samples:
    """Predictions and labels of n rows, all of them to be counted. May be views of the caller's arrays."""

    predictions: Floats
    """(n,): finite."""
    label: Floats
    """(n,): finite."""
    weight: Floats | None
    """(n,): finite and not negative; None when all are 1."""

    @property
    def are_hard(self) -> bool:
        """Whether every label is 0 or 1."""
        return bool(((self.label == 0) | (self.label == 1)).all())


def select_values(
    predictions: ArrayLike,
    label: ArrayLike,
    mask: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    *,
    head: str = "",
) -> Samples:
    """Return the rows that ``mask`` keeps, without the undo rows of a joiner: their weight is negative.

    Shapes: all (B,).

    Raises:
        ConfigError: The shapes differ.
        DataError: A kept prediction, label or weight is NaN or infinite.
    """
    given = {"predictions": predictions, "label": label, "weight": weight}
    arrays = {name: np.asarray(value, np.float32) for name, value in given.items() if value is not None}
    kept = None if mask is None else np.asarray(mask, np.bool_)
    shapes = {name: array.shape for name, array in arrays.items()} | ({} if kept is None else {"mask": kept.shape})
    if set(shapes.values()) != {(arrays["predictions"].size,)}:
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ConfigError(f"{_of(head)}all arrays must have the shape (B,), got {told}")
    columns = list(arrays.values())
    if kept is not None and not kept.all():
        columns = [column[kept] for column in columns]
    _check_finite(head, "predictions", columns[0], "lower the learning rates, or look for huge values in the features")
    _check_finite(head, "labels", columns[1], "mask rows without a label")
    if weight is None:
        return Samples(columns[0], columns[1], None)
    _check_finite(head, "weights", columns[2], "give each row a finite weight")
    if columns[2].size and columns[2].min() < 0:
        counted = columns[2] >= 0  # an undo row of a joiner teaches the model, and measures nothing
        columns = [column[counted] for column in columns]
    # Weights of 1 are the common case: None lets metrics skip the multiplication.
    return Samples(columns[0], columns[1], None if (columns[2] == 1).all() else columns[2])


def select_probabilities(
    predictions: ArrayLike,
    label: ArrayLike,
    mask: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    *,
    head: str = "",
) -> Samples:
    """Like ``select_values``, for a head that predicts probabilities.

    Raises:
        DataError: Also when a kept prediction or label is not between 0 and 1.
    """
    samples = select_values(predictions, label, mask, weight, head=head)
    for name, column in (("prediction", samples.predictions), ("label", samples.label)):
        if column.size and not (column.min() >= 0 and column.max() <= 1):
            worst = column.min() if column.min() < 0 else column.max()
            raise DataError(
                f"{_of(head)}a {name} is {worst:g}, but probabilities lie between 0 and 1; "
                "a head of other values needs is_classification=False"
            )
    return samples


def _check_finite(head: str, name: str, column: Floats, remedy: str) -> None:
    is_finite = np.isfinite(column)
    if not is_finite.all():
        count = column.size - int(is_finite.sum())
        raise DataError(f"{_of(head)}{count} of {column.size} {name} are NaN or infinite; {remedy}")


def _of(head: str) -> str:
    return f"head {head!r}: " if head else ""
