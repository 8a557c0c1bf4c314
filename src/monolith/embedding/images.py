"""Images: serving tables as mapped files, in a folder with one image per table and a manifest.

The engine writes and maps the images. Loading checks sizes, footers and indexes, so damaged files cannot lead a lookup
astray. Only checksums detect altered rows; the owner of the folder keeps them. A folder of images never changes:
updates happen in memory.
"""

from __future__ import annotations

import functools
import json
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from monolith import _native
from monolith.core.durable_files import seal, sync_folder, unseal, write_synced
from monolith.core.errors import ConfigError, SnapshotCorrupt
from monolith.core.throttle import yield_gil
from monolith.embedding.specs import TableSpec
from monolith.embedding.table import Table

__all__ = ["SavedImage", "holds_images", "load_images", "read_images", "save_images"]

_MANIFEST = "manifest.json"
_FORMAT = "monolith.table_images"
_VERSION = 1

# Successive versions of a model have the same tables.
_spec = functools.lru_cache(maxsize=4096)(TableSpec.from_json)

_TAIL = struct.Struct("<II8s")
_FOOTER = struct.Struct("<IIqI")
_COUNT = struct.Struct("<I")
_PART = struct.Struct("<QQII")
_LINE_BYTES = 64
"""Size of a bucket of the index; sections begin at a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedImage:
    """One table of a folder of images, as the manifest describes it."""

    path: Path
    """File of the table."""
    spec: TableSpec
    skip_zero_rows: bool
    rows: int
    bytes: int
    """Size of the file."""

    def load(self, *, in_memory: bool = False) -> Table:
        """Make the table; see ``load_images``."""
        table = Table._serving(self.spec, skip_zero_rows=self.skip_zero_rows)
        try:
            _native.load_image(table._native, str(self.path), self.bytes, in_memory)
        except OSError as error:
            raise SnapshotCorrupt(f"'{self.path}' cannot be read: {error}") from error
        return table

    def check(self) -> None:
        """Check every byte that a table is made of.

        Raises:
            SnapshotCorrupt: With the file, the offset and the reason.
        """
        self.load()  # sizes, footer, indexes
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for begin, end, checksum in _row_sections(content):
                with memoryview(content)[begin:end] as rows:
                    found = _native.crc32c(rows)
                if found != checksum:
                    raise SnapshotCorrupt(
                        f"'{self.path}' at byte {begin}: the rows to byte {end} were altered: their checksum is "
                        f"{found:08x}, expected {checksum:08x} of the footer"
                    )


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
        SnapshotCorrupt: There are no images, or they are damaged.
    """
    tables = []
    for image in read_images(path):
        tables.append(image.load(in_memory=in_memory))
        yield_gil()
    return tables


def holds_images(path: str | PathLike[str]) -> bool:
    """Return whether a folder is one of images, by its manifest."""
    try:
        return bool(unseal((Path(path) / _MANIFEST).read_bytes()).get("format") == _FORMAT)
    except (OSError, ValueError):
        return False


def read_images(path: str | PathLike[str]) -> list[SavedImage]:
    """Return the manifest of a folder of images.

    Raises:
        SnapshotCorrupt: There are no images, or they are of another release.
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
            f"'{folder / _MANIFEST}' is {body.get('format')!r} version {body.get('version')}, expected {_FORMAT!r} "
            f"version {_VERSION}; export the model again, or use the release that wrote it"
        )
    yield_gil()
    return [
        SavedImage(
            path=folder / entry["file"],
            spec=_spec(json.dumps(entry["spec"])),
            skip_zero_rows=entry["skip_zero_rows"],
            rows=entry["rows"],
            bytes=entry["bytes"],
        )
        for entry in body["tables"]
    ]


def _row_sections(content: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and checksum of the rows of an image whose footer is valid."""
    size, _, _ = _TAIL.unpack_from(content, len(content) - _TAIL.size)
    at = len(content) - _TAIL.size - size
    _, row_bytes, _, layout_bytes = _FOOTER.unpack_from(content, at)
    at += _FOOTER.size + layout_bytes
    (parts,) = _COUNT.unpack_from(content, at)
    end = _LINE_BYTES
    for rows, buckets, _, checksum in _PART.iter_unpack(content[at + _COUNT.size :][: parts * _PART.size]):
        begin = -(-end // _LINE_BYTES) * _LINE_BYTES + buckets * _LINE_BYTES
        end = begin + rows * row_bytes
        yield begin, end, checksum
