"""``Scraper``: reads the metrics of all targets on a schedule, and keeps the last minutes of every series.

One thread per target reads, so that a target that does not answer delays no other. All other methods may be called from
any thread.
"""

from __future__ import annotations

import http.client
import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.dashboard.charts import CHARTS, compute_series, find_role
from monolith.dashboard.samples import Samples, parse_samples
from monolith.discovery.address import split_address

__all__ = ["Scraper", "ScrapeTarget", "parse_target"]

logger = logging.getLogger(__name__)

_MAX_BYTES = 16 << 20
_MAX_SERIES = 200
"""Series of one chart and target that are kept; further ones are left out, because every point has a value of each."""
_MAX_CUTS = 50
_DIRECT = build_opener(ProxyHandler({}))  # targets are in the own network


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A process to watch."""

    name: str
    address: str
    """Host and port of its metrics page."""


def parse_target(text: str) -> ScrapeTarget:
    """Return the target of ``HOST:PORT`` or ``NAME=HOST:PORT``.

    >>> parse_target("trainer=127.0.0.1:9100")
    ScrapeTarget(name='trainer', address='127.0.0.1:9100')

    Raises:
        ConfigError: The text has no port, or one out of range.
    """
    name, equals, address = text.rpartition("=")
    try:
        _, port = split_address(address)
    except ConfigError as error:
        raise ConfigError(f"target is {text!r}, expected HOST:PORT or NAME=HOST:PORT: {error}") from None
    if not port:
        raise ConfigError(f"port of target {text!r} is 0, expected 1 to 65535; give the port of its metrics page")
    return ScrapeTarget(name if equals and name else address, address)


@dataclass(slots=True)
class _Watched:
    target: ScrapeTarget
    role: str = "process"
    error: str | None = "not read yet"
    read_s: float = 0.0
    """Monotonic time of the last good read."""
    samples: Samples = field(default_factory=dict)


class Scraper:
    """Reads the targets every ``interval_s`` until ``close``.

    Args:
        targets: The processes to watch.
        interval_s: Seconds between two reads of a target.
        history_s: Seconds of history that the charts show.
        clock: The clock of the reads.
    """

    def __init__(
        self,
        targets: Sequence[ScrapeTarget],
        *,
        interval_s: float = 1.0,
        history_s: float = 900.0,
        clock: Clock | None = None,
    ) -> None:
        if not targets:
            raise ConfigError("targets is empty, expected at least one HOST:PORT")
        if len({target.name for target in targets}) != len(targets):
            raise ConfigError(f"targets are {[target.name for target in targets]}, expected different names")
        self._clock = clock or SystemClock()
        self._interval_s = interval_s
        self._history_s = history_s
        self._lock = threading.Lock()
        self._watched = {target.name: _Watched(target) for target in targets}
        self._points: deque[tuple[float, dict[str, dict[str, float]]]] = deque()
        self._cuts: deque[dict[str, Any]] = deque(maxlen=_MAX_CUTS)
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(each,), name=f"scrape-{each.target.name}", daemon=True)
            for each in self._watched.values()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        for thread in self._threads:
            thread.join(timeout=10)

    def state(self, since_s: float = 0.0) -> dict[str, Any]:
        """Return targets, charts, recent cuts and the points after ``since_s``, as JSON."""
        with self._lock:
            points = [{"time_s": time_s, "values": values} for time_s, values in self._points if time_s > since_s]
            targets = [
                {"name": name, "address": each.target.address, "role": each.role, "error": each.error}
                | {"problems": _problems(each.samples) if each.error is None else []}
                for name, each in self._watched.items()
            ]
            cuts = list(self._cuts)
        charts = [{"id": chart.id, "title": chart.title, "unit": chart.unit, "help": chart.help} for chart in CHARTS]
        return {"now_s": self._clock.now_s(), "targets": targets, "charts": charts, "cuts": cuts, "points": points}

    def tables(self) -> list[str]:
        """Return the names of all tables that a target reports."""
        with self._lock:
            samples = [
                sample for each in self._watched.values() for sample in each.samples.get("monolith_table_rows", ())
            ]
        return sorted({sample.labels.get("table", "") for sample in samples} - {""})

    # --- reading ------------------------------------------------------------------------------------------------------

    def _watch(self, watched: _Watched) -> None:
        while not self._closing.is_set():
            try:
                self._read(watched)
            except (OSError, URLError, http.client.HTTPException, ValueError) as error:
                reason = str(getattr(error, "reason", None) or error) or type(error).__name__
                with self._lock:
                    watched.error = reason
            except Exception:
                logger.exception("scrape failed target=%s", watched.target.name)
                with self._lock:
                    watched.error = "scrape failed; see the log of the dashboard"
            self._closing.wait(self._interval_s)

    def _read(self, watched: _Watched) -> None:
        request = Request(f"http://{watched.target.address}/metrics", headers={"Connection": "close"})
        with _DIRECT.open(request, timeout=max(2.0, self._interval_s)) as response:
            content = response.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"the page has more than {_MAX_BYTES} bytes")
        samples = parse_samples(content.decode("utf-8", "replace"))
        monotonic_s = self._clock.monotonic_s()
        with self._lock:
            now_s = self._clock.now_s()  # under the lock, so that points are in the order of their times
            before, elapsed_s = watched.samples, monotonic_s - watched.read_s
            values = {chart.id: compute_series(chart, before, samples, elapsed_s) for chart in CHARTS}
            self._note_cuts(watched, before, samples, now_s)
            watched.samples, watched.read_s = samples, monotonic_s
            watched.role, watched.error = find_role(samples), None
            self._add_point(now_s, watched.target.name, values)

    def _add_point(self, now_s: float, target: str, values: dict[str, dict[str, float]]) -> None:
        prefix = f"{target} " if len(self._watched) > 1 else ""
        named = {
            chart: {f"{prefix}{name}": value for name, value in itertools.islice(series.items(), _MAX_SERIES)}
            for chart, series in values.items()
            if series
        }
        while self._points and self._points[-1][0] > now_s:  # the clock went back
            self._points.pop()
        if named:
            self._points.append((now_s, named))
        while self._points and self._points[0][0] < now_s - self._history_s:
            self._points.popleft()

    def _note_cuts(self, watched: _Watched, before: Samples, now: Samples, now_s: float) -> None:
        old = {tuple(sorted(each.labels.items())): each.value for each in before.get("monolith_sync_cut", ())}
        for each in now.get("monolith_sync_cut", ()):
            if math.isfinite(each.value) and each.value != old.get(tuple(sorted(each.labels.items()))):
                cut = {"time_s": now_s, "target": watched.target.name, "cut": int(each.value)}
                self._cuts.append(cut | {"model": each.labels.get("model", "")})


def _problems(samples: Samples) -> list[str]:
    """Return one line per part of a process that reports itself as down."""
    found = []
    for name in ("monolith_ps_up", "monolith_serving_up", "monolith_join_group_up", "monolith_background_thread_up"):
        for sample in samples.get(name, ()):
            if sample.value == 0:
                part = name.removeprefix("monolith_").removesuffix("_up").replace("_", " ")
                found.append(" ".join([part, *sample.labels.values(), "is down"]))
    return found
