"""Functions on ragged ids (``Batch.ids``): maps, masks, slots, crosses, concatenation.

They know arrays only; for whole pipelines see the transforms of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.batch import Ragged

__all__ = ["concat", "feature_combine", "gen_fid_mask", "map_id", "row_ids", "switch_slot", "unique"]

_Ids: TypeAlias = npt.NDArray[np.int64]


def map_id(ids: npt.ArrayLike, mapping: Mapping[int, int], default: int = -1) -> _Ids:
    """Return the value of ``mapping`` for each id, ``default`` for unknown ids. Any shape.

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


def gen_fid_mask(ids: Ragged, fid_value: int) -> npt.NDArray[np.float32]:
    """Return 1 for the bags that have the id and 0 for the others.

    >>> gen_fid_mask(Ragged.from_lists([[1, 2, 3], [3], [], [4, 5, 6]]), 3).tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    return _native.ragged_mask(*_parts(ids), fid.as_signed(fid_value))


def switch_slot(ids: Ragged, slot: int, version: fid.Version = 2) -> Ragged:
    """Return the ids with their signatures kept and their slot replaced."""
    values, offsets = _parts(ids)
    return Ragged(fid.switch_slot(values, slot, version), offsets, ids.shared)


def feature_combine(a: Ragged, b: Ragged, slot: int, version: fid.Version = 2) -> Ragged:
    """Return, per row, ``fid.cross`` of each id of ``a`` (outer) with each of ``b`` (inner).

    Raises:
        ConfigError: The rows differ in number, or the slot does not exist in this version.
    """
    fid.make_v2(slot, 0) if version == 2 else fid.make_v1(slot, 0)
    if a.shared != b.shared:
        rows = max(len(a), len(b))
        a, b = a.expanded(rows), b.expanded(rows)
    values, offsets = _native.ragged_combine(*_parts(a), *_parts(b), slot, version)
    return Ragged(values, offsets, a.shared)


def concat(parts: Sequence[Ragged], axis: Literal[0, 1] = 0) -> Ragged:
    """Join ragged ids: 0 puts the bags of one behind those of the other, 1 joins bag i of all.

    >>> joined = concat([Ragged.from_lists([[7]]), Ragged.from_lists([[8, 9]])])
    >>> joined.values.tolist(), joined.offsets.tolist()
    ([7, 8, 9], [0, 1, 3])
    """
    pairs = [_parts(part) for part in parts]
    if axis == 1:
        return Ragged(*_native.ragged_join(pairs))
    if axis != 0:
        raise ConfigError(f"axis is {axis!r}; use 0 or 1")
    if not pairs:
        return Ragged.from_lists([])
    begins = np.cumsum([0, *(len(values) for values, _ in pairs[:-1])])
    offsets = [np.zeros(1, np.int64), *(own[1:] + begin for (_, own), begin in zip(pairs, begins, strict=True))]
    return Ragged(np.concatenate([values for values, _ in pairs]), np.concatenate(offsets))


def row_ids(offsets: npt.ArrayLike) -> _Ids:
    """Return the row of every value. Shapes: (B + 1,) -> (N,).

    >>> row_ids([0, 4, 4, 7, 8, 8]).tolist()
    [0, 0, 0, 0, 2, 2, 2, 3]
    """
    ends = _ids(offsets, "offsets")
    result: _Ids = np.repeat(np.arange(len(ends) - 1, dtype=np.int64), np.diff(ends))
    return result


def unique(ids: npt.ArrayLike) -> tuple[_Ids, _Ids]:
    """Return the distinct ids in the order in which they were first seen, and the place of every id among them.

    >>> distinct, places = unique([30, 10, 30, -1])
    >>> distinct.tolist(), places.tolist()
    ([30, 10, -1], [0, 1, 0, 2])
    """
    return _native.unique_ids(_ids(ids, "ids"))


def _parts(ids: Ragged) -> tuple[_Ids, _Ids]:
    return _ids(ids.values, "values"), _ids(ids.offsets, "offsets")


def _ids(values: npt.ArrayLike, name: str) -> _Ids:
    array = np.asarray(values)
    if array.size == 0 and array.dtype == np.float64:  # NumPy's type of an empty list
        array = array.astype(np.int64)
    if array.dtype == np.uint64:
        array = array.view(np.int64)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{name} has dtype {array.dtype}; give integers")
    return np.ascontiguousarray(array, np.int64)
