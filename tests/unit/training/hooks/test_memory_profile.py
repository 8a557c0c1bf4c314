from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_run import FakeRun
from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.training.hooks import Hook, MemoryProfileHook, Run, heap_profile_environment
from monolith.training.hooks.process_memory import resident_bytes


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "profile/memory.jsonl").read_text().splitlines()]


def test_a_line_at_the_start_every_few_steps_and_at_the_end(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, [MemoryProfileHook(2, top=0, resident=lambda: 77)])
    run.store = MultiTable([TableSpec("user", [SliceSpec(2, optimizer=Sgd())])])
    run.train(5)
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [0, 2, 4, 5]
    assert all(line["resident_bytes"] == 77 and line["buffer_pool_bytes"] >= 0 for line in found)
    assert found[0]["table_bytes"] == {"user": run.store["user"].memory_bytes}
    assert "python_bytes" not in found[0]


def test_the_largest_places_in_python_code_are_named(tmp_path: Path) -> None:
    kept = []

    class Hoards(Hook):
        def before_step(self, run: Run) -> None:
            kept.append(np.zeros(1 << 20, np.uint8))

    FakeRun(tmp_path, [MemoryProfileHook(1, top=3), Hoards()]).train(2)
    last = lines(tmp_path)[-1]
    assert last["python_top"][0]["place"].startswith(__file__)
    assert last["python_top"][0]["bytes"] >= 2 << 20
    assert len(last["python_top"]) <= 3
    assert last["python_peak_bytes"] >= last["python_bytes"] >= 2 << 20
    assert not tracemalloc.is_tracing()


def test_tracing_that_another_began_goes_on(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        FakeRun(tmp_path, [MemoryProfileHook(1, resident=lambda: 0)]).train(1)
        assert tracemalloc.is_tracing()
        assert "python_top" in lines(tmp_path)[0]
    finally:
        tracemalloc.stop()


def test_a_process_has_memory() -> None:
    assert resident_bytes() > 1 << 20


def test_heap_profiles_are_set_up_by_variables() -> None:
    settings = heap_profile_environment(
        {"LD_PRELOAD": "/lib/a.so"},
        library=Path("/lib/t.so"),
        folder=Path("/out"),
        index=3,
        sample_ratio=0.25,
        mmap=True,
    )
    assert settings == {
        "LD_PRELOAD": "/lib/a.so:/lib/t.so",
        "HEAPPROFILE": "/out/hprof_3",
        "HEAP_PROFILE_INUSE_INTERVAL": str(4 * 104857600),
        "HEAP_PROFILE_ALLOCATION_INTERVAL": str(4 * 1073741824),
        "HEAP_PROFILE_SAMPLE_RATIO": "0.25",
        "HEAP_PROFILE_TIME_INTERVAL": "0",
        "HEAP_PROFILE_MMAP": "true",
    }
    with pytest.raises(ConfigError, match="sample_ratio is 0"):
        heap_profile_environment({}, library=Path("t"), folder=Path("f"), sample_ratio=0)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="every_steps 0"):
        MemoryProfileHook(0)
