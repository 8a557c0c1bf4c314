"""Arrays as JSON values: base64 of their bytes, little-endian on every machine, and exact."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["array_of", "text_of"]


def text_of(array: NDArray[Any]) -> dict[str, str]:
    """Return a one-dimensional array as JSON values.

    >>> array_of(text_of(np.array([1.5, 2.5]))).tolist()
    [1.5, 2.5]
    """
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"dtype": plain.dtype.str, "base64": base64.b64encode(plain.tobytes()).decode("ascii")}


def array_of(text: Mapping[str, str]) -> NDArray[Any]:
    """Return the array that ``text_of`` wrote."""
    kind = np.dtype(text["dtype"])
    return np.frombuffer(base64.b64decode(text["base64"]), kind).astype(kind.newbyteorder("="))
