"""Inspects snapshots and images without loading them: checks every byte, and shows the row of one id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike

from monolith.embedding.images import SavedImage
from monolith.embedding.optimizers import OPTIMIZERS
from monolith.embedding.shard_map import shard_of_id
from monolith.embedding.snapshot import SavedTable, check, read_manifest, spec_of
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.embedding.table import Table

__all__ = ["load_row", "verify", "verify_images"]

_FEW_ROWS = 1_000_003
"""Number of shards, one of which is loaded to show a single id."""


def load_row(saved: SavedTable, fid: int) -> Table:
    """Load one id, and few others, of a saved table, to show that id.

    Every file is read and checked, but the memory is that of a handful of rows.
    """
    return Table._load_saved(saved, shard=(shard_of_id(fid, _FEW_ROWS), _FEW_ROWS))


def verify(path: str | PathLike[str], progress: Callable[[str, int, int], None] | None = None) -> list[SavedTable]:
    """Check every byte of a snapshot and return its content.

    Args:
        path: The snapshot's folder.
        progress: Called with the name of the table that comes next, the bytes checked and the bytes in all.

    Raises:
        SnapshotCorrupt: With the file, the offset and the reason.
    """
    saved = read_manifest(path)
    total = sum(entry.bytes for entry in saved)
    done = 0
    for entry in saved:
        if progress is not None:
            progress(entry.name, done, total)
        check(Table._like_saved(entry, _layout_spec(entry)), entry)
        done += entry.bytes
    return saved


def verify_images(saved: Sequence[SavedImage], progress: Callable[[str, int, int], None] | None = None) -> None:
    """Check every byte of images; see ``verify``."""
    total, done = sum(image.bytes for image in saved), 0
    for image in saved:
        if progress is not None:
            progress(image.spec.name, done, total)
        image.check()
        done += image.bytes


def _layout_spec(saved: SavedTable) -> TableSpec:
    """Return a spec whose rows have the layout of the saved ones. The slices alone define that of training rows."""
    if saved.spec is not None or saved.is_serving:
        return spec_of(saved)
    slices = [SliceSpec(piece["dim"], optimizer=OPTIMIZERS[piece["optimizer"]]()) for piece in saved.slices]
    return TableSpec(saved.name, slices)
