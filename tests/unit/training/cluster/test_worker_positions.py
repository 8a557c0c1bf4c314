from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monolith.core.errors import ConfigError, DataError
from monolith.testing import FakeClock
from monolith.training.cluster.worker_positions import PositionHook, WorkerPositions


def test_places_are_kept_by_worker(tmp_path: Path) -> None:
    places = WorkerPositions(tmp_path)
    assert places.read(1, 7) is None
    assert places.all(7) == {}
    places.write(1, 7, {"file": 3})
    places.write(12, 7, {"file": 4}, is_through=True)
    assert WorkerPositions(tmp_path).all(7) == {"1": {"file": 3}, "12": {"file": 4}}
    assert [places.is_through(index, 7) for index in (1, 12, 13)] == [False, True, False]


def test_places_of_an_earlier_start_count_for_nothing(tmp_path: Path) -> None:
    places = WorkerPositions(tmp_path)
    places.write(1, 7, "far", is_through=True)
    places.begin(8, {"1": "near", "2": "nearer"}, {"user": "integer"})
    assert (places.value_types(8), places.value_types(7)) == ({"user": "integer"}, {})
    assert (places.read(1, 8), places.read(2, 8), places.read(3, 8)) == ("near", "nearer", None)
    places.write(1, 7, "farther")  # of a worker that has not heard of the new start
    assert not places.is_through(1, 8)
    assert places.all(8) == {"1": "near", "2": "nearer"}
    places.write(1, 8, "next")
    assert places.all(8) == {"1": "next", "2": "nearer"}
    places.begin(9, {}, {})
    assert places.all(9) == {}


@pytest.mark.parametrize(("name", "text"), [("1.json", "{"), ("1.json", "[]"), ("begin.json", '{"session": 7}')])
def test_the_error_of_a_corrupt_position_names_the_remedy(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / name).write_text(text)
    with pytest.raises(
        DataError, match=rf"{name} is corrupt .* remove it to read the worker's data from the beginning"
    ):
        WorkerPositions(tmp_path).read(1, 7)


def test_the_place_is_kept_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    clock, place = FakeClock(), [0]
    run: Any = SimpleNamespace(clock=clock, place=lambda: place[0], data_ended=False)
    places, seen = WorkerPositions(tmp_path), []
    hook = PositionHook(places, 1, lambda: 7, every_s=10.0)
    hook.on_start(run)
    for place[0] in range(1, 5):
        hook.after_step(run, None)  # type: ignore[arg-type]
        seen.append(places.read(1, 7))
        clock.advance_s(6)
    assert seen == [1, 1, 3, 3]
    assert not places.is_through(1, 7)
    run.data_ended = True
    hook.before_end(run)
    assert places.read(1, 7) == 4
    assert places.is_through(1, 7)


def test_a_full_disk_is_reported_and_retried_before_it_ends_a_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    run: Any = SimpleNamespace(clock=clock, place=lambda: 5, data_ended=False)
    positions = WorkerPositions(tmp_path)
    (tmp_path / "workers").write_text("a file in the place of the folder")
    hook = PositionHook(positions, 1, lambda: 7, every_s=1.0, patience_s=60.0)
    hook.on_start(run)
    for _ in range(3):
        hook.after_step(run, None)  # type: ignore[arg-type]
        clock.advance_s(2)
    assert caplog.text.count("position not written, retrying worker=1") == 1
    (tmp_path / "workers").unlink()
    hook.after_step(run, None)  # type: ignore[arg-type]
    assert positions.read(1, 7) == 5
    (tmp_path / "workers" / "1.json").unlink()
    (tmp_path / "workers").rmdir()
    (tmp_path / "workers").write_text("again")
    clock.advance_s(2)
    hook.after_step(run, None)  # type: ignore[arg-type]
    clock.advance_s(59)
    hook.after_step(run, None)  # type: ignore[arg-type]
    clock.advance_s(2)
    with pytest.raises(OSError, match="workers"):
        hook.after_step(run, None)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="workers"):
        hook.before_end(run)


def test_a_worker_with_another_folder_than_the_chief_is_refused(tmp_path: Path) -> None:
    chief, elsewhere = WorkerPositions(tmp_path / "chief"), WorkerPositions(tmp_path / "elsewhere")
    chief.begin(7, {}, {})
    chief.check_shared(lambda: 7, 1, FakeClock())
    elsewhere.begin(6, {}, {})  # of an earlier job
    clock = FakeClock()
    before_s = clock.monotonic_s()
    with pytest.raises(ConfigError, match=r"elsewhere', where worker 1 sees no session.*MONOLITH_STAGING_DIR"):
        elsewhere.check_shared(lambda: 7, 1, clock)
    assert clock.monotonic_s() - before_s >= 60


def test_a_worker_waits_for_a_folder_that_shows_the_session_late(tmp_path: Path) -> None:
    positions, calls = WorkerPositions(tmp_path), 0

    def session() -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            positions.begin(8, {}, {})
        return 8

    positions.begin(7, {}, {})
    positions.check_shared(session, 1, FakeClock())
    assert calls == 4
