"""Cases of snapshots: how near saving and loading come to the disk's own sequential speed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.peers import OurTable
from engine.results import Result, compare, progress
from engine.workload import Sizes, Workload
from measure.timing import Seconds, seconds_of
from monolith.embedding import Table
from monolith.embedding.file_removal import wait_for_removals

__all__ = ["disk_cases"]

CHUNK = 8 << 20
FOLDER = Path(__file__).resolve().parents[2] / "build" / "bench"


def disk_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Save, load, and write and read as many bytes plainly, round by round."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    workload = Workload(sizes)
    ours = OurTable(workload)
    progress(f"filling {sizes.snapshot_rows:,} rows")
    for rows, values in workload.first_values(sizes.snapshot_rows):
        ours.fill(rows, values)
    folder = Path(tempfile.mkdtemp(prefix="snapshot-", dir=FOLDER))
    try:
        seconds, size = _rounds(ours.table, folder, sizes, "restore_disk_share" in cases)
    finally:
        shutil.rmtree(folder)
    for case, first, peer in (
        ("snapshot_disk_share", 0, "8 MiB writes and one fsync"),
        ("restore_disk_share", 2, "8 MiB reads, nothing cached"),
    ):
        if case in cases:
            extra: dict[str, Any] = {"peer_name": peer, "bytes": size, "snapshot_rows": sizes.snapshot_rows}
            yield compare(case, seconds[:, first], seconds[:, first + 1], size / 1e6, "MB/s", **extra)


def _rounds(table: Table, folder: Path, sizes: Sizes, restores: bool) -> tuple[Seconds, int]:
    """Return seconds of (save, plain write, load, plain read) by round, and the bytes of a snapshot."""
    saved, plain = folder / "table", folder / "plain"
    buffer = bytearray(np.random.default_rng(0).bytes(CHUNK))
    table.save(saved)  # the first one warms up, and says how many bytes there are
    files = sorted(path for path in saved.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in files)
    _write(plain, buffer, size)
    seconds = np.full((sizes.disk_rounds, 4), np.nan)
    for number in range(sizes.disk_rounds):
        progress(f"disk round {number + 1} of {sizes.disk_rounds}, {size / 1e6:.0f} MB")
        os.sync()
        seconds[number, 0] = seconds_of(lambda: table.save(saved))
        wait_for_removals()  # of the snapshot before; like the next line, outside the timed writes
        plain.unlink()
        os.sync()
        seconds[number, 1] = seconds_of(lambda: _write(plain, buffer, size))
        if restores:
            _forget([plain, *saved.iterdir()])
            seconds[number, 2] = seconds_of(lambda: _load(saved, len(table)))
            seconds[number, 3] = seconds_of(lambda: _read(plain, buffer))
    return seconds, size


def _load(folder: Path, rows: int) -> None:
    if len(Table.load(folder)) != rows:
        raise RuntimeError(f"{folder} does not hold {rows} rows")


def _write(path: Path, buffer: bytearray, size: int) -> None:
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, CHUNK):
            file.write(memoryview(buffer)[: min(CHUNK, size - start)])
        os.fsync(file.fileno())


def _read(path: Path, buffer: bytearray) -> None:
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(memoryview(buffer)):
            pass


def _forget(paths: Sequence[Path]) -> None:
    """Drop the files from the page cache; they must be on disk by then."""
    os.sync()
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
