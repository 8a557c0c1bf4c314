"""``describe_not_finite``: names the dense features of a batch that are NaN or infinite, for errors and logs."""

from __future__ import annotations

import numpy as np

from monolith.data import Batch, Texts
from monolith.training.key_columns import KEY_PREFIX

__all__ = ["describe_not_finite"]


def describe_not_finite(batch: Batch) -> str:
    """Return the dense features with NaN or infinite values and the number of such rows; empty if all are finite.

    Keys beside predictions do not count: the model does not read them, and NaN stands for a missing one.
    """
    found = []
    for name, values in batch.dense.items():
        if isinstance(values, Texts) or name.startswith(KEY_PREFIX):
            continue
        is_finite = np.isfinite(np.asarray(values))
        if not is_finite.all():
            rows = len(is_finite) - int(is_finite.reshape(len(is_finite), -1).all(axis=1).sum())
            found.append(f"feature {name!r} is NaN or infinite in {rows} of {batch.size} rows")
    return ", ".join(found)
