"""Whether two sides mean the same tables, and if not, which field they differ in. Compares specs; holds no table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.embedding.specs import TableSpec

__all__ = ["check_agreement", "decode_specs", "encode_specs"]

# Rates travel with every push, and old names matter to whoever restores: neither changes what a table is.
_FREE = frozenset({"learning_rate", "warmup_steps", "extra_restore_names"})


def encode_specs(specs: Sequence[TableSpec]) -> list[str]:
    """Return the JSON of each spec, without learning rates of slices: the client computes those."""
    return [_without_rates(spec).to_json() for spec in sorted(specs, key=lambda spec: spec.name)]


def _without_rates(spec: TableSpec) -> TableSpec:
    return replace(spec, slices=[replace(piece, learning_rate=None) for piece in spec.slices])


def decode_specs(tables: Sequence[str]) -> list[TableSpec]:
    """Return what ``encode_specs`` wrote.

    Raises:
        ConfigError: There is none, or they are not in the order of their names.
    """
    specs = [TableSpec.from_json(text) for text in tables]
    names = [spec.name for spec in specs]
    if not names or names != sorted(set(names)):
        raise ConfigError(f"the tables are {names}; give at least one, each once, in the order of their names")
    return specs


def check_agreement(ours: Sequence[TableSpec], theirs: Sequence[TableSpec]) -> None:
    """Check that a client's tables are the server's.

    Raises:
        SchemaMismatch: They are not; the text names the table, the field and both values.
    """
    our_names, their_names = {spec.name for spec in ours}, {spec.name for spec in theirs}
    if our_names != their_names:
        extra, missing = sorted(their_names - our_names), sorted(our_names - their_names)
        raise SchemaMismatch(
            f"the client's tables are not the server's: {extra or 'none'} only at the client, {missing or 'none'} "
            "only at the server; train the same model, or start the servers anew"
        )
    by_name = {spec.name: spec for spec in ours}
    for spec in theirs:
        found = _difference(_plain(by_name[spec.name]), _plain(spec), "")
        if found:
            field, server_value, client_value = found
            raise SchemaMismatch(
                f"table {spec.name!r}: {field} is {client_value!r} at the client, {server_value!r} at the server; "
                "train the same model, or start the servers anew"
            )


def _plain(spec: TableSpec) -> dict[str, Any]:
    # The width first: it explains most.
    encoded: dict[str, Any] = json.loads(_without_rates(spec).to_json())
    return {"dim": spec.dim, "slices": encoded.pop("slices"), "admission": encoded.pop("admission"), **encoded}


def _difference(ours: Any, theirs: Any, where: str) -> tuple[str, Any, Any] | None:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in dict.fromkeys([*ours, *theirs]):
            if key in _FREE:
                continue
            found = _difference(ours.get(key), theirs.get(key), f"{where}.{key}" if where else key)
            if found:
                return found
        return None
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((found for i, pair in pairs if (found := _difference(*pair, f"{where}[{i}]"))), None)
    return None if ours == theirs else (where, _short(ours), _short(theirs))


def _short(value: Any) -> Any:
    return f"{len(value)} of them" if isinstance(value, list) else value
