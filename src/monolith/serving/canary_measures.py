"""How far the scores of one state of a model are from those of another, over the same rows. Plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError

__all__ = ["CanaryLimits", "Measures", "measured"]

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLimits:
    """What is too much. Each is a measure of ``measured``; None = it does not count."""

    nan_rate: float | None = 0.0
    """Share of the new scores that are not finite; refused only where it is also more than before."""
    score_shift: float | None = 0.1
    """Mean distance of a row's new score from its old one."""
    mean_shift: float | None = 0.05
    """Distance of the mean of the new scores from that of the old ones."""
    calibration_error: float | None = 0.5
    """How far the sum of the new scores is from that of the labels, as a share of it; refused only where it is also
    more than before. Counts where the sample has labels."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"the canary's limit of {field.name} is {value}; give 0 or more")


@dataclass(frozen=True, slots=True)
class Measures:
    """What was found, by measure: the worst of all outputs. A measure that nothing could be said of is left out."""

    new: Mapping[str, float]
    old: Mapping[str, float]
    """What a measure was before, of those that are about one state."""
    outputs: Mapping[str, str]
    """The output that each is of."""

    def over(self, limits: CanaryLimits) -> list[str]:
        """Say of every measure that is over its limit what it is."""
        found = []
        for name, value in self.new.items():
            limit = getattr(limits, name)
            if limit is not None and value > limit and value > self.old.get(name, -1.0):
                found.append(f"{name} of {self.outputs[name]!r} is {value:.4g} (limit {limit:g})")
        return found


def measured(old: Arrays, new: Arrays, label: NDArray[Any], label_mask: NDArray[Any]) -> Measures:
    """Compare the scores of two states.

    Args:
        old: Output to its scores, one row per example.
        new: The same of the other state.
        label: (rows, labels). The outputs with one number per row go with the labels, in order.
        label_mask: (rows, labels): where there is one.
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
            before = None  # another model's output of the same name
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
    """Return None where there are no labels, or they add up to nothing, or scores are not finite."""
    counted = there & np.isfinite(scores)
    total = float(label[counted].sum(dtype=np.float64))
    if total <= 0:
        return None
    return abs(float(scores[counted].sum(dtype=np.float64)) / total - 1.0)
