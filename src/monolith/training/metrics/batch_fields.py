"""Fields of a batch where NumPy and Python can read them, whether they are arrays or tensors of any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.data import Batch, Ragged, Texts

__all__ = ["field_values", "on_host"]


def on_host(array: Any) -> NDArray[Any]:
    """Return a NumPy array of the same values; a view where that is possible."""
    return np.asarray(array.numpy(force=True) if hasattr(array, "numpy") else array)


def field_values(batch: Batch, name: str, rows: Sequence[int]) -> list[list[Any]]:
    """Return the values that a field has in each of ``rows``: plain numbers or texts, as many as the row has.

    Raises:
        ConfigError: The batch has no such field.
    """
    try:
        field = batch[name]
    except KeyError as exc:
        raise ConfigError(exc.args[0]) from None
    if isinstance(field, Ragged):
        return [on_host(field[row]).tolist() for row in rows]
    if isinstance(field, Texts):
        width = len(field) // max(1, batch.size)
        return [[_text(field[place]) for place in range(row * width, (row + 1) * width)] for row in rows]
    values = on_host(field)[list(rows)]
    listed: list[list[Any]] = values.reshape(len(values), -1 if values.size else 0).tolist()
    return listed


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
