"""Generate sample inputs that check a dense program: layouts with zero rows as for absent ids, numbers, times."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.data import DenseFeature
from monolith.features import Declaration

__all__ = ["SAMPLE_SIZES", "sample_inputs"]

SAMPLE_SIZES = (16, 1, 3)
"""Rows of each sample. Programs traced with several rows often fail with one row."""

_SHARE_OF_ZEROS = 0.2


def sample_inputs(declaration: Declaration, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Return one batch of inputs per size in ``SAMPLE_SIZES``. Deterministic."""
    random = np.random.default_rng(seed)
    return [_sample(declaration, size, random) for size in SAMPLE_SIZES]


def _sample(declaration: Declaration, size: int, random: np.random.Generator) -> dict[str, NDArray[Any]]:
    made: dict[str, NDArray[Any]] = {}
    for tensor in declaration.tensors():
        rows = random.standard_normal((size, *tensor.shape)) * 10.0 ** random.integers(-3, 1, (size, *tensor.shape))
        rows[random.random(rows.shape[:-1]) < _SHARE_OF_ZEROS] = 0
        made[f"layout/{tensor.name}"] = rows.astype(np.float32)
    for feature in declaration.dense.values():
        if feature.dtype != "bytes":
            made[f"dense/{feature.name}"] = _numbers(feature, size, random)
    labels = (size, declaration.labels)
    made["label"] = random.integers(0, 2, labels).astype(np.float32)
    made["label_mask"] = random.random(labels) < 0.5
    made["weight"] = (random.random(size) + 0.5).astype(np.float32)
    made["sample_rate"] = (random.random(size) + 0.1).astype(np.float32)
    made["event_time_s"] = random.integers(1_600_000_000, 1_900_000_000, size)
    made["uid"] = random.integers(0, 1 << 40, size)
    return made


def _numbers(feature: DenseFeature, size: int, random: np.random.Generator) -> NDArray[Any]:
    shape = (size, feature.width)
    if feature.dtype == "int64":
        return random.integers(0, 1000, shape)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-1, 3, shape)).astype(np.float32)
