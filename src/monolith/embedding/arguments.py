"""Checks the arguments of table calls and converts them for the engine.

Every error names the table, the value and the remedy. Arrays may be NumPy arrays, torch tensors on the CPU or
sequences. An argument of the right form is not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith import _native
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.embedding.specs import TableSpec

Mode: TypeAlias = Literal["sum", "mean"] | tuple[Literal["first"], int]
"""How a bag becomes rows: one sum, one mean, or its first n rows."""

_INT64 = np.dtype(np.int64)

MAX_TIME_S = 2**32 - 1
"""Rows keep their time in 32 bits: the year 2106."""


def as_array(values: Any) -> NDArray[Any]:
    """Return a NumPy view of an array-like; a torch tensor that needs a gradient is detached first.

    A tensor of bfloat16, which NumPy does not have, becomes float32.
    """
    if type(values) is np.ndarray:
        return values
    if hasattr(values, "detach"):
        values = values.detach()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
    return np.asarray(values)


def as_ids(table: str, ids: ArrayLike) -> NDArray[np.int64]:
    """Return flat int64 ids. uint64 is taken bit for bit, other integers are widened, the rest is refused."""
    array = as_array(ids)
    if array.dtype is not _INT64:
        if array.size == 0 and not hasattr(ids, "dtype"):
            array = array.astype(np.int64)
        if array.dtype.kind not in "iu":
            raise ConfigError(f"table {table!r}: ids have dtype {array.dtype}; give integers, best int64")
        if array.dtype == np.uint64:
            array = array.view(np.int64)
    if array.ndim != 1:
        raise ConfigError(f"table {table!r}: ids have shape {array.shape}; give a flat array, for example ids.ravel()")
    return np.ascontiguousarray(array, np.int64)


def check_known(what: str, given: Mapping[str, object] | None, tables: Mapping[str, object]) -> None:
    """Refuse an argument by table that names a table which does not exist."""
    if given and not given.keys() <= tables.keys():
        unknown = ", ".join(repr(name) for name in sorted(given.keys() - tables.keys()))
        raise ConfigError(f"{what} name {unknown}, expected tables of {', '.join(tables)}; correct the name")


def as_rows(table: str, what: str, rows: ArrayLike, count: int, dim: int) -> NDArray[np.float32]:
    """Return a (count, dim) float32 matrix."""
    array = as_array(rows)
    if array.dtype.kind not in "fiu":
        raise ConfigError(f"table {table!r}: {what} have dtype {array.dtype}; give float32")
    if array.ndim != 2 or array.shape[1] != dim:
        width = array.shape[-1] if array.ndim else 0
        raise DimensionMismatch(
            f"table {table!r} has dim {dim}, the {what} have dim {width} (shape {array.shape}); check the slices' dims"
        )
    if len(array) != count:
        raise DimensionMismatch(f"table {table!r}: {count} rows are needed, {what} have {len(array)}")
    return np.ascontiguousarray(array, np.float32)


def as_offsets(table: str, offsets: ArrayLike) -> NDArray[np.int64]:
    """Return int64 bag boundaries. The engine checks that they go from 0 to the number of ids and never fall."""
    array = as_array(offsets)
    if array.dtype.kind not in "iu" or array.ndim != 1 or array.size == 0:
        raise ConfigError(
            f"table {table!r}: offsets have dtype {array.dtype} and shape {array.shape}; give bags + 1 integers"
        )
    return np.ascontiguousarray(array, np.int64)


def as_mode(mode: object) -> tuple[_native.Pooling, int]:
    """Return the engine's pooling and its n (0 except for first-n)."""
    match mode:
        case "sum":
            return _native.Pooling.sum, 0
        case "mean":
            return _native.Pooling.mean, 0
        case ("first", n):
            return _native.Pooling.first, check_whole("n of mode ('first', n)", n, 1, (1 << 31) - 1)
    raise ConfigError(f"mode is {mode!r}; give 'sum', 'mean' or ('first', n) with n of at least 1")


def as_counts(table: str, counts: ArrayLike, id_count: int) -> NDArray[np.uint32]:
    """Return the number of sightings of each id."""
    array = as_array(counts)
    if array.dtype.kind not in "iu" or array.shape != (id_count,):
        raise ConfigError(
            f"table {table!r}: counts have dtype {array.dtype} and shape {array.shape}; give {id_count} whole numbers"
        )
    if array.dtype != np.uint32 and array.size and (array.min() < 0 or array.max() >= 1 << 32):
        raise ConfigError(f"table {table!r}: counts go from {array.min()} to {array.max()}; give 0 to 2^32 - 1")
    return np.ascontiguousarray(array, np.uint32)


def as_rates(spec: TableSpec, learning_rates: ArrayLike | None, step: int) -> NDArray[np.float32]:
    """Return one rate per slice; those of the spec at ``step`` where none are given."""
    if learning_rates is None:
        return spec.learning_rates_at(check_step(step))
    rates = np.ascontiguousarray(learning_rates, np.float32)
    slices = len(spec.slices)
    if rates.shape != (slices,):
        raise ConfigError(
            f"table {spec.name!r} has {slices} slices, learning_rates has shape {rates.shape}; give one each"
        )
    if not np.all((rates >= 0) & np.isfinite(rates)):
        raise ConfigError(f"table {spec.name!r}: learning_rates are {rates.tolist()}; give finite ones from 0")
    return rates


def check_whole(what: str, value: object, least: int, most: int) -> int:
    """Return a whole number in a range; booleans are not numbers here."""
    if type(value) is int and least <= value <= most:
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise ConfigError(f"{what} is {value!r}; give a whole number from {least} to {most}")
    return int(value)


def check_time(time_s: object) -> int:
    """Return unix seconds that fit a row."""
    return check_whole("time_s", time_s, 0, MAX_TIME_S)


def check_step(step: object) -> int:
    """Return a step number of at least 0."""
    return check_whole("step", step, 0, 2**63 - 1)
