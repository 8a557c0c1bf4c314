"""Ages of events at the publish of a cut, as a histogram that a cut carries to its servers.

``CutAges`` counts the rows that a cut adds, by their age at the publish. A server adds the time until it applied the
cut, and so knows the time from event to servable of every row. Buckets grow by a constant ratio, and a row counts as
old as the upper bound of its bucket, so quantiles are never understated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["AGE_BOUNDS_S", "MOST_CUTS", "CutAges", "count_ages"]

AGE_BOUNDS_S: tuple[float, ...] = tuple(0.001 * 1.27**power for power in range(64))
"""Upper bounds of the buckets, from a millisecond to about an hour. Older rows count in the last bucket."""

MOST_CUTS = 64
"""Number of cuts whose ages the newest cut carries, for servers that apply only some cuts."""


@dataclass(frozen=True, slots=True)
class CutAges:
    """Ages of the rows that one cut adds."""

    number: int
    """Number of the cut; 0 before the publish."""
    published_at_s: float
    counts: Mapping[int, int]
    """Number of rows by bucket."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CutAges:
        """Return the ages that ``dataclasses.asdict`` made a JSON object of.

        Raises:
            ValueError: A bucket or a count is invalid.
        """
        counts = {int(bucket): int(count) for bucket, count in value["counts"].items()}
        if any(not 0 <= bucket < len(AGE_BOUNDS_S) or count < 1 for bucket, count in counts.items()):
            raise ValueError(f"counts of ages are {counts}, expected buckets 0 to {len(AGE_BOUNDS_S) - 1}")
        return cls(int(value["number"]), float(value["published_at_s"]), counts)


def count_ages(ages_s: NDArray[np.float64]) -> dict[int, int]:
    """Return the number of ages in each bucket that has any; a negative age counts as 0.

    >>> count_ages(np.array([0.0005, -3.0, 0.0011]))
    {0: 2, 1: 1}
    """
    buckets = np.minimum(np.searchsorted(AGE_BOUNDS_S, ages_s), len(AGE_BOUNDS_S) - 1)
    return {int(bucket): int(count) for bucket, count in zip(*np.unique(buckets, return_counts=True), strict=True)}
