"""Encode assignments of rows as TensorFlow Serving Predict requests, and check the responses.

The signature name selects one of three forms. ``hashtable_assign`` has an id and a value input for every table.
``<name>/raw_assign`` has the rows of all tables, concatenated; a number at the end of the name is that of the shard.
``raw_assign`` stands for ``<table>/raw_assign``, the second form with one table per request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith._proto.messages import message_class, parse_bytes
from monolith.core.errors import ConfigError, RecordCorrupt, ShardUnavailable
from monolith.data.records.messages import STANDARD
from monolith.embedding.store import Ids, Rows

__all__ = ["MAX_BYTES", "Assignments", "check_signature"]

MAX_BYTES = 4 << 20
"""Default message limit of servers."""
_HEAD_BYTES = 4096
"""Upper bound for the names, shapes and tags of a request."""

_REQUEST: type[Any] = message_class(STANDARD.pool, "tensorflow.serving.PredictRequest")
_RESPONSE: type[Any] = message_class(STANDARD.pool, "tensorflow.serving.PredictResponse")
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 9}
_HASHTABLE, _RAW = "hashtable_assign", "raw_assign"
_NUMBERED = re.compile(r"^(.+_)\d+(/raw_assign)$")


@dataclass(frozen=True, slots=True)
class Assignments:
    """Form of the assignments to a model's tables.

    Args:
        signature: ``hashtable_assign``, ``raw_assign`` or ``<name>/raw_assign``.
        dims: Table name to number of columns, sorted by name.

    Raises:
        ConfigError: The signature is invalid.
    """

    signature: str
    dims: Mapping[str, int]

    def __post_init__(self) -> None:
        check_signature(self.signature)

    def of_shard(self, index: int) -> Assignments:
        """Return the form for one server of a fleet: the number in ``<name>_<number>/raw_assign`` is its shard.

        >>> Assignments("MonolithMultiHashTable_0/raw_assign", {}).of_shard(2).signature
        'MonolithMultiHashTable_2/raw_assign'
        """
        return Assignments(_NUMBERED.sub(rf"\g<1>{index}\g<2>", self.signature), self.dims)

    @property
    def one_table(self) -> bool:
        """Whether a request holds one table only."""
        return self.signature == _RAW

    @property
    def row_bytes(self) -> dict[str, int]:
        """Bytes of one id and its row, by table."""
        return {table: 8 + 4 * dim for table, dim in self.dims.items()}

    @property
    def room(self) -> int:
        """Bytes for ids and rows in one request."""
        return MAX_BYTES - _HEAD_BYTES - 256 * len(self.dims)

    def request(self, model: str, rows: Mapping[str, tuple[Ids, Rows]]) -> bytes:
        """Return the encoded request that assigns rows. Tables without an entry get zero rows."""
        request = _REQUEST()
        request.model_spec.name = model
        request.model_spec.signature_name = f"{next(iter(rows))}/{_RAW}" if self.one_table else self.signature
        for name, array in self._inputs(rows).items():
            tensor = request.inputs[name]
            tensor.dtype = _TYPES[array.dtype]
            for size in array.shape:
                tensor.tensor_shape.dim.add().size = size
            tensor.tensor_content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        return bytes(request.SerializeToString())

    def _inputs(self, rows: Mapping[str, tuple[Ids, Rows]]) -> dict[str, NDArray[Any]]:
        named = list(rows) if self.one_table else list(self.dims)
        every = {
            table: rows.get(table, (np.empty(0, np.int64), np.empty((0, self.dims[table]), np.float32)))
            for table in named
        }
        if self.signature == _HASHTABLE:
            ids = {f"{table}_id": keys for table, (keys, _) in every.items()}
            return ids | {f"{table}_value": values for table, (_, values) in every.items()}
        counts = [len(keys) for keys, _ in every.values()]
        return {
            "id": np.concatenate([keys for keys, _ in every.values()]),
            "id_split": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            "flat_value": np.concatenate([values.reshape(-1) for _, values in every.values()]),
        }

    def read_answer(self, payload: bytes, rows: Mapping[str, tuple[Ids, Rows]]) -> int:
        """Check a response; return the version that took the rows, 0 if the response has none.

        Raises:
            ShardUnavailable: The response does not confirm the rows. Another service may listen at the address.
        """
        if self.signature == _HASHTABLE:
            expected = {f"{table}_result": len(keys) for table, (keys, _) in rows.items()}
        else:
            expected = {"result": 0}
        try:
            answer: Any = parse_bytes(_RESPONSE, payload, "the response")
        except RecordCorrupt as error:
            raise ShardUnavailable(f"the response is corrupt ({error}); check the service at this address") from error
        for name, number in expected.items():
            if name not in answer.outputs or _number(answer.outputs[name]) != number:
                raise ShardUnavailable(f"the response lacks {name} = {number}; check the service at this address")
        return int(answer.model_spec.version.value)


def check_signature(name: str) -> None:
    """Check the name of an assignment signature.

    Raises:
        ConfigError: The name is invalid.
    """
    if name not in (_HASHTABLE, _RAW) and (not name.endswith(f"/{_RAW}") or name.startswith("/")):
        raise ConfigError(f"sync_signature_name is {name!r}, expected {_HASHTABLE}, {_RAW} or NAME/{_RAW}")


def _number(tensor: Any) -> int | None:
    """Return the first number of an integer tensor, from any of its value fields; None for other types."""
    if tensor.tensor_content:
        size = {3: 4, 9: 8}.get(tensor.dtype)
        content = tensor.tensor_content[:size]
        return None if size is None else int.from_bytes(content, "little", signed=True)
    for field in ("int64_val", "int_val"):
        if values := getattr(tensor, field):
            return int(values[0])
    # protobuf omits a 0, so a missing value in a shape of one element is 0.
    return 0 if tensor.dtype in (3, 9) else None
