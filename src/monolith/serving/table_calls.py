"""The signatures that read and set rows of tables, by TensorFlow Serving's rules for tensors.

=======================  ========================================================  ==============================
signature                takes                                                     gives
=======================  ========================================================  ==============================
``lookup``               per table: ids ``int64[n]``                               per table: ``float[n, dim]``
``raw_lookup``           ``id int64[n]``, ``id_split int64[tables + 1]``           ``flat_emb float[sum of n*dim]``
``.../raw_assign``       ``id``, ``id_split``, ``flat_value float[sum of n*dim]``  ``result`` (0)
``hashtable_assign``     ``<table>_id int64[n]``, ``<table>_value float[n, dim]``  ``<table>_result`` (n)
=======================  ========================================================  ==============================

Where ids of all tables come as one array, the tables follow each other in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import InvalidRequest
from monolith.serving.loaded_model import LoadedModel, Outputs

__all__ = ["table_call"]

Inputs = Mapping[str, NDArray[Any]]


def table_call(signature: str) -> Callable[[LoadedModel, Inputs], Outputs] | None:
    """Return what answers a signature; None when it is none of these."""
    if signature.endswith("/raw_assign"):
        return _raw_assign
    return {"lookup": _lookup, "raw_lookup": _raw_lookup, "hashtable_assign": _hashtable_assign}.get(signature)


def _widths(model: LoadedModel) -> dict[str, int]:
    """Return the width of every table, in the order of their names."""
    outputs = model.signatures["lookup"].outputs
    return {name: int(outputs[name].shape[-1]) for name in sorted(outputs)}


def _lookup(model: LoadedModel, inputs: Inputs) -> Outputs:
    widths = _widths(model)
    for name in inputs:
        if name not in widths:
            raise InvalidRequest(f"there is no table {name!r}; there are {', '.join(widths)}")
    return {name: model.lookup(name, _ids(ids, name)) for name, ids in inputs.items()}


def _raw_lookup(model: LoadedModel, inputs: Inputs) -> Outputs:
    parts = [model.lookup(name, ids).ravel() for name, _, ids in _by_table(model, inputs)]
    return {"flat_emb": np.concatenate(parts) if parts else np.zeros(0, np.float32)}


def _raw_assign(model: LoadedModel, inputs: Inputs) -> Outputs:
    parts = list(_by_table(model, inputs))
    flat = _floats(_named(inputs, "flat_value"), "flat_value").ravel()
    needed = sum(width * len(ids) for _, width, ids in parts)
    if len(flat) != needed:
        raise InvalidRequest(f"flat_value has {len(flat)} values; id and id_split ask for {needed}")
    place = 0
    for name, width, ids in parts:
        count = width * len(ids)
        if len(ids):
            model.assign(name, ids, np.ascontiguousarray(flat[place : place + count]).reshape(-1, width))
        place += count
    return {"result": np.array(0, np.int32)}


def _hashtable_assign(model: LoadedModel, inputs: Inputs) -> Outputs:
    widths = _widths(model)
    names = [name for name in widths if f"{name}_id" in inputs]
    known = {f"{name}_{part}" for name in widths for part in ("id", "value")}
    if unknown := sorted(set(inputs) - known):
        raise InvalidRequest(f"input {unknown[0]!r} belongs to no table; there are {', '.join(widths)}")
    checked = []
    for name in names:
        ids = _ids(inputs[f"{name}_id"], f"{name}_id")
        rows = _floats(_named(inputs, f"{name}_value"), f"{name}_value")
        if rows.shape != (len(ids), widths[name]):
            raise InvalidRequest(
                f"{name}_value has shape {rows.shape}; {len(ids)} ids of {widths[name]} values each are needed"
            )
        checked.append((name, ids, np.ascontiguousarray(rows)))
    for name, ids, rows in checked:
        model.assign(name, ids, rows)
    return {f"{name}_result": np.array(len(ids), np.int64) for name, ids, _ in checked}


def _by_table(model: LoadedModel, inputs: Inputs) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    widths = _widths(model)
    ids = _ids(_named(inputs, "id"), "id")
    split = _ids(_named(inputs, "id_split"), "id_split")
    is_sound = len(split) == len(widths) + 1 and split[0] == 0 and split[-1] == len(ids) and (np.diff(split) >= 0).all()
    if not is_sound:
        raise InvalidRequest(
            f"id_split is {split[:8].tolist()}; it must rise from 0 to {len(ids)} in {len(widths) + 1} numbers, "
            f"for the tables {', '.join(widths)}"
        )
    for index, (name, width) in enumerate(widths.items()):
        yield name, width, np.ascontiguousarray(ids[split[index] : split[index + 1]])


def _named(inputs: Inputs, name: str) -> NDArray[Any]:
    if name not in inputs:
        raise InvalidRequest(f"input {name!r} is missing")
    return inputs[name]


def _ids(array: NDArray[Any], name: str) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidRequest(f"input {name!r} is of {array.dtype}; ids are int64")
    if array.ndim != 1:
        raise InvalidRequest(f"input {name!r} has shape {array.shape}; ids have one axis")
    return np.ascontiguousarray(array.astype(np.int64, copy=False))


def _floats(array: NDArray[Any], name: str) -> NDArray[np.float32]:
    if array.dtype.kind not in "fiu":
        raise InvalidRequest(f"input {name!r} is of {array.dtype}; rows are float32")
    return array.astype(np.float32, copy=False)
