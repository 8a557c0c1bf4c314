"""The whole pipeline against its slowest stage: what is lost between reading, decompressing, and making batches."""

from __future__ import annotations

import io
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from data.results import progress
from data.workload import FRAMING, Sizes, draw_rows, example_batch, schema
from measure.results import Result, compare
from measure.timing import seconds_of
from monolith import _native
from monolith.data import RecordWriter, Schema, files
from monolith.data.records.reader import RecordReader
from monolith.data.schema import BatchMaker, make_parser
from monolith.data.stages import BatchStage, ParseStage

__all__ = ["pipeline_cases"]

BATCH = 4096
FILE_BYTES = 50_000_000
PREFETCH = 2
READ_BYTES = 4 << 20


def pipeline_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Files of ExampleBatches under zstd."""
    progress("pipeline_share: writing files")
    with tempfile.TemporaryDirectory() as folder:
        paths = _write_files(Path(folder), sizes)
        progress("pipeline_share")
        yield _share(paths, schema(sizes), sizes)


def _write_files(folder: Path, sizes: Sizes) -> list[Path]:
    """Write distinct records again and again; they come back far behind the window of the codec."""
    records = [example_batch(draw_rows(sizes, sizes.batch, seed)) for seed in range(3 * sizes.records)]
    count = max(1, sizes.pipeline_bytes // FILE_BYTES)
    per_file = round(sizes.pipeline_bytes / count / len(records[0]))
    paths = [folder / f"part-{number}.pb.zst" for number in range(count)]
    for number, path in enumerate(paths):
        with RecordWriter(path, framing=FRAMING) as writer:
            for place in range(per_file):
                writer.write(records[(number * per_file + place) % len(records)])
    return paths


def _share(paths: Sequence[Path], wanted: Schema, sizes: Sizes) -> Result:
    compressed = [path.read_bytes() for path in paths]
    lots = _lots(paths)

    def pipeline() -> None:
        whole = files(paths, record="example_batch", framing=FRAMING, schema=wanted)
        for _ in whole.batch(BATCH).prefetch(PREFETCH):
            pass

    def two_threads() -> None:
        beside = threading.Thread(target=_decompress, args=(compressed,))
        beside.start()
        _parse(lots, wanted)
        beside.join()

    stages = {
        "read": lambda: _read(paths),
        "decompress": lambda: _decompress(compressed),
        "parse": lambda: _parse(lots, wanted),
    }
    contestants = {"pipeline": pipeline, "two_threads": two_threads, **stages}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    cpu_seconds = dict.fromkeys(contestants, 0.0)
    for number in range(sizes.pipeline_rounds + 1):
        order = list(contestants) if number % 2 == 0 else list(reversed(contestants))
        for name in order:
            if name in ("pipeline", "read"):
                _forget(paths)
            used = time.process_time()
            taken = seconds_of(contestants[name])
            if number:  # the first round brings code and memory into place
                seconds[name].append(taken)
                cpu_seconds[name] += time.process_time() - used
    rows = _count(lots, wanted)
    slowest = max(stages, key=lambda name: float(np.median(seconds[name])))
    alone = float(np.median(seconds[slowest]))
    extra: dict[str, Any] = {
        "threads": os.cpu_count(),
        "peer_name": f"the slowest stage alone, {slowest}",
        # What two stages side by side, with nothing between them, make of this machine: no pipeline can do better.
        "two_threads_share": alone / float(np.median(seconds["two_threads"])),
        "cpu_over_stages": cpu_seconds["pipeline"] / sum(cpu_seconds[name] for name in stages),
        "bytes": sum(lot.nbytes for lot in lots),
        "compressed_bytes": sum(map(len, compressed)),
        **{f"{name}_k_rows_per_s": rows / 1e3 / float(np.median(seconds[name])) for name in stages},
    }
    ours, theirs = np.array(seconds["pipeline"]), np.array(seconds[slowest])
    return compare("pipeline_share", ours, theirs, rows / 1e3, "k rows/s", **extra)


def _lots(paths: Sequence[Path]) -> list[_native.Records]:
    lots = []
    for path in paths:
        with RecordReader(path, framing=FRAMING) as reader:
            while (lot := reader.read()) is not None:
                lots.append(lot)
    return lots


def _forget(paths: Sequence[Path]) -> None:
    """Drop the files from the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(paths: Sequence[Path]) -> None:
    buffer = bytearray(READ_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _decompress(compressed: Sequence[bytes]) -> None:
    for data in compressed:
        for _ in zstandard.ZstdDecompressor().read_to_iter(io.BytesIO(data), read_size=1 << 18, write_size=1 << 20):
            pass


class _InMemory:
    """Lots of records that are there already, as a source."""

    record = "example_batch"
    is_ordered = True

    def __init__(self, lots: Sequence[_native.Records]) -> None:
        self._lots = iter(lots)

    def read(self) -> _native.Records | None:
        return next(self._lots, None)

    def position(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def _parse(lots: Sequence[_native.Records], wanted: Schema) -> None:
    columns = _native.Columns()
    make = BatchMaker(wanted, columns)
    source: Any = _InMemory(lots)
    stage = BatchStage(ParseStage(source, make_parser(wanted, "example_batch", columns)), BATCH, make, drop_last=False)
    while stage.read() is not None:
        pass


def _count(lots: Sequence[_native.Records], wanted: Schema) -> int:
    parser = make_parser(wanted, "example_batch", _native.Columns())
    return sum(len(parser.parse(lot)) for lot in lots)
