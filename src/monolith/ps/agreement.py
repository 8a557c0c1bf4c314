"""Comparison of table specs between client and server; a difference is reported by field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.embedding.specs import TableSpec

__all__ = ["check_agreement", "decode_specs", "encode_specs"]

# Rates travel with every push, and old names matter to restores only: neither changes the table.
_FREE = frozenset({"learning_rate", "warmup_steps", "extra_restore_names"})


def encode_specs(specs: Sequence[TableSpec]) -> list[str]:
    """Return the JSON of each spec without learning rates of slices, which the client computes."""
    return [_without_rates(spec).to_json() for spec in sorted(specs, key=lambda spec: spec.name)]


def _without_rates(spec: TableSpec) -> TableSpec:
    return replace(spec, slices=[replace(piece, learning_rate=None) for piece in spec.slices])


def decode_specs(tables: Sequence[str]) -> list[TableSpec]:
    """Return the specs from the output of ``encode_specs``.

    Raises:
        ConfigError: The list is empty, or not sorted by name.
    """
    specs = [TableSpec.from_json(text) for text in tables]
    names = [spec.name for spec in specs]
    if not names or names != sorted(set(names)):
        raise ConfigError(f"the tables are {names}, expected at least one, each once, sorted by name")
    return specs


def check_agreement(ours: Sequence[TableSpec], theirs: Sequence[TableSpec]) -> None:
    """Check that a client's tables match the server's.

    Raises:
        SchemaMismatch: They differ; the error names the table, the field and both values.
    """
    our_names, their_names = {spec.name for spec in ours}, {spec.name for spec in theirs}
    if our_names != their_names:
        extra, missing = sorted(their_names - our_names), sorted(our_names - their_names)
        raise SchemaMismatch(
            f"the client's tables differ from the server's: {extra or 'none'} only at the client, {missing or 'none'} "
            "only at the server; train the same model, or restart the servers"
        )
    by_name = {spec.name: spec for spec in ours}
    for spec in theirs:
        difference = _find_difference(_to_dict(by_name[spec.name]), _to_dict(spec), "")
        if difference:
            field, server_value, client_value = difference
            raise SchemaMismatch(
                f"table {spec.name!r}: {field} is {client_value!r} at the client, {server_value!r} at the server; "
                "train the same model, or restart the servers"
            )


def _to_dict(spec: TableSpec) -> dict[str, Any]:
    # The width first: it explains most differences.
    encoded: dict[str, Any] = json.loads(_without_rates(spec).to_json())
    return {"dim": spec.dim, "slices": encoded.pop("slices"), "admission": encoded.pop("admission"), **encoded}


def _find_difference(ours: Any, theirs: Any, where: str) -> tuple[str, Any, Any] | None:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in dict.fromkeys([*ours, *theirs]):
            if key in _FREE:
                continue
            difference = _find_difference(ours.get(key), theirs.get(key), f"{where}.{key}" if where else key)
            if difference:
                return difference
        return None
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((one for i, pair in pairs if (one := _find_difference(*pair, f"{where}[{i}]"))), None)
    return None if ours == theirs else (where, _short(ours), _short(theirs))


def _short(value: Any) -> Any:
    return f"{len(value)} items" if isinstance(value, list) else value
