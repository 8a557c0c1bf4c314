"""The signatures of tables: lookup and assignment by tensors, with the names and shapes of the original."""

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
    """What can be asked of tables by tensors. Whoever calls sees to it that changes come alone.

    Args:
        tables: The tables.
        look: Looks rows up instead of the tables: table and ids in, rows out.
    """

    def __init__(self, tables: MultiTable, look: Callable[[str, Any], Rows] | None = None) -> None:
        self._tables = tables
        self._look = look or (lambda table, ids: tables[table].lookup(ids))

    def lookup(self, table: str, ids: ArrayLike) -> Rows:
        """Return the rows of a table's ids."""
        try:
            return self._look(table, ids)
        except (ConfigError, EngineError) as error:
            raise InvalidRequest(str(error)) from error

    def assign(self, table: str, ids: ArrayLike, rows: ArrayLike) -> None:
        """Set rows of a table."""
        try:
            self._tables[table].assign(ids, rows)
        except (ConfigError, EngineError) as error:
            raise InvalidRequest(str(error)) from error

    def call(self, name: str, signature: Signature, inputs: Mapping[str, ArrayLike]) -> Arrays:
        """Call one of the signatures; see the reference of the export format for inputs and outputs."""
        # Tables that a request does not touch may be left out of it; everything else is needed.
        optional = signature.kind in ("lookup", "hashtable_assign")
        known = ", ".join(signature.inputs)
        for key in inputs:
            if key not in signature.inputs:
                raise InvalidRequest(f"signature {name!r} has no input {key!r}; it has {known}")
        for key in signature.inputs:
            if key not in inputs and not optional:
                raise InvalidRequest(f"signature {name!r} needs the input {key!r}; it takes {known}")
        given = {key: _checked(key, inputs[key], info) for key, info in signature.inputs.items() if key in inputs}
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
            raise InvalidRequest(f"flat_value has {len(values)} numbers, the ids of {', '.join(names)} need {needed}")
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
                raise InvalidRequest(f"of {name}_id and {name}_value only one is there; give both, or neither")
            if ids is None or values is None:
                continue
            if len(ids) != len(values):
                raise InvalidRequest(f"{name}_id has {len(ids)} ids and {name}_value {len(values)} rows")
            pairs[name] = ids, values
        for name, (ids, values) in pairs.items():
            self.assign(name, ids, values)
        return {f"{name}_result": np.array(len(ids), np.int64) for name, (ids, _) in pairs.items()}


def _checked(name: str, value: ArrayLike, info: TensorInfo) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in ("iu" if info.dtype == "int64" else "iuf"):
        raise InvalidRequest(f"input {name!r} is of type {array.dtype}; it must be {info.dtype}")
    wrong_size = any(size not in (-1, have) for size, have in zip(info.shape, array.shape, strict=False))
    if array.ndim != len(info.shape) or wrong_size:
        raise InvalidRequest(f"input {name!r} has shape {list(array.shape)}; it must be {list(info.shape)}")
    if info.dtype == "int64" and array.dtype == np.uint64:
        return array.view(np.int64)
    return np.ascontiguousarray(array, info.dtype)


def _split(ids: NDArray[Any], splits: NDArray[Any], tables: int) -> list[NDArray[Any]]:
    bounds = splits.tolist()
    if bounds[0] != 0 or bounds[-1] != len(ids) or any(a > b for a, b in itertools.pairwise(bounds)):
        raise InvalidRequest(
            f"id_split is {bounds} for {len(ids)} ids; it must rise from 0 to {len(ids)} in {tables + 1} numbers"
        )
    return [ids[begin:end] for begin, end in itertools.pairwise(bounds)]
