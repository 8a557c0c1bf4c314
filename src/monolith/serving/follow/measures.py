"""Measure the difference between the scores of two states of a model on the same rows. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError

__all__ = ["CanaryLimits", "Measures", "measure"]

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLimits:
    """Upper limit of each measure; None ignores the measure."""

    nan_rate: float | None = 0.0
    """Share of new scores that are not finite. Exceeded only if it also grew."""
    score_shift: float | None = 0.1
    """Mean absolute difference between new and old scores of a row."""
    mean_shift: float | None = 0.05
    """Absolute difference between the means of new and old scores."""
    calibration_error: float | None = 0.5
    """Relative difference between the sum of the new scores and the sum of the labels. Exceeded only if it also grew.
    Needs a sample with labels."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"canary limit {field.name} is {value!r}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of all outputs. Measures without data are absent."""

    values: Mapping[str, Sequence[tuple[str, float, float]]]
    """Measure to (output, value, value of the old state); -1 stands for an old state without the measure."""

    @property
    def new(self) -> dict[str, float]:
        """Largest value of each measure over all outputs."""
        return {name: max(value for _, value, _ in found) for name, found in self.values.items()}

    @property
    def outputs(self) -> dict[str, str]:
        """Output that has the largest value of each measure."""
        return {name: max(found, key=lambda each: each[1])[0] for name, found in self.values.items()}

    def over(self, limits: CanaryLimits) -> list[str]:
        """Return a text for every measure above its limit, with the output that exceeds it most."""
        exceeded = []
        for name, found in self.values.items():
            limit = getattr(limits, name)
            # Each output by itself: a larger value that did not grow must not hide one that did.
            over = [
                (value, output) for output, value, before in found if limit is not None and value > max(limit, before)
            ]
            if over:
                value, output = max(over, key=lambda each: each[0])
                exceeded.append(f"{name} of {output!r} is {value:.4g} (limit {limit:g})")
        return exceeded


def measure(old: Arrays, new: Arrays, label: NDArray[Any], label_mask: NDArray[Any]) -> Measures:
    """Compare the scores of two states.

    Args:
        old: Output name to scores of the old state, one row per example.
        new: Output name to scores of the new state.
        label: (rows, labels). Outputs with one number per row match the labels in order.
        label_mask: (rows, labels): True where a label is present.
    """
    found: dict[str, list[tuple[str, float, float]]] = {}

    def note(name: str, value: float | None, before: float | None, output: str) -> None:
        if value is not None:
            found.setdefault(name, []).append((output, value, -1.0 if before is None else before))

    column = 0
    for output, scores in new.items():
        after = np.asarray(scores)
        if after.dtype.kind != "f" or not after.size:
            continue
        before = old.get(output)
        if before is not None and before.shape != after.shape:
            before = None  # an unrelated output with the same name
        note("nan_rate", _nan_rate(after), None if before is None else _nan_rate(before), output)
        if before is not None and (both := np.isfinite(before) & np.isfinite(after)).any():
            one, other = before[both].astype(np.float64), after[both].astype(np.float64)
            note("score_shift", float(np.abs(other - one).mean()), None, output)
            note("mean_shift", abs(float(other.mean() - one.mean())), None, output)
        if after.size == len(after) and column < label.shape[1]:
            labels, there = label[:, column], label_mask[:, column].astype(np.bool_)
            error = _calibration_error(after.reshape(-1), labels, there)
            known = None if before is None else _calibration_error(before.reshape(-1), labels, there)
            note("calibration_error", error, known, output)
            column += 1
    return Measures(found)


def _nan_rate(scores: NDArray[Any]) -> float:
    return float(1.0 - np.isfinite(scores).mean())


def _calibration_error(scores: NDArray[Any], label: NDArray[Any], there: NDArray[np.bool_]) -> float | None:
    """Return the relative error of the sum; None without labels, with a label sum of 0, or without finite scores."""
    counted = there & np.isfinite(scores)
    total = float(label[counted].sum(dtype=np.float64))
    if total <= 0:
        return None
    return abs(float(scores[counted].sum(dtype=np.float64)) / total - 1.0)
