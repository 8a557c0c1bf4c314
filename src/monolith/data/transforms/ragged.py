"""Functions on ragged ids: values, and offsets that are one more than rows. Row i is values[offsets[i]:offsets[i + 1]].

They know arrays only; for whole pipelines see the transforms of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError

__all__ = ["RaggedIds", "concat", "feature_combine", "gen_fid_mask", "map_id", "row_ids", "switch_slot"]

_Ids: TypeAlias = npt.NDArray[np.int64]


class RaggedIds(NamedTuple):
    """Ids of several rows. Shapes: ``values`` is (N,), ``offsets`` is (B + 1,), both int64."""

    values: _Ids
    offsets: _Ids


def map_id(ids: npt.ArrayLike, mapping: Mapping[int, int], default: int = -1) -> _Ids:
    """Return what ``mapping`` has for each id, ``default`` where it has nothing. Any shape.

    >>> map_id([123, 456, 789, 912], {123: 0, 456: 1, 789: 2}).tolist()
    [0, 1, 2, -1]
    """
    values = _ids(ids, "ids")
    if not mapping:
        return np.full(values.shape, default, np.int64)
    keys = np.array(sorted(mapping), np.int64)
    targets = np.array([mapping[int(key)] for key in keys], np.int64)
    places = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    result: _Ids = np.where(keys[places] == values, targets[places], np.int64(default))
    return result


def gen_fid_mask(values: npt.ArrayLike, offsets: npt.ArrayLike, fid_value: int) -> npt.NDArray[np.float32]:
    """Return 1 for the rows that have the id and 0 for the others. Shapes: (N,), (B + 1,) -> (B,).

    >>> gen_fid_mask([1, 2, 3, 3, 4, 5, 6], [0, 3, 4, 4, 7], 3).tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    return _native.ragged_mask(_ids(values, "values"), _ids(offsets, "offsets"), fid.as_signed(fid_value))


def switch_slot(values: npt.ArrayLike, offsets: npt.ArrayLike, slot: int, version: fid.Version = 2) -> RaggedIds:
    """Return the ids with their signatures kept and their slot replaced."""
    return RaggedIds(fid.switch_slot(_ids(values, "values"), slot, version), _ids(offsets, "offsets"))


def feature_combine(
    a: tuple[npt.ArrayLike, npt.ArrayLike],
    b: tuple[npt.ArrayLike, npt.ArrayLike],
    slot: int,
    version: fid.Version = 2,
) -> RaggedIds:
    """Return, per row, ``fid.cross`` of each id of ``a`` (outer) with each of ``b`` (inner).

    Raises:
        ConfigError: The rows differ in number, or the slot does not exist in this version.
    """
    fid.make_v2(slot, 0) if version == 2 else fid.make_v1(slot, 0)
    parts = (_ids(a[0], "a values"), _ids(a[1], "a offsets"), _ids(b[0], "b values"), _ids(b[1], "b offsets"))
    return RaggedIds(*_native.ragged_combine(*parts, slot, version))


def concat(parts: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]], axis: Literal[0, 1] = 0) -> RaggedIds:
    """Join ragged arrays: 0 puts the rows of one behind those of the other, 1 joins row i of all.

    >>> joined = concat([([7], [0, 1]), ([8, 9], [0, 2])])
    >>> joined.values.tolist(), joined.offsets.tolist()
    ([7, 8, 9], [0, 1, 3])
    """
    pairs = [(_ids(values, "values"), _ids(offsets, "offsets")) for values, offsets in parts]
    if axis == 1:
        return RaggedIds(*_native.ragged_join(pairs))
    if axis != 0:
        raise ConfigError(f"axis is {axis!r}; use 0 or 1")
    if not pairs:
        return RaggedIds(np.zeros(0, np.int64), np.zeros(1, np.int64))
    begins = np.cumsum([0, *(len(values) for values, _ in pairs[:-1])])
    offsets = [np.zeros(1, np.int64), *(own[1:] + begin for (_, own), begin in zip(pairs, begins, strict=True))]
    return RaggedIds(np.concatenate([values for values, _ in pairs]), np.concatenate(offsets))


def row_ids(offsets: npt.ArrayLike) -> _Ids:
    """Return the row of every value. Shapes: (B + 1,) -> (N,).

    >>> row_ids([0, 4, 4, 7, 8, 8]).tolist()
    [0, 0, 0, 0, 2, 2, 2, 3]
    """
    ends = _ids(offsets, "offsets")
    result: _Ids = np.repeat(np.arange(len(ends) - 1, dtype=np.int64), np.diff(ends))
    return result


def _ids(values: npt.ArrayLike, name: str) -> _Ids:
    array = np.asarray(values)
    if array.size == 0 and array.dtype == np.float64:  # what NumPy makes of an empty list
        array = array.astype(np.int64)
    if array.dtype == np.uint64:
        array = array.view(np.int64)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{name} has dtype {array.dtype}; give integers")
    return np.ascontiguousarray(array, np.int64)
