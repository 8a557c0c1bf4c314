"""``Visitors``: the users of a drifting world. They request pages, see them ranked by live scores, and click.

A page is one request: candidate items of one user. The live server scores and logs it, so the joiner sees the features
that serving saw. The batch server scores the same page for comparison. Clicks follow after a random delay and go to the
topic of actions. World time runs ``speed`` times as fast as the clock, while event times are those of the clock.

Two threads: one requests pages, one writes due actions. The caller reads ``measures`` and the counts.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError, MonolithError
from monolith.core.thread_group import ThreadGroup
from monolith.data.sources.base import Sink
from monolith.data.sources.urls import open_sink
from monolith.demo.loop import ACTIONS, MODEL, Loop
from monolith.demo.measures import PageMeasures, Shown
from monolith.demo.world.clicks import Clicks
from monolith.demo.world.drifting import Drift, DriftingWorld
from monolith.demo.world.events import CLICK, EventDelays, encode_action, encode_impressions
from monolith.serving import Client

__all__ = ["Visitors", "VisitorSettings"]

logger = logging.getLogger(__name__)

_EVENTS_PER_IMPRESSION = 1.25  # an impression, and a click on a quarter of them
_END_S = 60.0
"""Timeout of the end of the threads: a request and a write of events may be under way."""
_PAUSE_AFTER_ERROR_S = 0.2
_DELAYS = EventDelays(median_s=1.0, slow_median_s=20.0, jitter_s=0.0, duplicate_share=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitorSettings:
    """Settings of the visitors."""

    events_per_s: float = 2_000.0
    """Impressions and actions per second."""
    width: int = 20
    """Items of a page."""
    speed: float = 60.0
    """Seconds of the world in one second."""
    users: int = 400
    items: int = 120
    delays: EventDelays = _DELAYS
    """Delays of clicks."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("events_per_s", "speed"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected a number above 0")

    @property
    def pages_per_s(self) -> float:
        """Requests per second."""
        return self.events_per_s / _EVENTS_PER_IMPRESSION / self.width


class Visitors:
    """Requests pages and clicks from entering the block to leaving it.

    Leaving the block raises ``MonolithError`` if a thread failed or does not end.

    Args:
        loop: The running loop.
        settings: The settings.
        clock: Time source of events.
    """

    def __init__(self, loop: Loop, settings: VisitorSettings | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or VisitorSettings()
        self.measures = PageMeasures()
        """Scores and clicks so far."""
        self.actions = 0
        """Number of clicks written so far."""
        self.failures = 0
        """Number of failed requests so far."""
        self._clock = clock or SystemClock()
        self._live = Client(loop.live_address, model=MODEL, timeout_s=10.0)
        self._batch = Client(loop.batch_address, model=MODEL, timeout_s=10.0)
        self._sink: Sink = open_sink(loop.settings.url(ACTIONS))
        self._due: list[tuple[float, bytes, int, int]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = ThreadGroup({"visitors": self._request_pages, "actions": self._write_actions})

    @property
    def events(self) -> int:
        """Number of impressions and actions so far."""
        return self.measures.rows + self.actions

    def __enter__(self) -> Self:
        self._threads.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        try:
            self._threads.join(_END_S)
        except MonolithError:
            if error is None:
                raise  # else the error of the block is raised, and that of the thread is in the log
        finally:
            self._live.close()
            self._batch.close()
            self._sink.close()

    # --- pages --------------------------------------------------------------------------------------------------------

    def _request_pages(self) -> None:
        settings = self.settings
        rng = np.random.default_rng([settings.seed, 17])
        prefix = rng.bytes(6).hex()
        due_s = self._clock.monotonic_s()
        for number, page in enumerate(self._pages()):
            now_s = self._clock.monotonic_s()
            due_s = max(due_s + 1 / settings.pages_per_s, now_s - 1.0)  # lost time is not made up, beyond a second
            if self._stop.wait(max(0.0, due_s - now_s)):
                return
            try:
                self._show(page, f"{prefix}{number:x}".encode(), rng)
            except MonolithError as error:
                self.failures += 1
                logger.warning("page failed error=%s", error)
                self._stop.wait(_PAUSE_AFTER_ERROR_S)

    def _pages(self) -> Iterator[Clicks]:
        """Yield one page after another; the world makes about a quarter of a second of pages together."""
        settings = self.settings
        world = DriftingWorld(
            users=settings.users,
            items=settings.items,
            drift=Drift.fast(),
            events_per_s=settings.pages_per_s * settings.width / settings.speed,
            seed=settings.seed,
        )
        width = settings.width
        for part in world.pages(max(1, round(settings.pages_per_s / 4)), width):
            for begin in range(0, len(part), width):
                yield part.rows(begin, begin + width)

    def _show(self, page: Clicks, key: bytes, rng: np.random.Generator) -> None:
        time_ms = int(self._clock.now_s() * 1000)
        records = _encode(page, key, time_ms)
        begin_s = self._clock.monotonic_s()
        live = _scores(self._live, records)
        request_s = self._clock.monotonic_s() - begin_s
        batch = _scores(self._batch, records)
        clicked = np.flatnonzero(page.click == 1)
        for row, delay_ms in zip(clicked, self.settings.delays.draw(rng, len(clicked)), strict=True):
            due_s = (time_ms + int(delay_ms)) / 1000
            with self._lock:
                heapq.heappush(self._due, (due_s, key, int(page.item_id[row]), int(page.user_id[row])))
        self.measures.add(Shown(time_ms / 1000, live, batch, page.click_probability, page.click == 1, request_s))

    # --- actions ------------------------------------------------------------------------------------------------------

    def _write_actions(self) -> None:
        while not self._stop.wait(0.005):
            now_s = self._clock.now_s()
            while True:
                with self._lock:
                    if not self._due or self._due[0][0] > now_s:
                        break
                    due_s, key, item, uid = heapq.heappop(self._due)
                time_ms = int(due_s * 1000)
                try:
                    self._sink.write(encode_action(key, item, CLICK, time_ms, uid=uid), key, time_ms)
                    self.actions += 1
                except MonolithError as error:
                    self.failures += 1
                    logger.warning("action failed error=%s", error)


def _encode(page: Clicks, key: bytes, time_ms: int) -> list[bytes]:
    records: list[bytes] = []
    for example, item in zip(encode_impressions(page), page.item_id.tolist(), strict=True):
        line_id = example.line_id
        line_id.item_id = item
        line_id.req_time = time_ms // 1000
        line_id.request_key = key
        line_id.event_time_ms = time_ms
        records.append(example.SerializeToString())
    return records


def _scores(client: Client, records: list[bytes]) -> NDArray[np.float64]:
    (scores,) = client.score(records, "examples").values()
    return np.asarray(scores, np.float64).reshape(-1)
