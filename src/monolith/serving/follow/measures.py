"""Measure the difference between the scores of two states of a model on the same rows. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """Largest value of each measure over all outputs. Measures without data are absent."""

    new: Mapping[str, float]
    old: Mapping[str, float]
    """Values of the old state, for measures of a single state."""
    outputs: Mapping[str, str]
    """Output that has the largest value of each measure."""

    def over(self, limits: CanaryLimits) -> list[str]:
        """Return a text for every measure above its limit."""
        exceeded = []
        for name, value in self.new.items():
            limit = getattr(limits, name)
            if limit is not None and value > limit and value > self.old.get(name, -1.0):
                exceeded.append(f"{name} of {self.outputs[name]!r} is {value:.4g} (limit {limit:g})")
        return exceeded


def measure(old: Arrays, new: Arrays, label: NDArray[Any], label_mask: NDArray[Any]) -> Measures:
    """Compare the scores of two states.

    Args:
        old: Output name to scores of the old state, one row per example.
        new: Output name to scores of the new state.
        label: (rows, labels). Outputs with one number per row match the labels in order.
        label_mask: (rows, labels): True where a label is present.
    """
    found: dict[str, tuple[float, float, str]] = {}

    def note(name: str, value: float | None, before: float | None, output: str) -> None:
        if value is not None and (name not in found or value > found[name][0]):
            found[name] = value, -1.0 if before is None else before, output

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
    return Measures(
        {name: value for name, (value, _, _) in found.items()},
        {name: before for name, (_, before, _) in found.items()},
        {name: output for name, (_, _, output) in found.items()},
    )


def _nan_rate(scores: NDArray[Any]) -> float:
    return float(1.0 - np.isfinite(scores).mean())


def _calibration_error(scores: NDArray[Any], label: NDArray[Any], there: NDArray[np.bool_]) -> float | None:
    """Return the relative error of the sum; None without labels, with a label sum of 0, or without finite scores."""
    counted = there & np.isfinite(scores)
    total = float(label[counted].sum(dtype=np.float64))
    if total <= 0:
        return None
    return abs(float(scores[counted].sum(dtype=np.float64)) / total - 1.0)
