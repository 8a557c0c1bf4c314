"""Signatures of an export, with the original's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monolith.artifacts.export_manifest import RECORD_INPUTS, SERVING_DEFAULT, ServedTable, Signature, TensorInfo
from monolith.core.errors import ConfigError

__all__ = ["ALL_TABLES", "DENSE_CALL", "dense_signatures", "score_signatures", "table_signatures"]

ALL_TABLES = "MonolithMultiHashTable_"
"""Name of all tables of a shard together in ``<name><shard>/raw_assign``."""
DENSE_CALL = "gpu_remote_call"

_IDS = TensorInfo(dtype="int64", shape=(-1,))
_FLOATS = TensorInfo(dtype="float32", shape=(-1,))
_COUNT = TensorInfo(dtype="int64", shape=())
_LOOKUP, _RAW_LOOKUP, _HASHTABLE_ASSIGN = "lookup", "raw_lookup", "hashtable_assign"


def score_signatures(heads: Sequence[str], outputs: Mapping[str, TensorInfo]) -> dict[str, Signature]:
    """Return the signature of all heads, and one signature per extra output.

    Raises:
        ConfigError: An extra output has a reserved name.
    """
    records = {name: TensorInfo(dtype="string", shape=(-1,)) for name in RECORD_INPUTS}

    def scores(names: Sequence[str]) -> Signature:
        return Signature(kind="score", inputs=records, outputs={name: outputs[name] for name in names})

    extra = [name for name in outputs if name not in heads]
    for name in extra:
        if name in (SERVING_DEFAULT, _LOOKUP, _RAW_LOOKUP, _HASHTABLE_ASSIGN) or name.endswith("/raw_assign"):
            raise ConfigError(f"name of an extra output is {name!r}, which is a reserved signature; rename the output")
    return {SERVING_DEFAULT: scores(heads), **{name: scores([name]) for name in extra}}


def table_signatures(tables: Sequence[ServedTable], shard: int = 0) -> dict[str, Signature]:
    """Return the lookup and assignment signatures of a shard; tables are sorted by name."""
    if not tables:
        return {}
    found = {
        _LOOKUP: Signature(
            kind="lookup",
            inputs={table.name: _IDS for table in tables},
            outputs={table.name: _rows(table) for table in tables},
        ),
        _RAW_LOOKUP: Signature(
            kind="raw_lookup", inputs={"id": _IDS, "id_split": _splits(len(tables))}, outputs={"flat_emb": _FLOATS}
        ),
        _HASHTABLE_ASSIGN: Signature(
            kind="hashtable_assign",
            inputs={
                **{f"{table.name}_id": _IDS for table in tables},
                **{f"{table.name}_value": _rows(table) for table in tables},
            },
            outputs={f"{table.name}_result": _COUNT for table in tables},
        ),
        f"{ALL_TABLES}{shard}/raw_assign": _raw_assign(len(tables)),
    }
    return found | {f"{table.name}/raw_assign": _raw_assign(1) for table in tables}


def dense_signatures(inputs: Mapping[str, TensorInfo], outputs: Mapping[str, TensorInfo]) -> dict[str, Signature]:
    """Return the signature of a ``dense`` sub-model."""
    return {DENSE_CALL: Signature(kind="dense", inputs=inputs, outputs=outputs)}


def _raw_assign(tables: int) -> Signature:
    return Signature(
        kind="raw_assign",
        inputs={"id": _IDS, "id_split": _splits(tables), "flat_value": _FLOATS},
        outputs={"result": _COUNT},
    )


def _rows(table: ServedTable) -> TensorInfo:
    return TensorInfo(dtype="float32", shape=(-1, table.dim))


def _splits(tables: int) -> TensorInfo:
    return TensorInfo(dtype="int64", shape=(tables + 1,))
