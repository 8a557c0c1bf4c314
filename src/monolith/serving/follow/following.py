"""Load models that follow a publisher, and report how far each is behind.

``Following`` is the loader of a server with ``--sync-from``. It starts one ``Follower`` per version, and one
``Subscription`` per publisher address or ``FeedDownload`` per URL. Thread safe.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from monolith.artifacts.delta_log import Cut
from monolith.artifacts.delta_log.event_ages import AGE_BOUNDS_S
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.core.scratch_folder import ScratchFolder
from monolith.core.storage import is_url
from monolith.rpc.security import Security
from monolith.serving.follow.canary import Canary
from monolith.serving.servable.servable import Servable
from monolith.sync.follower import Follower, FollowerStatus
from monolith.sync.remote_feed import FeedDownload
from monolith.sync.subscription import Subscription
from monolith.telemetry import names as metrics
from monolith.telemetry.histogram import Histogram
from monolith.telemetry.text import Samples

__all__ = ["Following", "Source", "FeedSettings", "FeedSource", "parse_sources"]

logger = logging.getLogger(__name__)

_ADDRESS = re.compile(r"[^/\\]+:[0-9]+")

_BOUNDS_US = tuple(
    int(seconds * 1e6) for seconds in (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 30, 60, 300, 3600, 86400)
)
_AGE_BOUNDS_US = tuple(int(seconds * 1e6) for seconds in AGE_BOUNDS_S)


@dataclass(frozen=True, slots=True)
class FeedSource:
    """Publisher that is followed over the network."""

    address: str
    """``host:port`` of a publisher, or the URL that it publishes to."""


Source: TypeAlias = Path | FeedSource
"""Source of cuts: a folder that this process can read, or a publisher's address or URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Settings of subscriptions."""

    cache: Path | None = None
    """Folder of the received files; None uses a temporary folder."""
    security: Security = field(default_factory=Security)
    """TLS and token of the publishers."""
    first_cut_s: float = 10.0
    """How long a load waits for the publisher's first cut. Then the version is served as exported."""


def parse_sources(given: list[str]) -> dict[str, Source]:
    """Return the source of each model by name; the empty name stands for all other models.

    >>> parse_sources(["runs/clicks/published"])
    {'': PosixPath('runs/clicks/published')}
    >>> parse_sources(["clicks=10.0.0.7:8600"])
    {'clicks': FeedSource(address='10.0.0.7:8600')}

    Args:
        given: ``FOLDER``, ``URL`` or ``host:port``, with the prefix ``MODEL=`` for one model of several. A text without
            a slash that ends in a colon and digits is an address. A URL stands for every model.

    Raises:
        ConfigError: A text has no source, or a model appears twice.
    """
    sources: dict[str, Source] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or is_url(text):
            name, folder = "", text
        if not folder:
            raise ConfigError(f"--sync-from is {text!r}, expected FOLDER, URL or host:port, or MODEL=...")
        if name in sources:
            raise ConfigError(f"--sync-from is set twice for {name or 'every model'}, expected one source per model")
        is_feed = _ADDRESS.fullmatch(folder) or is_url(folder)
        sources[name] = FeedSource(folder) if is_feed else Path(folder)
    return sources


class Following:
    """``Loader`` that moves each version to the newest cut before it is served, and follows from then on.

    A version whose cuts cannot be applied is served as exported, or at its last cut. Logs and metrics show the failure.

    Args:
        load: Loads a version as exported.
        sources: Source by the model's name in the export; the empty name stands for all other models.
        clock: Clock of the lag.
        poll_s: Seconds between two looks for a new cut.
        feeds: Settings of subscriptions.
        canary: Checks every cut and every version before it is served.
    """

    def __init__(
        self,
        load: Callable[[Path], Servable],
        sources: Mapping[str, Source],
        *,
        clock: Clock | None = None,
        poll_s: float = 0.05,
        feeds: FeedSettings | None = None,
        canary: Canary | None = None,
    ) -> None:
        self._load = load
        self._canary = canary
        self._sources = sources
        self._clock = clock or SystemClock()
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._feeds = feeds or FeedSettings()
        self._subscriptions: dict[str, Subscription | FeedDownload] = {}
        self._scratch: ScratchFolder | None = None
        self._followers: dict[Servable, Follower] = {}
        self._addresses: dict[Servable, str] = {}
        self._waits: dict[str, Histogram] = defaultdict(lambda: Histogram(_BOUNDS_US))
        self._events: dict[str, Histogram] = defaultdict(lambda: Histogram(_AGE_BOUNDS_US))
        self._counted: dict[str, Cut] = {}
        self._apply = Histogram(metrics.EVENT_STAGE_SECONDS.bounds_us)

    def __call__(self, folder: Path) -> Servable:
        """Load the version in a folder."""
        servable = self._load(folder)
        source = self._sources.get(servable.name, self._sources.get(""))
        if source is None:
            if self._sources:
                logger.warning(
                    "no --sync-from names this model, serving its export model=%s/%d names=%s",
                    servable.name,
                    servable.version,
                    ",".join(sorted(self._sources)),
                )
            self._admit(servable)
            return servable
        servable.mark_following()
        root = self._subscribe(source.address) if isinstance(source, FeedSource) else source
        follower = Follower(
            root,
            servable if self._canary is None else self._canary.guarded(servable),
            clock=self._clock,
            poll_s=self._poll_s,
            name=f"{servable.name}/{servable.version}",
            on_applied=lambda cut: self._applied(servable.name, cut),
            on_damaged=lambda: self._renew(source),
            is_part=servable.is_part,
        )
        follower.try_step()
        if follower.status.newest is None and not follower.status.error:
            logger.warning(
                "no cut is published yet, serving the export model=%s/%d source=%s",
                servable.name,
                servable.version,
                source.address if isinstance(source, FeedSource) else source,
            )
        self._admit(servable)
        with self._lock:
            self._followers[servable] = follower
            if isinstance(source, FeedSource):
                self._addresses[servable] = source.address
        servable.before_close(lambda: self._leave(servable))
        follower.start()
        return servable

    def _subscribe(self, address: str) -> Path:
        """Return the cache folder of a publisher; the first call subscribes."""
        with self._lock:
            subscription = self._subscriptions.get(address)
            if subscription is None:
                name = re.sub(r"[^\w.-]", "_", address)
                if is_url(address):
                    subscription = FeedDownload(address, self._cache() / name)
                else:
                    subscription = Subscription(address, self._cache() / name, security=self._feeds.security)
                self._subscriptions[address] = subscription
                subscription.start()
        subscription.wait_for_first(self._feeds.first_cut_s)
        return subscription.folder

    def _renew(self, source: Source) -> None:
        """Request the files of a source again, if they came from a publisher."""
        with self._lock:
            subscription = self._subscriptions.get(source.address) if isinstance(source, FeedSource) else None
        if subscription is not None:
            subscription.renew()

    def _cache(self) -> Path:
        if self._feeds.cache is not None:
            return self._feeds.cache
        if self._scratch is None:
            self._scratch = ScratchFolder("monolith-sync-")
        return self._scratch.path

    def close(self) -> None:
        """Close the subscriptions. A second call does nothing."""
        with self._lock:
            ended, self._subscriptions = list(self._subscriptions.values()), {}
            scratch, self._scratch = self._scratch, None
        for each in ended:
            each.close()
        if scratch is not None:
            scratch.close()

    def _admit(self, servable: Servable) -> None:
        if self._canary is None:
            return
        try:
            self._canary.admit(servable)
        except BaseException:
            servable.close()
            raise

    def _leave(self, servable: Servable) -> None:
        with self._lock:
            follower = self._followers.pop(servable)
            self._addresses.pop(servable, None)
        follower.close()

    def _applied(self, model: str, cut: Cut) -> None:
        now_s = self._clock.now_s()
        with self._lock:
            last = self._counted.get(model)
            if last is not None and cut.number <= last.number and cut.published_at_s <= last.published_at_s:
                return  # another version of the model has shown this cut, or a later one
            wait_s = max(0.0, now_s - cut.published_at_s)
            self._waits[model].add(wait_s)
            if last is not None:  # the first cut of a server waited for the start of the server
                self._apply.add(wait_s)
            counted = cut.number - 1 if last is None else last.number
            self._counted[model] = cut
            if cut.ages:
                self._count_events(model, cut, counted, now_s)
            elif cut.newest_event_s:
                self._events[model].add(max(0.0, now_s - cut.newest_event_s))

    def _count_events(self, model: str, cut: Cut, counted: int, now_s: float) -> None:
        """Count the rows of a cut and of the cuts that it replaces; earlier numbers are of another publisher."""
        for ages in cut.ages:
            if counted < ages.number <= cut.number:
                wait_s = max(0.0, now_s - ages.published_at_s)
                for bucket, count in ages.counts.items():
                    self._events[model].add(AGE_BOUNDS_S[bucket] + wait_s, count)

    def statuses(self) -> dict[tuple[str, int], FollowerStatus]:
        """Return the follower status of every version, by model and version."""
        with self._lock:
            return {
                (each.name, each.version): self._with_connection(each, follower.status)
                for each, follower in self._followers.items()
            }

    def _with_connection(self, servable: Servable, status: FollowerStatus) -> FollowerStatus:
        """Return a status that includes failures of the connection."""
        subscription = self._subscriptions.get(self._addresses.get(servable, ""))
        if subscription is None:
            return status
        return replace(
            status, failures=status.failures + subscription.failures, error=status.error or subscription.error
        )

    def samples(self) -> list[Samples]:
        """Return the current metrics."""
        now_s = self._clock.now_s()
        found = [((name, str(version)), status) for (name, version), status in self.statuses().items()]
        ages = [
            ((*key, of), f"{age_s:.3f}")
            for key, status in found
            for of, age_s in (("cut", status.age_s(now_s)), ("event", status.event_age_s(now_s)))
            if age_s is not None
        ]
        with self._lock:
            threads = [
                ((f"follower {each.name}/{each.version}",), int(follower.is_alive))
                for each, follower in self._followers.items()
            ] + [((f"subscription {address}",), int(each.is_alive)) for address, each in self._subscriptions.items()]
            waits = [((model,), each.snapshot()) for model, each in self._waits.items()]
            events = [((model,), each.snapshot()) for model, each in self._events.items()]
            stages = [(("apply",), self._apply.snapshot())]
        sequences: list[tuple[tuple[str, ...], Any]] = [
            ((*key, str(shard)), sequence)
            for key, status in found
            if status.applied is not None
            for shard, sequence in status.applied.sequences.items()
        ]
        return [
            (metrics.SYNC_AGE_SECONDS, ages),
            (metrics.BACKGROUND_THREAD_UP, threads),
            (metrics.SYNC_CUT, [(key, 0 if each.applied is None else each.applied.number) for key, each in found]),
            (metrics.SYNC_CUTS_BEHIND, [(key, each.cuts_behind) for key, each in found]),
            (metrics.SYNC_LAG_SECONDS, [(key, f"{each.lag_s(now_s):.3f}") for key, each in found]),
            (metrics.SYNC_SEQUENCE, sequences),
            (metrics.SYNC_FAILURES_TOTAL, [(key, each.failures) for key, each in found]),
            (metrics.SYNC_PUBLISH_TO_SERVABLE_SECONDS, waits),
            (metrics.EVENT_TO_SERVABLE_SECONDS, events),
            (metrics.EVENT_STAGE_SECONDS, stages),
            *([] if self._canary is None else self._canary.samples()),
        ]
