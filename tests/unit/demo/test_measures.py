"""Quality of shown pages, and metrics pages as numbers."""

import math
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.demo.demo import Demo, DemoOptions
from monolith.demo.loop import LoopSettings
from monolith.demo.measures import PageMeasures, Shown
from monolith.demo.pages import Buckets, read_page
from monolith.demo.visitors import VisitorSettings
from monolith.telemetry.names import EVENT_STAGE_SECONDS, TRAIN_STEPS_TOTAL
from monolith.telemetry.page import MetricsPage
from monolith.telemetry.registry import Registry


def page(time_s: float, live: list[float], click: list[int]) -> Shown:
    scores = np.array(live)
    return Shown(time_s, scores, 1 - scores, np.array(click, float), np.array(click) == 1, 0.01)


def test_quality_compares_both_servers_with_the_truth_on_the_same_rows() -> None:
    measures = PageMeasures()
    measures.add(page(1.0, [0.9, 0.1, 0.2, 0.1], [1, 0, 0, 0]))
    measures.add(page(2.0, [0.1, 0.8, 0.2, 0.1], [0, 1, 0, 0]))
    quality = measures.quality(0.0)
    assert (quality.rows, quality.clicks) == (8, 2)
    assert (quality.live_auc, quality.batch_auc, quality.best_auc) == (1.0, 0.0, 1.0)
    assert (quality.live_top, quality.batch_top, quality.best_top) == (1.0, 0.0, 1.0)
    assert quality.calibration == pytest.approx(2.5 / 2)
    assert measures.quality(1.5).rows == 4
    assert list(measures.request_seconds(1.5)) == [0.01]


def test_quality_without_pages_or_clicks_is_undefined() -> None:
    measures = PageMeasures()
    assert math.isnan(measures.quality(0.0).live_auc)
    measures.add(page(1.0, [0.5, 0.4], [0, 0]))
    quality = measures.quality(0.0)
    assert math.isnan(quality.live_auc)
    assert math.isnan(quality.calibration)


def test_pages_older_than_the_span_are_dropped() -> None:
    measures = PageMeasures(keep_s=10)
    for time_s in (1.0, 5.0, 14.0):
        measures.add(page(time_s, [0.5], [1]))
    assert measures.quality(0.0).rows == 2
    assert measures.rows == 3


def test_a_metrics_page_is_read_as_numbers() -> None:
    registry = Registry()
    registry.export(TRAIN_STEPS_TOTAL, 3)
    for seconds in (0.01, 0.02, 0.02, 4.0):
        registry.export(EVENT_STAGE_SECONDS, seconds, ("join",))
    with MetricsPage(registry.text) as served:
        found = read_page(f"127.0.0.1:{served.port}")
    assert found is not None
    assert found.total(TRAIN_STEPS_TOTAL.name) == 3
    buckets = found.buckets(EVENT_STAGE_SECONDS.name, stage="join")
    assert buckets.count == 4
    assert buckets.mean == pytest.approx(4.05 / 4)
    assert 0.02 <= buckets.quantile(0.5) < 0.03
    assert 4.0 <= buckets.quantile(0.99) < 5.1
    assert found.buckets(EVENT_STAGE_SECONDS.name, stage="apply").count == 0
    assert read_page(f"127.0.0.1:{served.port}") is None


@pytest.mark.parametrize("answer", [b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nup 1\n", b"no HTTP\r\n\r\n"])
def test_a_process_that_ends_inside_its_answer_has_no_page_and_no_chart(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert read_page(address) is None
        loop: Any = SimpleNamespace(dashboard_url=f"http://{address}/")
        assert not Demo(DemoOptions())._has_chart(loop)
        thread.join(30)


def test_a_run_removes_an_earlier_run_and_no_other_files(tmp_path: Path) -> None:
    demo = Demo(DemoOptions(folder=tmp_path, keep=True))
    with demo._run_folder() as folder:
        (folder / "log").touch()
    assert (folder / "log").exists()
    with demo._run_folder():
        assert not (folder / "log").exists()
    with Demo(DemoOptions(folder=tmp_path))._run_folder():
        assert folder.exists()
    assert not folder.exists()
    folder.mkdir()
    with demo._run_folder():  # an empty folder is taken
        pass
    for name in folder.iterdir():
        name.unlink()
    (folder / "thesis").write_text("years of work")
    with (
        pytest.raises(ConfigError, match=r"run', expected an absent or empty folder.*another --folder"),
        demo._run_folder(),
    ):
        pass
    assert (folder / "thesis").read_text() == "years of work"


def test_a_histogram_since_an_earlier_read_has_only_the_newer_observations() -> None:
    before, after = Buckets({0.1: 5, math.inf: 5}, 0.3), Buckets({0.1: 5, math.inf: 7}, 4.3)
    newer = after.since(before)
    assert (newer.count, newer.mean) == (2, 2.0)
    assert newer.quantile(0.5) == math.inf
    assert math.isnan(Buckets().quantile(0.5))


def test_settings_of_a_demonstration_name_invalid_values(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seconds is 0"):
        DemoOptions(seconds=0)
    with pytest.raises(ConfigError, match="events_per_s is 0"):
        VisitorSettings(events_per_s=0)
    with pytest.raises(ConfigError, match="publish_s is 0"):
        LoopSettings(folder=tmp_path, publish_s=0)


def test_topics_are_those_of_the_log_or_of_kafka(tmp_path: Path) -> None:
    assert LoopSettings(folder=tmp_path).url("actions") == f"log://{tmp_path}/events/actions"
    settings = LoopSettings(folder=tmp_path, kafka="a:1,b:2", prefix="demo-7-")
    assert settings.url("actions") == "kafka://a:1,b:2/demo-7-actions"
