from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monolith.core.errors import DataError
from monolith.testing import FakeClock
from monolith.training.distributed.worker_places import PlaceHook, WorkerPlaces


def test_places_are_kept_by_worker(tmp_path: Path) -> None:
    places = WorkerPlaces(tmp_path)
    assert places.read(1) is None
    assert places.all() == {}
    places.write(1, {"file": 3})
    places.write(12, {"file": 4})
    assert WorkerPlaces(tmp_path).all() == {"1": {"file": 3}, "12": {"file": 4}}


def test_a_checkpoint_s_places_replace_all_others(tmp_path: Path) -> None:
    places = WorkerPlaces(tmp_path)
    places.write(1, "new")
    places.write(2, "new")
    places.replace_all({"2": "old", "3": "old"})
    assert places.all() == {"2": "old", "3": "old"}
    places.replace_all({})
    assert places.all() == {}


def test_a_damaged_place_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "1.json").write_text("{")
    with pytest.raises(DataError, match=r"1\.json is damaged .* remove it to read the worker's data anew"):
        WorkerPlaces(tmp_path).read(1)


def test_the_place_is_kept_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    clock, place = FakeClock(), [0]
    run: Any = SimpleNamespace(clock=clock, place=lambda: place[0])
    places, seen = WorkerPlaces(tmp_path), []
    hook = PlaceHook(places, 1, every_s=10.0)
    hook.on_start(run)
    for place[0] in range(1, 5):
        hook.after_step(run, None)  # type: ignore[arg-type]
        seen.append(places.read(1))
        clock.advance_s(6)
    assert seen == [1, 1, 3, 3]
    hook.before_end(run)
    assert places.read(1) == 4
