"""``ServedTables``: rows and dense calls of a servable by signature, at the newest cut or at an earlier one.

An ``entry`` calls its ``ps`` and ``dense`` parts with the key of a cut. A part that does not hold the cut returns only
the list of its cuts. Thread safe.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from monolith.artifacts.export_manifest import ASSIGNMENTS, Signature
from monolith.core.errors import InvalidRequest
from monolith.embedding.store import Rows
from monolith.serving.servable.cut_history import CutKey, keys_array, read_key
from monolith.serving.servable.cut_state import CutState
from monolith.serving.servable.parts import Arrays
from monolith.serving.servable.tables import TableCalls

__all__ = ["ServedTables"]

_CUT, _CUTS = "cut", "cuts"


class ServedTables:
    """Calls of all signatures that take no records.

    Args:
        state: Rows and dense parts.
    """

    def __init__(self, state: CutState) -> None:
        self._state = state

    def lookup(self, table: str, ids: ArrayLike) -> Rows:
        """Return one row per id; zeros or initial values for absent ids."""
        with self._state.shared():
            return self._calls().lookup(table, ids)

    def assign(self, table: str, ids: ArrayLike, rows: ArrayLike) -> None:
        """Set rows of a table."""
        with self._state.exclusive():
            self._calls().assign(table, ids, rows)

    def call(self, name: str, signature: Signature, inputs: Mapping[str, ArrayLike]) -> Arrays:
        """Call a signature with tensors.

        Raises:
            InvalidRequest: An input is missing or unknown, or has another type or shape.
        """
        key: CutKey | None = None
        if _CUT in inputs and signature.kind in ("raw_lookup", "dense"):
            key = read_key(inputs[_CUT])
            inputs = {each: value for each, value in inputs.items() if each != _CUT}
        if signature.kind == "dense":
            return self._call_dense(signature, inputs, key)
        if key is not None:
            with self._state.shared():
                return self._call_rows_at(name, signature, inputs, key)
        is_change = signature.kind in ASSIGNMENTS
        with self._state.exclusive() if is_change else self._state.shared():
            return self._calls().call(name, signature, inputs)

    def _call_rows_at(self, name: str, signature: Signature, inputs: Mapping[str, ArrayLike], key: CutKey) -> Arrays:
        """Return rows as of a cut, with the list of cuts; only the list if the cut is not held.

        A servable that follows no publisher returns its rows without a list.
        """
        calls, history = self._calls(), self._state.history
        if not history.keys:
            return calls.call(name, signature, inputs)
        cuts = {_CUTS: keys_array(history.keys)}
        if key not in history.keys:
            return cuts
        tables = self._state.tables
        assert tables is not None  # ``_calls`` has checked it
        look = functools.partial(history.lookup, key, tables)
        return {**TableCalls(tables, look).call(name, signature, inputs), **cuts}

    def _call_dense(self, signature: Signature, inputs: Mapping[str, ArrayLike], key: CutKey | None) -> Arrays:
        arrays: Arrays = {}
        for name, info in signature.inputs.items():
            if name not in inputs:
                raise InvalidRequest(f"input {name!r} is missing; the call takes {', '.join(signature.inputs)}")
            given = np.asarray(inputs[name])
            if given.dtype.kind not in ("biuf" if np.dtype(info.dtype).kind == "f" else "biu"):
                raise InvalidRequest(f"type of input {name!r} is {given.dtype}, expected {info.dtype}")
            arrays[name] = np.ascontiguousarray(given, info.dtype)
            if len(arrays[name].shape) != len(info.shape) or arrays[name].shape[1:] != info.shape[1:]:
                raise InvalidRequest(f"input {name!r} has shape {arrays[name].shape}; it must be {info.shape}")
        if len({len(value) for value in arrays.values()}) > 1:
            raise InvalidRequest("the inputs have different numbers of rows")
        shown, outputs = self._state.states.shown, list(signature.outputs)
        if not shown:
            raise self._state.closed_error()
        if key is None or shown[0].key is None:
            return shown[0].dense.run(arrays, outputs)
        cuts = {_CUTS: keys_array([state.key for state in shown if state.key is not None])}
        state = next((state for state in shown if state.key == key), None)
        return cuts if state is None else {**state.dense.run(arrays, outputs), **cuts}

    def _calls(self) -> TableCalls:
        self._state.check_open()
        self._state.check_whole()
        if self._state.tables is None:
            manifest = self._state.manifest
            raise InvalidRequest(
                f"sub-model {manifest.sub_model!r} of {manifest.name!r} has no tables; call a ps sub-model"
            )
        return TableCalls(self._state.tables)
