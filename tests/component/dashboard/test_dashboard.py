"""The dashboard reads metrics pages, derives series, and serves page, state and boxes over real HTTP."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from monolith.core.errors import ClusterError, ConfigError
from monolith.core.free_ports import free_port
from monolith.dashboard import DashboardServer, Scraper
from monolith.dashboard import scraper as scraper_module
from monolith.dashboard.boxes import Explainer, Predictor
from monolith.dashboard.charts import CHARTS, ROLES, compute_series, find_role, quantile
from monolith.dashboard.samples import parse_samples
from monolith.dashboard.scraper import ScrapeTarget, parse_target
from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.ps import ParameterServer, RemoteStore, ServerConfig
from monolith.telemetry import names
from monolith.telemetry.page import MetricsPage
from monolith.telemetry.text import render
from monolith.testing.eventually import eventually
from monolith.testing.fakes.clock import FakeClock
from monolith.testing.processes.linear_server import LinearServer

CHART = {chart.id: chart for chart in CHARTS}


class Trainer:
    """Metrics of a trainer that a test changes."""

    def __init__(self) -> None:
        self.samples = 100
        self.cut = 7
        self.up = 1

    def text(self) -> str:
        return (
            f"monolith_train_step 5\nmonolith_train_samples_total {self.samples}\nmonolith_train_loss 0.5\n"
            'monolith_train_head{head="ctr",metric="auc"} 0.75\nmonolith_train_head{head="ctr",metric="log_loss"} 0.4\n'
            f'monolith_table_rows{{table="user"}} 11\nmonolith_sync_cut{{model="m",version="1"}} {self.cut}\n'
            f'monolith_background_thread_up{{thread="publisher"}} {self.up}\n'
        )


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


@pytest.fixture
def page(trainer: Trainer) -> Iterator[MetricsPage]:
    with MetricsPage(lambda: trainer.text()) as page:
        yield page


@pytest.fixture
def scraper(page: MetricsPage) -> Iterator[Scraper]:
    targets = [ScrapeTarget("trainer", f"127.0.0.1:{page.port}"), ScrapeTarget("gone", f"127.0.0.1:{free_port()}")]
    scraper = Scraper(targets, interval_s=0.05)
    yield scraper
    scraper.close()


Fetch = Callable[..., tuple[int, Any, dict[str, str]]]


@pytest.fixture
def fetch(scraper: Scraper) -> Iterator[Fetch]:
    with DashboardServer(scraper) as server:
        yield lambda path, method="GET", body=None, **headers: call(server.port, path, method, body, **headers)


def call(port: int, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        parsed = json.loads(content) if response.getheader("Content-Type") == "application/json" else content
        return response.status, parsed, dict(response.getheaders())
    finally:
        connection.close()


def test_the_state_has_series_of_every_chart_with_samples(scraper: Scraper, trainer: Trainer) -> None:
    def newest(chart: str) -> dict[str, float]:
        points = [point["values"].get(chart) for point in scraper.state()["points"]]
        return next((values for values in reversed(points) if values), {})

    eventually(lambda: newest("auc") == {"trainer real-time ctr": 0.75}, timeout_s=30)
    assert newest("loss") == {"trainer loss": 0.5}
    assert newest("rows") == {"trainer user": 11}
    trainer.samples += 1000
    eventually(lambda: newest("throughput").get("trainer rows trained", 0) > 0, timeout_s=30)
    assert scraper.tables() == ["user"]


def test_targets_show_role_error_and_parts_that_are_down(scraper: Scraper, trainer: Trainer) -> None:
    def targets() -> dict[str, Any]:
        return {each["name"]: each for each in scraper.state()["targets"]}

    eventually(lambda: targets()["trainer"]["error"] is None, timeout_s=30)
    assert targets()["trainer"]["role"] == "trainer"
    eventually(lambda: "refused" in targets()["gone"]["error"], timeout_s=30)
    trainer.up = 0
    eventually(lambda: targets()["trainer"]["problems"] == ["background thread publisher is down"], timeout_s=30)


def test_each_new_cut_is_listed_once(scraper: Scraper, trainer: Trainer) -> None:
    eventually(lambda: [cut["cut"] for cut in scraper.state()["cuts"]] == [7], timeout_s=30)
    trainer.cut = 9
    eventually(lambda: [cut["cut"] for cut in scraper.state()["cuts"]] == [7, 9], timeout_s=30)


def test_points_are_given_once_after_a_time(scraper: Scraper) -> None:
    eventually(lambda: len(scraper.state()["points"]) >= 3, timeout_s=30)
    points = scraper.state()["points"]
    later = scraper.state(points[1]["time_s"])["points"]
    assert later[0]["time_s"] > points[1]["time_s"]


class JumpingClock(FakeClock):
    """A clock whose wall time can go back, as that of a machine that is set right."""

    behind_s = 0.0

    @override
    def now_s(self) -> float:
        return super().now_s() - self.behind_s


def test_charts_continue_after_the_clock_went_back(page: MetricsPage) -> None:
    clock = JumpingClock()
    scraper = Scraper([ScrapeTarget("trainer", f"127.0.0.1:{page.port}")], interval_s=0.02, clock=clock)
    try:
        eventually(lambda: len(scraper.state()["points"]) > 1, timeout_s=30)
        clock.behind_s = 3600.0
        eventually(lambda: scraper.state()["points"][-1]["time_s"] == clock.now_s(), timeout_s=30)
        times = [point["time_s"] for point in scraper.state()["points"]]
        assert set(times) == {clock.now_s()}
        clock.advance_s(1000.0)  # beyond the history
        eventually(lambda: min(each["time_s"] for each in scraper.state()["points"]) == clock.now_s(), timeout_s=30)
    finally:
        scraper.close()


PAGE_SCRIPT = """
const fs = require("fs");
const element = () => new Proxy(function () {}, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => "" : name === "dataset" ? {} : element()),
  set: () => true,
  apply: () => element(),
});
globalThis.document = element();
globalThis.addEventListener = () => {};
const asked = [];
const polls = [];
const point = (time_s) => ({ time_s, values: {} });
const answer = (now_s, points) => ({ now_s, points, targets: [], charts: [], cuts: [] });
const answers = [answer(5000, [point(4999)]), answer(1400, []), answer(1401, [point(1400)]), answer(1402, [])];
globalThis.fetch = async (url) => { asked.push(url); return { json: async () => answers[asked.length - 1] }; };
globalThis.setTimeout = (poll) => polls.push(poll);
eval(fs.readFileSync(process.argv[1], "utf8"));
(async () => {
  while (asked.length < answers.length) {
    await new Promise((next) => setImmediate(next));
    if (polls.length) polls.shift()();
  }
  console.log(asked.map((url) => url.split("=")[1]).join(" "));
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the script of the page")
def test_the_page_begins_again_after_the_clock_went_back() -> None:
    script = files("monolith.dashboard") / "static" / "page.js"
    done = subprocess.run(
        ["node", "-e", PAGE_SCRIPT, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0", "4999", "0", "1400"]


def test_the_server_has_the_page_and_refuses_other_paths(fetch: Fetch) -> None:
    status, body, headers = fetch("/")
    assert status == 200
    assert b"Skip to the charts" in body
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")
    for name in ("page.js", "page.css"):
        assert fetch(f"/static/{name}")[0] == 200
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/", "/etc/passwd", "/page.js"):
        assert fetch(path)[0] == 404
    assert fetch("/api/state?since=x")[0] == 400
    assert fetch("/api/state?since=nan")[0] == 400
    assert fetch("/api/state?since=0")[1]["can_predict"] is False
    assert fetch("/api/explain?id=1")[0] == 404
    assert fetch("/api/predict", "POST", "{}")[0] == 404
    assert fetch("/api/predict", "POST", "{}", **{"Content-Length": "99999999999"})[0] == 413
    assert fetch("/other", "POST", "{}")[0] == 404


def test_the_predict_box_passes_requests_and_answers_of_the_model_server(scraper: Scraper, tmp_path: Path) -> None:
    linear = LinearServer(tmp_path)
    linear.write(1, bias=0.25)
    linear.start()
    try:
        with DashboardServer(scraper, predictor=Predictor(linear.server.rest_address)) as server:
            sent = {"model": "m", "body": {"instances": [{"age": 1.0}]}}
            status, body, _ = call(server.port, "/api/predict", "POST", json.dumps(sent))
            assert status == 200, body
            assert "predictions" in body
            status, body, _ = call(server.port, "/api/predict", "POST", json.dumps({"model": "no/../x", "body": {}}))
            assert (status, "model is" in body["error"]) == (400, True)
            status, body, _ = call(server.port, "/api/predict", "POST", json.dumps(sent | {"model": "absent"}))
            assert status == 404
            assert "absent" in json.dumps(body)
            assert call(server.port, "/api/predict", "POST", "not JSON")[0] == 400
    finally:
        linear.server.stop()
    with DashboardServer(scraper, predictor=Predictor(f"127.0.0.1:{free_port()}")) as server:
        assert call(server.port, "/api/predict", "POST", json.dumps({"model": "m", "body": {}}))[0] == 502


def test_the_explain_box_asks_the_server_that_owns_the_id(scraper: Scraper) -> None:
    spec = TableSpec("user", [SliceSpec(2, optimizer=Sgd(1.0))])
    with ExitStack() as stack:
        configs = [ServerConfig(index=index, shards=2) for index in range(2)]
        addresses = [stack.enter_context(ParameterServer(config)).address for config in configs]
        store = stack.enter_context(RemoteStore(addresses, [spec]))
        store.push({"user": np.array([42])}, {"user": np.ones((1, 2), np.float32)})
        eventually(lambda: scraper.tables() == ["user"], timeout_s=30)
        explainer = Explainer(addresses)
        stack.callback(explainer.close)
        server = stack.enter_context(DashboardServer(scraper, explainer=explainer))
        status, body, _ = call(server.port, "/api/explain?id=42")
        assert (status, body["id"]) == (200, 42)
        assert body["tables"][0]["text"] == store.explain("user", 42)
        assert call(server.port, "/api/explain?id=0x2a")[1]["tables"] == body["tables"]
        assert call(server.port, "/api/explain?id=43")[1]["tables"][0]["text"] == store.explain("user", 43)
        assert call(server.port, "/api/explain?id=many")[0] == 400


def test_the_explain_box_names_the_remedy_where_no_target_reports_tables() -> None:
    explainer = Explainer(["127.0.0.1:1"])
    status, body = explainer.explain("42", [])
    assert (status, "--targets" in body["error"]) == (503, True)
    explainer.close()


def test_a_counter_that_fell_is_of_a_restarted_process() -> None:
    chart = CHART["throughput"]
    before = parse_samples("monolith_train_samples_total 1000\n")
    now = parse_samples("monolith_train_samples_total 50\n")
    assert compute_series(chart, before, now, 2.0) == {"rows trained": 25.0}
    assert compute_series(chart, {}, now, 2.0) == {}


def test_quantiles_are_of_the_observations_between_two_reads() -> None:
    name = "monolith_event_to_servable_seconds_bucket"
    lines = '{name}{{model="m",le="0.1"}} {a}\n{name}{{model="m",le="1"}} {b}\n{name}{{model="m",le="+Inf"}} {c}\n'
    before = parse_samples(lines.format(name=name, a=1000, b=1000, c=1000))
    now = parse_samples(lines.format(name=name, a=1000, b=1010, c=1010))
    assert compute_series(CHART["freshness"], before, now, 1.0) == {"m p50": 1.0, "m p99": 1.0}
    assert compute_series(CHART["freshness"], now, now, 1.0) == {}
    assert math.isnan(quantile({}, 0.5))


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    for samples in parse_samples(text).values():
        assert all(isinstance(sample.value, float) for sample in samples)


def test_labels_keep_their_escaped_signs() -> None:
    [sample] = parse_samples(r'a{b="x\"y\\z\n",c="d"} +Inf 123')["a"]
    assert sample.labels == {"b": 'x"y\\z\n', "c": "d"}
    assert sample.value == math.inf
    assert find_role(parse_samples("monolith_ps_up 1\n")) == "parameter server"


@pytest.mark.parametrize("sign", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_a_label_with_a_line_separator_other_than_a_newline_stays_in_its_line(sign: str) -> None:
    text = render([(names.TABLE_ROWS, [((f"a{sign}monolith_ps_up 0",), 7)])])
    found = parse_samples(text)
    assert list(found) == ["monolith_table_rows"]
    assert found["monolith_table_rows"][0].labels == {"table": f"a{sign}monolith_ps_up 0"}


@pytest.mark.parametrize(
    "odd",
    [
        'monolith_sync_cut{model="x"} NaN',
        'monolith_sync_cut{model="x"} +Inf',
        'monolith_table_rows{table="a"} 1e308\nmonolith_table_rows{table="a"} 1e308',
        'monolith_table_rows{table="a"} +Inf\nmonolith_table_rows{table="a"} -Inf',
        'monolith_event_stage_seconds_bucket{stage="x",le="short"} 3',
        'monolith_event_stage_seconds_bucket{stage="x",le="nan"} NaN',
    ],
)
def test_an_odd_number_does_not_hide_the_other_metrics_of_its_target(odd: str) -> None:
    with MetricsPage(lambda: f"{odd}\nmonolith_train_loss 0.5\n") as page:
        scraper = Scraper([ScrapeTarget("odd", f"127.0.0.1:{page.port}")], interval_s=0.02)
        try:
            eventually(lambda: scraper.state()["targets"][0]["error"] != "not read yet", timeout_s=30)
            state = scraper.state()
        finally:
            scraper.close()
    assert state["targets"][0]["error"] is None
    assert state["points"][0]["values"]["loss"] == {"loss": 0.5}
    json.dumps(state, allow_nan=False)


def test_a_target_with_ever_new_labels_gets_a_bounded_number_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraper_module, "_MAX_SERIES", 5)
    text = "".join(f'monolith_table_rows{{table="{number}"}} 1\n' for number in range(50))
    with MetricsPage(lambda: text) as page:
        scraper = Scraper([ScrapeTarget("many", f"127.0.0.1:{page.port}")], interval_s=0.02)
        try:
            eventually(lambda: len(scraper.state()["points"]) >= 1, timeout_s=30)
            point = scraper.state()["points"][0]
        finally:
            scraper.close()
    assert len(point["values"]["rows"]) == 5


def test_a_page_that_is_too_long_is_an_error_and_not_a_number_that_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraper_module, "_MAX_BYTES", 30)
    with MetricsPage(lambda: "monolith_train_loss 123456789012345\n") as page:
        scraper = Scraper([ScrapeTarget("long", f"127.0.0.1:{page.port}")], interval_s=0.02)
        try:
            eventually(lambda: "more than 30 bytes" in str(scraper.state()["targets"][0]["error"]), timeout_s=30)
            assert scraper.state()["points"] == []
        finally:
            scraper.close()


def test_an_answer_of_a_model_server_that_breaks_off_is_a_bad_gateway() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for head in (b"200 OK", b"404 Not Found"):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(30)
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 " + head + b"\r\nContent-Length: 100\r\n\r\n{")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        predictor = Predictor(f"127.0.0.1:{listener.getsockname()[1]}")
        assert predictor.predict("m", {})[0] == 502
        assert predictor.predict("m", {})[0] == 404
        thread.join(30)


def test_wrong_targets_and_taken_ports_are_refused(scraper: Scraper) -> None:
    with pytest.raises(ConfigError, match="target is 'host'"):
        parse_target("host")
    for address in ("host:0", "host:65537", "host:\u00b2", "host:1:2", "http://host:80"):
        with pytest.raises(ConfigError, match=f"target .*{address}"):
            parse_target(address)
    with pytest.raises(ConfigError, match="address is 'host'"):
        Predictor("host")
    with pytest.raises(ConfigError, match="targets is empty"):
        Scraper([])
    with pytest.raises(ConfigError, match="different names"):
        Scraper([parse_target("a:1"), parse_target("a:1")])
    with DashboardServer(scraper) as server, pytest.raises(ClusterError, match=str(server.port)):
        DashboardServer(scraper, port=server.port)


def test_charts_and_roles_name_metrics_that_exist() -> None:
    known = {metric.name for metric in names.ALL}
    used = {measure.metric for chart in CHARTS for measure in chart.measures} | {name for name, _ in ROLES}
    assert used - known == set()
