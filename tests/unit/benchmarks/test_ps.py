from __future__ import annotations

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def sizes() -> Any:
    from ps.workload import QUICK

    return replace(
        QUICK,
        rows=3_000,
        ids=256,
        calls=2,
        rounds=2,
        steps=1,
        starts=1,
        recoveries=1,
        train_ids=2_600,
        train_batch=64,
        train_batches=2,
        train_rounds=2,
        train_steps=2,
        threads=1,
    )


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from ps import rows, training

    monkeypatch.setattr(rows, "SCRATCH", tmp_path)
    monkeypatch.setattr(training, "SCRATCH", tmp_path)
    return tmp_path


def lines_of(results: Any, sizes: Any) -> list[dict[str, Any]]:
    from ps.results import write

    out = StringIO()
    for result in results:
        write(result, sizes, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_call_has_distinct_ids_that_the_table_holds(sizes: Any) -> None:
    from ps.workload import DIM, Workload

    workload = Workload(sizes)
    pieces = list(workload.first_rows())
    held = np.concatenate([ids for ids, _ in pieces])
    assert len(np.unique(held)) == sizes.rows
    for number in range(3):
        assert len(np.unique(workload.call(number))) == sizes.ids
        assert np.isin(workload.call(number), held).all()
        assert workload.gradient(number).shape == (sizes.ids, DIM)


def test_rows_are_recovered_looked_up_and_pushed_and_the_same_here_and_there(sizes: Any, scratch: Path) -> None:
    from ps.rows import row_cases

    lines = lines_of(row_cases(["recover_10m_s", "lookup_share", "push_share"], sizes), sizes)
    assert [line["case"] for line in lines] == ["lookup_share", "push_share", "recover_10m_s"]
    lookup, push, recovery = lines
    assert recovery["better"] == "lower"
    assert recovery["ratio"] == recovery["ours"] > 0
    assert recovery["bytes"] > sizes.rows * 4 * 16
    for line in (lookup, push):
        assert (line["better"], line["must"], line["aim"], line["transport"]) == ("higher", 0.35, 0.6, "data_plane")
        assert line["ratio_low"] <= line["ratio"] <= line["ratio_high"]
    assert lookup["ratio_tcp"] > 0
    assert lookup["ratio_grpc"] > 0
    assert list(scratch.iterdir()) == []


def test_a_peer_that_is_missing_is_named(sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ps import redis_peer
    from ps.rows import row_cases

    monkeypatch.setattr(redis_peer.shutil, "which", lambda name: None)  # type: ignore[attr-defined]
    (line,) = lines_of(row_cases(["lookup_redis"], sizes), sizes)
    assert "redis" in line["skipped"]
    assert (line["ratio"], line["ok"]) == (None, None)


def test_redis_gives_back_what_the_table_holds(sizes: Any) -> None:
    pytest.importorskip("hiredis", reason="the client of Redis comes with requirements-bench.lock")
    if not (shutil.which("redis-server") or shutil.which("redis-check-rdb")):
        pytest.skip("there is no redis-server; make bench installs it where it may")
    from ps.rows import row_cases

    (line,) = lines_of(row_cases(["lookup_redis"], sizes), sizes)
    assert line["ratio"] > 0
    assert line["socket"] in ("unix", "tcp")
    assert line["keys_per_mget"] >= 64


def test_a_start_is_timed_until_the_first_pull_is_answered(sizes: Any) -> None:
    from ps.starts import start_cases

    (line,) = lines_of(start_cases(["start_s"], sizes), sizes)
    assert 0 < line["listening_s"] < line["ratio"]
    assert line["rounds"] == sizes.starts


def test_training_on_servers_learns_the_same_as_training_here(sizes: Any, scratch: Path) -> None:
    from ps.training import training_cases

    (line,) = lines_of(training_cases(["wall_2ps_over_local"], sizes), sizes)
    assert line["ratio"] > 0
    assert line["unit"] == "ms/step"
    assert (line["must"], line["aim"], line["servers"]) == (1.6, 1.25, 2)
    assert list(scratch.iterdir()) == []


def test_a_server_that_cannot_start_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    from ps.server import Server

    with pytest.raises(RuntimeError, match="before it listened"):
        Server(recover_from=tmp_path / "nothing")
