"""Table signatures: lookup and assignment by tensors, with the original's names and shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.artifacts.export_manifest import Signature, TensorInfo
from monolith.core.errors import ConfigError, EngineError, InvalidRequest
from monolith.embedding import MultiTable
from monolith.embedding.store import Rows

__all__ = ["TableCalls"]

Arrays = dict[str, NDArray[Any]]

_RAW_ASSIGN = "/raw_assign"


class TableCalls:
    """Calls of table signatures. Not thread safe: the caller holds the lock of the tables.

    Args:
        tables: The tables.
        look: Lookup that replaces the one of the tables: (table, ids) to rows.
    """

    def __init__(self, tables: MultiTable, look: Callable[[str, Any], Rows] | None = None) -> None:
        self._tables = tables
        self._look = look or (lambda table, ids: tables[table].lookup(ids))

    def lookup(self, table: str, ids: ArrayLike) -> Rows:
        """Return one row per id of a table."""
        try:
            return self._look(table, ids)
        except (ConfigError, EngineError) as error:
            raise InvalidRequest(str(error)) from error

    def assign(self, table: str, ids: ArrayLike, rows: ArrayLike) -> None:
        """Set rows of a table."""
        if not np.isfinite(np.asarray(rows, np.float64)).all():
            raise InvalidRequest(f"rows of table {table!r} have values that are not finite; assign finite numbers")
        try:
            self._tables[table].assign(ids, rows)
        except (ConfigError, EngineError) as error:
            raise InvalidRequest(str(error)) from error

    def call(self, name: str, signature: Signature, inputs: Mapping[str, ArrayLike]) -> Arrays:
        """Call a signature; the export format reference lists inputs and outputs."""
        # A request may omit tables that it does not use. All other inputs are required.
        optional = signature.kind in ("lookup", "hashtable_assign")
        known = ", ".join(signature.inputs)
        for key in inputs:
            if key not in signature.inputs:
                raise InvalidRequest(f"input of signature {name!r} is {key!r}, expected one of {known}")
        for key in signature.inputs:
            if key not in inputs and not optional:
                raise InvalidRequest(f"signature {name!r} lacks the input {key!r}, expected {known}")
        given = {key: _check(key, inputs[key], info) for key, info in signature.inputs.items() if key in inputs}
        if signature.kind == "lookup":
            return {table: self.lookup(table, ids) for table, ids in given.items()}
        if signature.kind == "raw_lookup":
            return {"flat_emb": self._raw_lookup(given)}
        if signature.kind == "raw_assign":
            return {"result": self._raw_assign(name.removesuffix(_RAW_ASSIGN), given)}
        return self._hashtable_assign(given)

    def _raw_lookup(self, given: Arrays) -> NDArray[np.float32]:
        names = list(self._tables)
        parts = _split(given["id"], given["id_split"], len(names))
        found = [self.lookup(name, ids).reshape(-1) for name, ids in zip(names, parts, strict=True)]
        return np.concatenate(found) if found else np.empty(0, np.float32)

    def _raw_assign(self, table: str, given: Arrays) -> NDArray[np.int64]:
        names = [table] if table in self._tables.names else list(self._tables)
        parts = _split(given["id"], given["id_split"], len(names))
        values = given["flat_value"]
        needed = sum(len(ids) * self._tables[name].dim for name, ids in zip(names, parts, strict=True))
        if needed != len(values):
            raise InvalidRequest(
                f"flat_value has {len(values)} numbers, expected {needed} for the ids of {', '.join(names)}"
            )
        at = 0
        for name, ids in zip(names, parts, strict=True):
            end = at + len(ids) * self._tables[name].dim
            if len(ids):
                self.assign(name, ids, values[at:end].reshape(len(ids), -1))
            at = end
        return np.zeros((), np.int64)

    def _hashtable_assign(self, given: Arrays) -> Arrays:
        pairs = {}
        for name in self._tables:
            ids, values = given.get(f"{name}_id"), given.get(f"{name}_value")
            if (ids is None) != (values is None):
                raise InvalidRequest(f"one of {name}_id and {name}_value is missing, expected both or neither")
            if ids is None or values is None:
                continue
            if len(ids) != len(values):
                raise InvalidRequest(f"{name}_value has {len(values)} rows, expected {len(ids)} as in {name}_id")
            pairs[name] = ids, values
        for name, (ids, values) in pairs.items():
            self.assign(name, ids, values)
        return {f"{name}_result": np.array(len(ids), np.int64) for name, (ids, _) in pairs.items()}


def _check(name: str, value: ArrayLike, info: TensorInfo) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in ("iu" if info.dtype == "int64" else "iuf"):
        raise InvalidRequest(f"type of input {name!r} is {array.dtype}, expected {info.dtype}")
    wrong_size = any(size not in (-1, have) for size, have in zip(info.shape, array.shape, strict=False))
    if array.ndim != len(info.shape) or wrong_size:
        raise InvalidRequest(f"shape of input {name!r} is {list(array.shape)}, expected {list(info.shape)}")
    if info.dtype == "int64" and array.dtype == np.uint64:
        return array.view(np.int64)
    return np.ascontiguousarray(array, info.dtype)


def _split(ids: NDArray[Any], splits: NDArray[Any], tables: int) -> list[NDArray[Any]]:
    bounds = splits.tolist()
    if bounds[0] != 0 or bounds[-1] != len(ids) or any(a > b for a, b in itertools.pairwise(bounds)):
        raise InvalidRequest(f"id_split is {bounds}, expected {tables + 1} ascending numbers from 0 to {len(ids)}")
    return [ids[begin:end] for begin, end in itertools.pairwise(bounds)]
