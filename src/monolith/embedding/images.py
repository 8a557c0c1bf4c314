"""Serving tables as files that are mapped, not read: a folder with one image per table and a manifest.

The engine writes and maps the images. Loading checks sizes, footers and indexes, so whatever happened to the files, no
lookup goes astray; that the rows are those that were written, only their checksums can tell, which whoever keeps the
folder has. A folder of images is written once and never changed: tables are changed in memory.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from monolith import _native
from monolith.core.durable_files import seal, sync_folder, unseal, write_synced
from monolith.core.errors import ConfigError, SnapshotCorrupt
from monolith.core.pace import rest
from monolith.embedding.specs import TableSpec
from monolith.embedding.table import Table

__all__ = ["load_images", "save_images"]

_MANIFEST = "manifest.json"
_FORMAT = "monolith.table_images"
_VERSION = 1

# One version of a model after another has the same tables.
_spec = functools.lru_cache(maxsize=4096)(TableSpec.from_json)


def save_images(tables: Sequence[Table], path: str | PathLike[str]) -> None:
    """Write serving tables to the folder ``path``, which must not hold any yet.

    Raises:
        ConfigError: A table is one for training, or there is something in the folder.
    """
    folder = Path(path)
    for table in tables:
        if not table.is_serving:
            raise ConfigError(
                f"table {table.spec.name!r} is a training table; save its to_serving() form, or save() it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"'{folder}' is not empty; images are never changed: give a new folder")
    entries = []
    for number, table in enumerate(tables):
        file = folder / f"{number:04d}.table"
        size, rows = _native.write_image(table._native, str(file))
        entries.append(
            {
                "name": table.spec.name,
                "spec": json.loads(table.spec.to_json()),
                "skip_zero_rows": table._native.skips_zero_rows,
                "rows": rows,
                "file": file.name,
                "bytes": size,
            }
        )
    write_synced(folder / _MANIFEST, seal({"format": _FORMAT, "version": _VERSION, "tables": entries}))
    sync_folder(folder)


def load_images(path: str | PathLike[str], *, in_memory: bool = False) -> list[Table]:
    """Make the tables of a folder of images.

    Args:
        path: The folder. While the tables are used its files may be removed, but not written to or cut off.
        in_memory: Read the files instead of mapping them. Those of a network file system always are: there, a file
            that another machine removes is gone.

    Raises:
        SnapshotCorrupt: There are no images, or they are not what was written.
    """
    folder = Path(path)
    try:
        body = unseal((folder / _MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise SnapshotCorrupt(f"'{folder}' holds no tables: there is no {_MANIFEST} in it") from None
    except ValueError as error:
        raise SnapshotCorrupt(f"'{folder / _MANIFEST}' at byte 0: {error}") from error
    if body.get("format") != _FORMAT or body.get("version") != _VERSION:
        raise SnapshotCorrupt(
            f"'{folder / _MANIFEST}' is {body.get('format')!r} of version {body.get('version')}, this release maps "
            f"{_FORMAT!r} of version {_VERSION}; export the model again"
        )
    rest()
    tables = []
    for entry in body["tables"]:
        table = Table._serving(_spec(json.dumps(entry["spec"])), skip_zero_rows=entry["skip_zero_rows"])
        try:
            _native.load_image(table._native, str(folder / entry["file"]), entry["bytes"], in_memory)
        except OSError as error:
            raise SnapshotCorrupt(f"'{folder / entry['file']}' cannot be read: {error}") from error
        tables.append(table)
        rest()
    return tables
