"""The dashboard in real Chromium: charts, both themes, phone width, keyboard, boxes. ``make test-browser`` runs it."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.core.free_ports import free_port
from monolith.dashboard import DashboardServer, Scraper
from monolith.dashboard.boxes import Explainer
from monolith.dashboard.scraper import ScrapeTarget
from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.ps import ParameterServer, RemoteStore, ServerConfig
from monolith.telemetry.page import MetricsPage

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
PICTURES = os.environ.get("DASHBOARD_PICTURES")
"""Folder for screenshots; None = take none."""


class Metrics:
    """Metrics of a trainer and a server that move with the clock."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()

    def trainer(self) -> str:
        age = time.monotonic() - self._begin_s
        wave = math.sin(age)
        return (
            f"monolith_train_step {int(age * 100)}\nmonolith_train_samples_total {int(age * 52000)}\n"
            f"monolith_train_loss {0.5 + 0.02 * wave}\n"
            f'monolith_train_head{{head="ctr",metric="auc"}} {0.77 + 0.01 * wave}\n'
            f'monolith_demo_auc{{kind="batch"}} {0.71 + 0.01 * wave}\nmonolith_demo_auc{{kind="best possible"}} 0.83\n'
            f'monolith_table_rows{{table="user_id"}} {5000 + int(age * 10)}\n'
            'monolith_table_rows{table="item_id"} 2000\n'
            f'monolith_table_bytes{{table="user_id"}} {700_000 + int(age * 900)}\n'
            f"monolith_publish_age_seconds {age % 1}\n"
        )

    def server(self) -> str:
        age = time.monotonic() - self._begin_s
        count = int(age * 300)
        labels = 'model="clicks"'
        return (
            f'monolith_serving_up 1\nmonolith_sync_cut{{{labels},version="1"}} {int(age * 2)}\n'
            f'monolith_serving_requests_total{{{labels},api="rest",code="OK"}} {count}\n'
            f'monolith_event_to_servable_seconds_bucket{{{labels},le="0.5"}} {count}\n'
            f'monolith_event_to_servable_seconds_bucket{{{labels},le="1"}} {int(count * 1.2)}\n'
            f'monolith_event_to_servable_seconds_bucket{{{labels},le="+Inf"}} {int(count * 1.2)}\n'
            f'monolith_serving_request_seconds_bucket{{{labels},api="rest",le="0.001"}} {count}\n'
            f'monolith_serving_request_seconds_bucket{{{labels},api="rest",le="+Inf"}} {count}\n'
        )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    metrics = Metrics()
    spec = TableSpec("user_id", [SliceSpec(2, optimizer=Sgd(1.0))])
    with ExitStack() as stack:
        trainer = stack.enter_context(MetricsPage(metrics.trainer))
        server = stack.enter_context(MetricsPage(metrics.server))
        ps = stack.enter_context(ParameterServer(ServerConfig()))
        store = stack.enter_context(RemoteStore([ps.address], [spec]))
        store.push({"user_id": np.array([42])}, {"user_id": np.ones((1, 2), np.float32)})
        scraper = Scraper(
            [
                ScrapeTarget("trainer", f"127.0.0.1:{trainer.port}"),
                ScrapeTarget("server", f"127.0.0.1:{server.port}"),
                ScrapeTarget("batch server", f"127.0.0.1:{free_port()}"),
            ],
            interval_s=0.25,
        )
        stack.callback(scraper.close)
        explainer = Explainer([ps.address])
        stack.callback(explainer.close)
        page = stack.enter_context(DashboardServer(scraper, explainer=explainer))
        yield f"http://127.0.0.1:{page.port}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    options = getattr(request, "param", {})
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("requestfailed", lambda failed: errors.append(failed.url))
    opened.goto(address)
    opened.wait_for_selector("#chart-auc canvas")
    yield opened
    opened.unroute_all()
    context.close()
    assert errors == []


def picture(page: Any, name: str) -> None:
    if PICTURES is not None:
        page.wait_for_timeout(15_000)
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


def test_charts_of_all_metrics_are_drawn_and_move(page: Any) -> None:
    for chart in ("auc", "loss", "freshness", "throughput", "latency", "rows", "memory", "lag"):
        page.wait_for_selector(f"#chart-{chart} canvas")
    before = page.inner_text("#chart-throughput dd")
    page.wait_for_function("text => document.querySelector('#chart-throughput dd').innerText !== text", arg=before)
    drawing = "document.querySelector('#chart-auc canvas').getContext('2d').getImageData(0, 0, 600, 150).data"
    assert page.evaluate(f"() => [...{drawing}].some(Boolean)"), "the canvas is empty"
    picture(page, "dashboard-light")


def test_a_process_that_does_not_answer_is_named(page: Any) -> None:
    page.wait_for_selector("#targets li.bad")
    assert "batch server" in page.inner_text("#targets li.bad")
    assert "refused" in page.inner_text("#targets li.bad")
    assert "1 of 3" in page.inner_text("#status")


def test_recent_cuts_are_listed_newest_first(page: Any) -> None:
    page.wait_for_function("() => document.querySelectorAll('#cuts tr').length > 2")
    numbers = [
        int(cell) for cell in page.eval_on_selector_all("#cuts tr td:last-child", "all => all.map(e => e.innerText)")
    ]
    assert numbers == sorted(numbers, reverse=True)


def test_the_theme_button_switches_and_charts_are_drawn_again(page: Any) -> None:
    light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") != light
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    page.wait_for_selector("#chart-auc canvas")
    picture(page, "dashboard-dark")


@pytest.mark.parametrize("page", [{"viewport": {"width": 360, "height": 740}, "is_mobile": True}], indirect=True)
def test_a_phone_shows_one_column_without_sideways_scrolling(page: Any) -> None:
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    picture(page, "dashboard-phone")


def test_charts_stay_when_the_window_changes_its_size(page: Any) -> None:
    page.evaluate("() => { window.lost = 0; addEventListener('resize', () => setTimeout(() => { "
                  "if (!document.querySelector('#chart-auc canvas')) window.lost += 1; })); }")  # fmt: skip
    for width in (900, 500, 1100):
        page.set_viewport_size({"width": width, "height": 700})
    page.wait_for_timeout(200)
    assert page.evaluate("() => window.lost") == 0
    assert page.evaluate("() => document.querySelector('#chart-auc canvas') !== null")


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True)
def test_the_page_follows_the_dark_scheme_of_the_system(page: Any) -> None:
    color = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert all(int(part) < 60 for part in re.findall(r"\d+", color)[:3])


def test_the_keyboard_reaches_every_control_in_order(page: Any) -> None:
    page.wait_for_selector("#explain:not([hidden])")
    reached = []
    name = "(e => e.id || e.name || e.innerText)(document.activeElement)"
    for _ in range(6):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(name))
    assert reached[:3] == ["Skip to the charts", "window", "theme"]
    assert "id" in reached


def test_charts_have_texts_for_screen_readers(page: Any) -> None:
    label = page.get_attribute("#chart-auc [role=img]", "aria-label")
    assert re.search(r"AUC, last values: .*best possible 0\.83", label)
    named = "e => e.hasAttribute('aria-label') || e.hasAttribute('aria-labelledby')"
    assert page.eval_on_selector_all("section", f"all => all.every({named})")


def test_the_explain_box_shows_the_sentence_of_the_parameter_server(page: Any) -> None:
    page.fill("#explain input", "42")
    page.keyboard.press("Enter")
    output = "document.querySelector('#explain output').innerText"
    page.wait_for_function(f"() => {output}.includes('user_id')")
    page.fill("#explain input", "<b>x</b>")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => {output}.includes('expected a whole number')")
