"""Admission by exact counts, which the engine's filters estimate."""

from __future__ import annotations

import random
from collections import Counter

from monolith.embedding.admission import AdmissionFilter, ProbabilisticFilter, SlidingHashFilter

__all__ = ["ReferenceFilter"]


class ReferenceFilter:
    """Counts the sightings of absent ids exactly."""

    def __init__(self, admission: AdmissionFilter, seed: int) -> None:
        self._admission = admission
        self._seen: Counter[int] = Counter()
        self._random = random.Random(seed)

    def admit(self, fid: int, count: int, threshold: int) -> bool:
        """Count ``count`` more sightings; return whether the id had ``threshold`` sightings before."""
        if threshold == 0:
            return True
        if isinstance(self._admission, ProbabilisticFilter):
            chance = 1 - 0.05 ** (count / threshold) if self._admission.equal_probability else count / threshold
            return self._random.random() < chance
        if isinstance(self._admission, SlidingHashFilter):
            before = self._seen[fid]
            self._seen[fid] += count
            return before >= threshold
        return True
