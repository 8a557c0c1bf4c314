from __future__ import annotations

import importlib.util
import itertools
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def sizes() -> Any:
    from serving.workload import QUICK

    return replace(
        QUICK,
        ids=2_600,
        load_ids=2_600,
        batch=10,
        batches=3,
        rounds=1,
        turn_s=0.3,
        settle_s=0.1,
        p99_turn_s=0.6,
        clients=4,
        loads=1,
        swaps=1,
        threads=1,
    )


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from serving import exporting

    monkeypatch.setattr(exporting, "SCRATCH", tmp_path)
    return tmp_path


def lines_of(results: Any, sizes: Any) -> list[dict[str, Any]]:
    from serving.results import write

    out = StringIO()
    for result in results:
        write(result, sizes, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_every_form_of_a_request_holds_the_same_rows(sizes: Any, tmp_path: Path) -> None:
    from serving.exporting import Exported
    from serving.peer_model import FORMS, PARSERS, PeerModel
    from serving.servers import first_request
    from serving.workload import Workload

    exported = Exported(Workload(sizes), tmp_path)
    exported.save_for_torch()
    scores = []
    for form, parser in itertools.product(FORMS, PARSERS):
        model = PeerModel(str(exported.weights), form, parser, 1)
        scores.append(model.score(*model.read(first_request(exported.requests[form]))).numpy())
    assert scores[0].shape == (sizes.batch,)
    assert len(np.unique(scores[0])) > 1
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], atol=1e-6)


@pytest.mark.slow
def test_a_version_is_swapped_under_load_and_nobody_fails(sizes: Any, scratch: Path) -> None:
    from serving.swaps import swap_cases

    (line,) = lines_of(swap_cases(["swap_p99"], sizes), sizes)
    assert (line["case"], line["better"], line["failed"], line["rounds"]) == ("swap_p99", "lower", 0, 1)
    assert line["ratio"] > 0
    assert list(scratch.iterdir()) == []


def test_a_load_is_timed_until_the_first_answer(sizes: Any, scratch: Path) -> None:
    from serving.loading import load_cases

    (line,) = lines_of(load_cases(["load_10m_s"], sizes), sizes)
    assert line["ratio"] == line["ours"] > 0
    assert line["in_page_cache_s"] > 0
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("name", ["litserve", "fastapi"])
def test_a_peer_that_is_missing_is_named(name: str, sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from serving import servers
    from serving.traffic import traffic_cases

    monkeypatch.setattr(servers.importlib.util, "find_spec", lambda package: None)  # type: ignore[attr-defined]
    lines = lines_of(traffic_cases([f"rps_{name}", f"p99_{name}"], sizes), sizes)
    assert [line["case"] for line in lines] == [f"rps_{name}", f"p99_{name}"]
    for line in lines:
        assert "requirements-bench.lock" in line["skipped"]
        assert (line["ratio"], line["ok"]) == (None, None)


@pytest.mark.slow
def test_our_server_and_fastapi_agree_and_are_timed(sizes: Any, scratch: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in ("fastapi", "uvicorn", "uvloop", "httptools")):
        pytest.skip("FastAPI and uvicorn come with requirements-bench.lock")
    from serving.traffic import traffic_cases

    full, half = lines_of(traffic_cases(["rps_fastapi", "p99_fastapi"], sizes), sizes)
    assert (full["must"], full["aim"], half["must"], half["aim"]) == (2.0, 5.0, 0.5, 0.25)
    assert max(full["grpc"], full["rest"]) == full["ours"] > 0
    assert min(half["grpc"], half["rest"]) == half["ours"] > 0
    assert list(scratch.iterdir()) == []


def test_a_server_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    from serving.servers import Ours

    with pytest.raises(RuntimeError, match="before it listened"):
        Ours(tmp_path / "nothing", {"grpc": tmp_path, "rest": tmp_path}, threads=-1)


def test_a_request_that_fails_under_load_is_an_error(tmp_path: Path) -> None:
    from serving.servers import Generator, Target

    (tmp_path / "requests").write_bytes(b"\x01\0\0\0x")
    with Generator() as generator, pytest.raises(RuntimeError, match="a request failed under load: ConnectionRefused"):
        generator.offer(Target("http", 1, "/", tmp_path / "requests"), clients=1, seconds=0.1, settle_s=0.0)
