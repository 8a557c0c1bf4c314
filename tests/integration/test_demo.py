"""The whole loop as processes: the demonstration learns and ends cleanly, and events change scores within seconds."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from monolith.data.sources.urls import open_sink
from monolith.demo.loop import ACTIONS, MODEL, Loop, LoopSettings
from monolith.demo.world import Clicks, DriftingWorld
from monolith.demo.world.events import CLICK, encode_action, encode_impressions
from monolith.serving import Client
from monolith.testing import eventually
from process_tree import programs_of

PROGRAM = [sys.executable, "-c", "from monolith.cli.main import main; main()"]
LONGEST_S = 180.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs; the first run leaves its export to the later ones."""
    return tmp_path_factory.mktemp("demo")


def ports_of(processes: list[psutil.Process]) -> set[int]:
    """Return the ports on which processes listen."""
    return {
        each.laddr.port for process in processes for each in process.net_connections("tcp") if each.status == "LISTEN"
    }


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended; a zombie has, it only waits for its parent to read its status."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def are_gone(processes: list[psutil.Process]) -> bool:
    return all(has_ended(each) for each in processes)


@contextmanager
def started(*options: object) -> Iterator[subprocess.Popen[str]]:
    command = [*PROGRAM, "demo", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> str:
    """Send Ctrl-C; return the rest of standard error."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return errors


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_demonstration_learns_shows_one_table_and_ends_with_ctrl_c(folder: Path) -> None:
    options = ["--seconds", 8, "--events-per-s", 600, "--batch-interval-s", 60, "--json", "--keep", "--folder", folder]
    with started(*options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        result = json.loads(line)
        running = programs_of(process.pid)
        ports = ports_of(running)
        errors = interrupt(process)
    assert len(running) == 7  # joiner, trainer, two parameter servers, two model servers, dashboard
    assert "dashboard on http://127.0.0.1:" in errors
    assert result["events"] > 500
    assert result["examples"] > 500
    assert result["ids"] > 100
    assert result["batch_auc"] < result["best_auc"]
    assert 0.45 < result["live_auc"] < result["best_auc"] < 1
    assert 0 < result["event_to_servable_p50_s"] <= result["event_to_servable_p99_s"] < LONGEST_S
    assert all(seconds >= 0 for seconds in result["stages_s"].values())
    assert 0 < result["request_p99_s"] < LONGEST_S
    assert result["requests_per_s"] > 1
    assert result["failures"] == 0
    assert result["first_chart_s"] > 0
    eventually(lambda: are_gone(running), message="the processes of the demonstration end")
    assert len(ports) >= 9
    assert not any(is_listening(port) for port in ports)
    assert (folder / "run" / "published" / "cut.json").is_file()


def test_ctrl_c_during_the_start_leaves_no_process_and_no_file(folder: Path) -> None:
    with started("--headless", "--folder", folder) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "waiting for" in line, line
        running = programs_of(process.pid)
        interrupt(process)
    assert running
    eventually(lambda: are_gone(running), message="the processes of the demonstration end")
    assert not (folder / "run").exists()


@pytest.fixture
def loop(folder: Path, tmp_path: Path) -> Iterator[Loop]:
    with Loop(LoopSettings(folder=tmp_path, models=folder, publish_s=0.5, batch_rows=64)) as running:
        yield running


class Audience:
    """Shows pages, and clicks on chosen items immediately."""

    def __init__(self, loop: Loop) -> None:
        self._pages = DriftingWorld(users=30, items=40, seed=5).pages(1, 16)
        self._client = Client(loop.live_address, model=MODEL)
        self._sink = open_sink(loop.settings.url(ACTIONS))

    def show(self, liked: int | None = None) -> Clicks:
        """Show a page that begins with the liked item, the only one that users click."""
        page = next(self._pages)
        if liked is not None:
            page.item_id[0] = liked
        key, time_ms = secrets.token_hex(8).encode(), int(time.time() * 1000)
        self._client.score(encode_page(page, key, time_ms), "examples")
        if liked is not None:
            self._sink.write(encode_action(key, liked, CLICK, time_ms + 1), key, time_ms + 1)
        return page

    def scores(self, page: Clicks) -> np.ndarray:
        """Return the scores of a page without an impression: the key is that of an old page."""
        (scores,) = self._client.score(encode_page(page, b"probe", 1_000_000_000_000), "examples").values()
        return np.asarray(scores, np.float64).reshape(-1)

    def close(self) -> None:
        self._client.close()
        self._sink.close()


def encode_page(page: Clicks, key: bytes, time_ms: int) -> list[bytes]:
    records = []
    for example, item in zip(encode_impressions(page), page.item_id.tolist(), strict=True):
        example.line_id.item_id = item
        example.line_id.request_key = key
        example.line_id.event_time_ms = time_ms
        example.line_id.req_time = time_ms // 1000
        records.append(example.SerializeToString())
    return records


def test_events_that_make_an_item_popular_raise_its_score_on_the_server_within_seconds(loop: Loop) -> None:
    audience = Audience(loop)
    try:
        for _ in range(60):
            page = audience.show()
        liked = int(page.item_id[3])
        loop.wait_for("the score to fall", lambda: audience.scores(audience.show() and page)[3] < 0.4, LONGEST_S)
        before = audience.scores(page)
        begin_s = time.monotonic()
        pause = threading.Event()
        gain, others = 0.0, 0.0
        while gain < others + 0.1:
            assert time.monotonic() - begin_s < LONGEST_S, f"gain {gain:+.3f}, of the others {others:+.3f}"
            for _ in range(8):
                audience.show(liked)
            pause.wait(0.02)
            gains = audience.scores(page) - before
            gain, others = gains[3], np.delete(gains, 3).mean()
        seconds = time.monotonic() - begin_s
        print(f"score {before[3]:.3f} {gain:+.3f} after {seconds:.2f} s, others {others:+.3f}")
    finally:
        audience.close()
