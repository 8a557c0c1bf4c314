"""The case of an empty server: from starting the process to the answer to its first pull."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from measure.results import Result
from monolith.ps import RemoteStore
from ps.results import progress, seconds_result
from ps.server import Server
from ps.workload import TABLE, Sizes

__all__ = ["start_cases"]


def start_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Start servers one after the other; the first is not counted, as it may have to read Python's files from disk."""
    progress("start_s")
    listening, serving = [], []
    for _ in range(sizes.starts + 1):
        begin = time.perf_counter()
        with Server() as server:
            listening.append(time.perf_counter() - begin)
            with RemoteStore([server.address], [TABLE]) as store:
                store.pull({TABLE.name: np.arange(16, dtype=np.int64)})
                serving.append(time.perf_counter() - begin)
    yield seconds_result("start_s", serving[1:], first_s=serving[0], listening_s=float(np.median(listening[1:])))
