"""``Demo``: the whole loop with visitors for some seconds, and one table of its results.

``Demo.run`` starts the processes, lets visitors request and click, and returns a ``DemoResult``. Quality is that of the
second half of the run, after the model has learned something, or of its last two minutes if these are shorter. Files go
to a folder that the end of the run removes, unless it is to be kept.
"""

from __future__ import annotations

import http.client
import json
import math
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import numpy as np

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.demo.loop import Loop, LoopSettings, Progress
from monolith.demo.pages import Buckets, Page
from monolith.demo.visitors import Visitors, VisitorSettings
from monolith.telemetry import names
from monolith.telemetry.page import MetricsPage
from monolith.telemetry.registry import Registry

__all__ = ["STAGES", "Demo", "DemoOptions", "DemoResult"]

STAGES = ("ingest", "join", "train", "publish", "apply")
"""Stages from an event to the server that answers with it."""

_MARKER = ".monolith-demo"  # in the folder of a run, which the next run may remove
_WINDOW_S = 10.0  # of the live AUC
_POLL_S = 0.25
_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of a demonstration."""

    seconds: float = 60.0
    """Seconds of visits, after the start."""
    folder: Path | None = None
    """Folder that keeps the first export for later demonstrations, and the files of this one; None = temporary."""
    with_dashboard: bool = True
    keep: bool = False
    """Whether the files of the run stay."""
    kafka: str | None = None
    zookeeper: str | None = None
    publish_s: float = 1.0
    batch_s: float = 20.0
    visitors: VisitorSettings = field(default_factory=VisitorSettings)

    def __post_init__(self) -> None:
        if not self.seconds >= 1:
            raise ConfigError(f"seconds is {self.seconds!r}, expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Results of a demonstration; NaN where a value is undefined."""

    seconds: float
    events: int
    """Impressions and actions."""
    events_per_s: float
    examples: int
    """Rows that the joiner has written."""
    ids: int
    """Rows of all tables."""
    live_auc: float
    batch_auc: float
    best_auc: float
    """AUC of the true chances: an upper bound, except for luck."""
    calibration: float
    """Predicted clicks over true clicks."""
    live_top: float
    """Share of clicks on the first quarter of a page, as the live server ranks it."""
    batch_top: float
    event_to_servable_p50_s: float
    event_to_servable_p99_s: float
    stages_s: dict[str, float]
    """Mean seconds of each stage."""
    requests_per_s: float
    request_p99_s: float
    failures: int
    """Failed requests and actions."""
    start_s: float
    """Seconds from the start to the first request."""
    first_chart_s: float
    """Seconds from the start to the first live chart of the dashboard."""


class Demo:
    """One demonstration.

    Args:
        options: The options.
        progress: Receives lines for the user.
        clock: Time source.
    """

    def __init__(
        self, options: DemoOptions, progress: Progress = lambda line: None, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._progress = progress
        self._clock = clock or SystemClock()
        self._first_chart_s = math.nan

    @contextmanager
    def run(
        self,
        on_dashboard: Callable[[str], None] = lambda url: None,
        on_quarter: Callable[[DemoResult], None] = lambda result: None,
    ) -> Iterator[DemoResult]:
        """Run the loop and yield its result while all processes still run; the end of the block ends them.

        Args:
            on_dashboard: Called with the address of the dashboard once it shows a live chart.
            on_quarter: Called with the result of the first quarter of the run.

        Raises:
            ClusterError: A process has ended; the text has its last lines.
        """
        begin_s = self._clock.monotonic_s()
        registry = Registry()
        with self._run_folder() as folder, MetricsPage(registry.text) as page:
            loop = Loop(self._loop_settings(folder), self._progress, self._clock)
            try:
                if self._options.with_dashboard:
                    loop.start_dashboard({"visitors": f"127.0.0.1:{page.port}"})
                    self._progress(f"dashboard on {loop.dashboard_url}")
                with loop, Visitors(loop, self._options.visitors, self._clock) as visitors:
                    start_s = self._clock.monotonic_s() - begin_s
                    self._progress(f"the loop runs after {start_s:.1f} s; visitors arrive")
                    yield self._watch(loop, visitors, registry, begin_s, on_dashboard, on_quarter)
            finally:
                loop.close()

    # --- folders ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _run_folder(self) -> Iterator[Path]:
        root = self._options.folder
        if root is None:
            folder = Path(tempfile.mkdtemp(prefix="monolith-demo-"))
        else:
            folder = root / "run"
            _remove_earlier_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARKER).touch()
        try:
            yield folder
        finally:
            if self._options.keep:
                self._progress(f"files are kept in {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _loop_settings(self, folder: Path) -> LoopSettings:
        options = self._options
        is_shared = options.kafka is not None or options.zookeeper is not None
        return LoopSettings(
            folder=folder,
            models=options.folder,
            publish_s=options.publish_s,
            batch_s=options.batch_s,
            kafka=options.kafka,
            zookeeper=options.zookeeper,
            prefix=f"demo-{secrets.token_hex(4)}-" if is_shared else "",
        )

    # --- watching -----------------------------------------------------------------------------------------------------

    def _watch(
        self,
        loop: Loop,
        visitors: Visitors,
        registry: Registry,
        begin_s: float,
        on_dashboard: Callable[[str], None],
        on_quarter: Callable[[DemoResult], None],
    ) -> DemoResult:
        """Watch the run to its end, and measure its second half; also the second half of its first quarter."""
        seconds = self._options.seconds
        first_s = last_line_s = self._clock.monotonic_s()
        moments: list[_Moment] = []
        shares = (1 / 8, 1 / 4, 1 / 2)
        while (now_s := self._clock.monotonic_s()) - first_s < seconds:
            loop.check()
            self._export(registry, visitors)
            if math.isnan(self._first_chart_s) and self._has_chart(loop):
                self._first_chart_s = now_s - begin_s
                self._progress(f"first live chart after {self._first_chart_s:.1f} s on {loop.dashboard_url}")
                on_dashboard(loop.dashboard_url)
            if len(moments) < len(shares) and now_s - first_s >= seconds * shares[len(moments)]:
                moments.append(self._take_moment(loop, visitors))
                if len(moments) == 2:
                    on_quarter(self._measure(moments[0], moments[1], visitors, begin_s, first_s))
            if now_s - last_line_s >= _LINE_EVERY_S:
                last_line_s = now_s
                self._progress(self._line(now_s - first_s, visitors))
            self._clock.sleep_s(_POLL_S)
        end = self._take_moment(loop, visitors)
        half = moments[-1] if moments else end
        return self._measure(half, end, visitors, begin_s, first_s)

    def _take_moment(self, loop: Loop, visitors: Visitors) -> _Moment:
        pages = {name: page for name in loop.targets if (page := loop.page(name)) is not None}
        return _Moment(self._clock.monotonic_s(), self._clock.now_s(), visitors.events, visitors.measures.pages, pages)

    def _measure(self, half: _Moment, end: _Moment, visitors: Visitors, begin_s: float, first_s: float) -> DemoResult:
        quality = visitors.measures.quality(half.wall_s)
        requests_s = visitors.measures.request_seconds(half.wall_s)
        fresh = _between(half, end, "live", names.EVENT_TO_SERVABLE_SECONDS.name)
        stages = {
            stage: _between(
                half, end, "live" if stage == "apply" else "trainer", names.EVENT_STAGE_SECONDS.name, stage=stage
            ).mean
            for stage in STAGES
        }
        span_s = max(end.monotonic_s - half.monotonic_s, 1e-9)
        return DemoResult(
            seconds=end.monotonic_s - first_s,
            events=end.events,
            events_per_s=(end.events - half.events) / span_s,
            examples=int(end.page("joiner").total(names.JOIN_ROWS_TOTAL.name)),
            ids=int(sum(end.page(name).total(names.TABLE_ROWS.name) for name in end.pages if name.startswith("ps-"))),
            live_auc=quality.live_auc,
            batch_auc=quality.batch_auc,
            best_auc=quality.best_auc,
            calibration=quality.calibration,
            live_top=quality.live_top,
            batch_top=quality.batch_top,
            event_to_servable_p50_s=fresh.quantile(0.5),
            event_to_servable_p99_s=fresh.quantile(0.99),
            stages_s=stages,
            requests_per_s=(end.requests - half.requests) / span_s,
            request_p99_s=float(np.quantile(requests_s, 0.99)) if len(requests_s) else math.nan,
            failures=visitors.failures,
            start_s=first_s - begin_s,
            first_chart_s=self._first_chart_s,
        )

    def _line(self, elapsed_s: float, visitors: Visitors) -> str:
        quality = visitors.measures.quality(self._clock.now_s() - _WINDOW_S)
        return (
            f"{elapsed_s:4.0f} s: {visitors.events:,} events, AUC live {quality.live_auc:.3f}, "
            f"batch {quality.batch_auc:.3f}, best possible {quality.best_auc:.3f}"
        )

    def _export(self, registry: Registry, visitors: Visitors) -> None:
        quality = visitors.measures.quality(self._clock.now_s() - _WINDOW_S)
        for kind, value in (
            ("real-time", quality.live_auc),
            ("batch", quality.batch_auc),
            ("best possible", quality.best_auc),
        ):
            if math.isfinite(value):
                registry.export(names.DEMO_AUC, value, (kind,))

    def _has_chart(self, loop: Loop) -> bool:
        """Return whether the dashboard shows the AUC of the live server."""
        if not self._options.with_dashboard:
            return False
        try:
            with build_opener(ProxyHandler({})).open(f"{loop.dashboard_url}api/state", timeout=2.0) as answer:
                state = json.loads(answer.read())
        except (URLError, OSError, http.client.HTTPException, ValueError):
            return False
        return any("auc" in point["values"] for point in state["points"])


def _remove_earlier_run(folder: Path) -> None:
    """Remove the files of an earlier demonstration, and nothing else."""
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / _MARKER).exists()):
        raise ConfigError(
            f"folder of the run is '{folder}', expected an absent or empty folder, or one of an earlier demonstration; "
            "move its files, or pass another --folder"
        )
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Moment:
    """Counts and metrics pages at one moment of a run."""

    monotonic_s: float
    wall_s: float
    events: int
    requests: int
    pages: Mapping[str, Page]

    def page(self, process: str) -> Page:
        return self.pages.get(process, Page())


def _between(before: _Moment, after: _Moment, process: str, name: str, **labels: str) -> Buckets:
    """Return the observations of a histogram between two moments."""
    return after.page(process).buckets(name, **labels).since(before.page(process).buckets(name, **labels))
