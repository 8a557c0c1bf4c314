"""The case of loading: from the folder of an export to the answer to the first request. Tables are mapped."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from measure.results import Result
from monolith.serving.servable.servable import Servable
from serving.exporting import Exported, scratch_folder
from serving.results import progress
from serving.servers import first_request
from serving.workload import Sizes, Workload

__all__ = ["load_cases"]


def load_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Load the same export several times, its files forgotten by the page cache before each."""
    with scratch_folder() as folder:
        progress(f"exporting {sizes.load_ids:,} rows")
        exported = Exported(Workload(replace(sizes, ids=sizes.load_ids)), folder)
        version = exported.export(1)
        requests = exported.requests
        del exported
        gc.collect()
        progress("load_10m_s")
        record = first_request(requests["example_batch"])
        cold = [_seconds(version, record, is_cold=True) for _ in range(sizes.loads)]
        warm = [_seconds(version, record, is_cold=False) for _ in range(sizes.loads)]
        read = [_seconds(version, record, is_cold=False, in_memory=True) for _ in range(sizes.loads)]
        size = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
    middle = float(np.median(cold))
    yield Result(
        case="load_10m_s",
        ours=middle,
        peer=1.0,
        ratio=middle,
        unit="s",
        rounds=sizes.loads,
        extra={
            "peer_name": "one second, so that the ratio is the figure itself",
            "ratio_low": min(cold),
            "ratio_high": max(cold),
            "in_page_cache_s": float(np.median(warm)),
            "read_into_memory_s": float(np.median(read)),
            "rows": sizes.load_ids,
            "bytes": size,
        },
    )


def _seconds(version: Path, record: bytes, *, is_cold: bool, in_memory: bool = False) -> float:
    if is_cold:
        os.sync()
        for path in version.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = time.perf_counter()
    servable = Servable.load(version, in_memory=in_memory)
    servable.predict([record], "example_batch")
    seconds = time.perf_counter() - begin
    servable.close()
    return seconds
