"""Where the memory goes: a line of JSON every few steps, and the settings of an external heap profiler.

Python's own allocations come from tracemalloc, tables and buffers from the engine, the whole from the system.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monolith import _native
from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable
from monolith.nn import GpuStore
from monolith.training.hooks.base import Hook
from monolith.training.hooks.process_memory import resident_bytes
from monolith.training.run import Run, StepResult

__all__ = ["MemoryProfileHook", "heap_profile_environment"]


class MemoryProfileHook(Hook):
    """Appends to ``<model_dir>/profile/memory.jsonl``.

    One object per line::

        {"step": 100, "time_s": ..., "resident_bytes": ..., "table_bytes": {"user": ...}, "buffer_pool_bytes": ...,
         "python_bytes": ..., "python_peak_bytes": ...,
         "python_top": [{"place": "file.py:12", "bytes": ..., "count": ...}]}

    Tracing Python's allocations makes them about twice as slow; ``top=0`` leaves it, and the ``python_`` keys, out.

    Args:
        every_steps: Steps from one line to the next.
        top: How many places in Python code are named, the largest first.
        resident: Tells the bytes of the process.
    """

    def __init__(self, every_steps: int = 1000, *, top: int = 10, resident: Callable[[], int] = resident_bytes) -> None:
        if every_steps < 1 or top < 0:
            raise ConfigError(f"every_steps {every_steps}, top {top}; give at least 1 and 0")
        self._every_steps = every_steps
        self._top = top
        self._resident = resident
        self._is_tracing = False

    def on_start(self, run: Run) -> None:
        """Begin to trace, and write how it is before the first step."""
        if self._top and not tracemalloc.is_tracing():
            tracemalloc.start()
            self._is_tracing = True
        self._append(run)

    def after_step(self, run: Run, result: StepResult) -> None:
        """Write a line when it is time."""
        if result.step % self._every_steps == 0:
            self._append(run)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Write how it is at the end, and trace no longer if tracing began here."""
        try:
            self._append(run)
        finally:
            if self._is_tracing:
                self._is_tracing = False
                tracemalloc.stop()

    def _append(self, run: Run) -> None:
        line = {
            "step": run.step,
            "time_s": run.clock.now_s(),
            "resident_bytes": self._resident(),
            "table_bytes": _table_bytes(run.store),
            "buffer_pool_bytes": _native.pooled_bytes(),
            **self._python(),
        }
        path = run.model_dir / "profile" / "memory.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _python(self) -> dict[str, Any]:
        if not self._top or not tracemalloc.is_tracing():
            return {}
        present, peak = tracemalloc.get_traced_memory()
        largest = tracemalloc.take_snapshot().statistics("lineno")[: self._top]
        top = [
            {
                "place": f"{each.traceback[0].filename}:{each.traceback[0].lineno}",
                "bytes": each.size,
                "count": each.count,
            }
            for each in largest
        ]
        return {"python_bytes": present, "python_peak_bytes": peak, "python_top": top}


def _table_bytes(store: object) -> dict[str, int]:
    """Bytes per table, of a store that keeps its rows in this process."""
    return {name: store[name].memory_bytes for name in store} if isinstance(store, MultiTable | GpuStore) else {}


def heap_profile_environment(
    environment: Mapping[str, str],
    *,
    library: Path,
    folder: Path,
    index: int = 0,
    inuse_interval_bytes: int = 104_857_600,
    allocation_interval_bytes: int = 1_073_741_824,
    time_interval_s: int = 0,
    sample_ratio: float = 1.0,
    mmap: bool = False,
) -> dict[str, str]:
    """Return the variables that make a process started with them write heap profiles through tcmalloc.

    They must be set before the process starts, so a launcher sets them; this function changes nothing.

    Args:
        environment: The launcher's own: libraries that are preloaded already stay.
        library: ``libtcmalloc.so`` of gperftools.
        folder: Where the profiles go, as ``hprof_<index>.<n>.heap``.
        index: Of the worker.
        inuse_interval_bytes: A profile for every so many more bytes in use.
        allocation_interval_bytes: A profile for every so many bytes allocated.
        time_interval_s: A profile every so many seconds; 0 = none.
        sample_ratio: Share of the allocations that is recorded, by builds of tcmalloc that can; the two byte intervals
            grow as it shrinks.
        mmap: Whether mapped memory is recorded too.

    >>> library = Path("/lib/libtcmalloc.so")
    >>> settings = heap_profile_environment({}, library=library, folder=Path("/tmp"), sample_ratio=0.5)
    >>> settings["HEAPPROFILE"], settings["HEAP_PROFILE_INUSE_INTERVAL"], settings["LD_PRELOAD"]
    ('/tmp/hprof_0', '209715200', '/lib/libtcmalloc.so')
    """
    if not 0 < sample_ratio <= 1:
        raise ConfigError(f"sample_ratio is {sample_ratio}; give a share above 0, up to 1")
    preloaded = environment.get("LD_PRELOAD", "")
    return {
        "LD_PRELOAD": f"{preloaded}:{library}" if preloaded else str(library),
        "HEAPPROFILE": str(folder / f"hprof_{index}"),
        "HEAP_PROFILE_INUSE_INTERVAL": str(int(inuse_interval_bytes / sample_ratio)),
        "HEAP_PROFILE_ALLOCATION_INTERVAL": str(int(allocation_interval_bytes / sample_ratio)),
        "HEAP_PROFILE_SAMPLE_RATIO": str(sample_ratio),
        "HEAP_PROFILE_TIME_INTERVAL": str(time_interval_s),
        "HEAP_PROFILE_MMAP": str(mmap).lower(),
    }
