"""``PageMeasures``: scores and clicks of the shown pages, and the quality of both servers over a span of time.

``Shown`` holds one page. A page counts once its clicks have happened. Threads may share a ``PageMeasures``.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.demo.world.clicks import auc

__all__ = ["PageMeasures", "Quality", "Shown"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """The items of one page, in the order of the request."""

    time_s: float
    live: Floats
    """Scores of the live server, which rank the page."""
    batch: Floats
    """Scores of the batch server for the same items."""
    chance: Floats
    """True chances of a click."""
    click: NDArray[np.bool_]
    request_s: float
    """Duration of the live request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality over a span of time; NaN where it is undefined."""

    rows: int = 0
    clicks: int = 0
    live_auc: float = math.nan
    batch_auc: float = math.nan
    best_auc: float = math.nan
    calibration: float = math.nan
    """Predicted clicks of the live server over true clicks; 1 is ideal."""
    live_top: float = math.nan
    """Share of the clicks on the first quarter of the page, as the live server ranks it."""
    batch_top: float = math.nan
    """The same share, as the batch server would rank the page."""
    best_top: float = math.nan
    """The same share, as the true chances would rank the page."""


class PageMeasures:
    """Collects pages and keeps those of the last ``keep_s`` seconds."""

    def __init__(self, keep_s: float = 120.0) -> None:
        self._keep_s = keep_s
        self._pages: deque[Shown] = deque()
        self._lock = threading.Lock()
        self.pages = 0
        """Number of pages so far."""
        self.rows = 0
        """Number of impressions so far."""

    def add(self, page: Shown) -> None:
        """Add a page."""
        with self._lock:
            self._pages.append(page)
            self.pages += 1
            self.rows += len(page.live)
            while self._pages[0].time_s < page.time_s - self._keep_s:
                self._pages.popleft()

    def quality(self, since_s: float) -> Quality:
        """Return the quality of the pages since a time."""
        pages = self._since(since_s)
        if not pages:
            return Quality()
        click = np.concatenate([page.click for page in pages])
        live = np.concatenate([page.live for page in pages])
        clicks = int(click.sum())
        return Quality(
            rows=len(click),
            clicks=clicks,
            live_auc=_auc(live, click),
            batch_auc=_auc(np.concatenate([page.batch for page in pages]), click),
            best_auc=_auc(np.concatenate([page.chance for page in pages]), click),
            calibration=float(live.sum() / clicks) if clicks else math.nan,
            live_top=_top_share([(page.live, page.click) for page in pages]),
            batch_top=_top_share([(page.batch, page.click) for page in pages]),
            best_top=_top_share([(page.chance, page.click) for page in pages]),
        )

    def request_seconds(self, since_s: float) -> Floats:
        """Return the durations of the live requests since a time."""
        return np.array([page.request_s for page in self._since(since_s)])

    def _since(self, since_s: float) -> list[Shown]:
        with self._lock:
            return [page for page in self._pages if page.time_s >= since_s]


def _auc(scores: Floats, click: NDArray[np.bool_]) -> float:
    try:
        return auc(scores, click)
    except ConfigError:
        return math.nan  # only one kind of label so far


def _top_share(pages: list[tuple[Floats, NDArray[np.bool_]]]) -> float:
    """Return the share of the clicks on the first quarter of each page."""
    clicks = sum(int(click.sum()) for _, click in pages)
    if not clicks:
        return math.nan
    top = sum(
        int(click[np.argsort(-scores, kind="stable")[: max(1, len(click) // 4)]].sum()) for scores, click in pages
    )
    return top / clicks
