"""Protocol of a head's metrics: count rows, return the value, merge, save and restore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from numpy.typing import ArrayLike

from monolith.training.metrics.samples import Samples, select_values

__all__ = ["Metric"]


class Metric(ABC):
    """A number over all rows counted so far. Used by one thread."""

    def update(
        self, predictions: ArrayLike, label: ArrayLike, mask: ArrayLike | None = None, weight: ArrayLike | None = None
    ) -> None:
        """Count a batch.

        Args:
            predictions: (B,).
            label: (B,).
            mask: (B,): rows that count; None = all.
            weight: (B,): how much each row counts; None = 1 each.

        Raises:
            ConfigError: The shapes differ.
            DataError: A value that counts cannot be counted, such as NaN.
        """
        self.add(self._select(predictions, label, mask, weight))

    def _select(
        self, predictions: ArrayLike, label: ArrayLike, mask: ArrayLike | None, weight: ArrayLike | None
    ) -> Samples:
        return select_values(predictions, label, mask, weight)

    @abstractmethod
    def add(self, samples: Samples) -> None:
        """Count rows that were selected and checked already."""

    @abstractmethod
    def result(self) -> float:
        """Return the value; NaN when the rows so far do not define one."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Count all that ``other`` has counted; it stays as it is."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the exact counts as JSON values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the counts by those of ``state``."""
