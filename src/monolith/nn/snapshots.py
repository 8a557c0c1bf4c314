"""Rows of one module on disk: a snapshot of its tables, and ``module.json``, written last, that makes it valid."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from monolith.core.durable_files import replace_file
from monolith.core.errors import ArtifactError, ConfigError, SchemaMismatch
from monolith.embedding.snapshot import read_manifest
from monolith.nn.table_set import TableSet

__all__ = ["load_snapshot", "write_snapshot"]

_VERSION = 1


def write_snapshot(tables: TableSet, folder: Path) -> str:
    """Write the rows and the step to ``folder``; return the identity of this snapshot.

    Raises:
        ConfigError: The folder has a snapshot already.
    """
    is_new = not (folder / "module.json").exists()
    if not tables.peers.all_agree(is_new):
        raise ConfigError(f"folder is {str(folder)!r}, which holds a snapshot; give a new folder for each snapshot")
    folder.mkdir(parents=True, exist_ok=True)
    step = tables.step
    tables.write(folder / "tables")
    identity = secrets.token_hex(16)
    if tables.peers.is_chief:
        rows = {entry.name: entry.rows for entry in read_manifest(folder / "tables")}
        body = {"version": _VERSION, "id": identity, "step": step, "rows": rows}
        replace_file(folder / "module.json", json.dumps(body, indent=1).encode())
    return tables.peers.broadcast(identity)  # after the file is there


def load_snapshot(tables: TableSet, folder: Path) -> str:
    """Replace all rows by those of ``write_snapshot``; return the identity of the snapshot.

    Raises:
        ArtifactError: The folder has no whole snapshot. The rows are unchanged.
        SchemaMismatch: A table has another name in the snapshot. The rows are unchanged.
    """
    try:
        step, identity, saved = _read_description(folder)
        _check_names(set(tables.specs), saved, folder)
    except (ArtifactError, SchemaMismatch):
        tables.peers.all_agree(False)
        raise
    if not tables.peers.all_agree(True):
        raise ArtifactError(f"'{folder}' was not loaded: another rank could not read it; see the log of that rank")
    tables.read(folder / "tables")
    tables.step = step
    return identity


def _check_names(names: set[str], saved: set[str], folder: Path) -> None:
    """Refuse a renamed table, which would start empty. A table may be new, or removed."""
    if (new := names - saved) and (unknown := saved - names):
        raise SchemaMismatch(
            f"snapshot '{folder}' has tables {sorted(unknown)}, expected {sorted(new)}; give the module the names of "
            "the snapshot: name=, or table= of a feature"
        )


def _read_description(folder: Path) -> tuple[int, str, set[str]]:
    """Return the step, the identity and the names of the tables of a snapshot."""
    try:
        body = json.loads((folder / "module.json").read_bytes())
        version, identity, step, saved = body["version"], body["id"], body["step"], set(body["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"'{folder}' is not a snapshot of a module ({error}); give a folder that mt.nn.save wrote"
        ) from error
    if version != _VERSION or not isinstance(identity, str) or not isinstance(step, int):
        raise ArtifactError(f"'{folder}/module.json' has version {version!r}, expected {_VERSION}; use a newer release")
    return step, identity, saved
