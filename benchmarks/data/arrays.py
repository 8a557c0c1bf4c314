"""The arrays of a batch under plain names, whoever made them, so that contestants can be held against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monolith.data import Batch

__all__ = ["Arrays", "arrays_of", "check_agreement"]

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""``NAME`` and ``NAME.offsets`` of ragged ids, ``NAME`` of everything else."""

_ATTRIBUTES = ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid")


def arrays_of(batch: Batch) -> Arrays:
    """Return every array of a batch: all of its views are made."""
    arrays: Arrays = {name: getattr(batch, name) for name in _ATTRIBUTES}
    for name, ids in (*batch.ids.items(), ("actions", batch.actions)):
        arrays[name], arrays[name + ".offsets"] = ids.values, ids.offsets
    arrays.update(batch.dense)
    return arrays


def check_agreement(ours: Mapping[str, NDArray[Any]], peer: Mapping[str, NDArray[Any]], who: str) -> None:
    """Refuse to measure contestants that do not do the same work; the peer may leave arrays out.

    Raises:
        RuntimeError: An array differs.
    """
    for name, theirs in peer.items():
        mine = ours[name]
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape or not np.array_equal(mine, theirs):
            raise RuntimeError(
                f"{who} and ours differ in {name}: {theirs.dtype}{theirs.shape}, {mine.dtype}{mine.shape}"
            )
