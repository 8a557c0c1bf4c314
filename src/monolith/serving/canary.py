"""The canary: what training publishes is tried on a sample of requests before anybody is answered with it.

A new state is built beside the one in use, from the rows that the sample needs and those that the publish changes, and
both score the sample. Where the difference is over a limit, the new state is never shown, and the next one is compared
with what is shown then. Requests wait for nothing of this. How cuts are found and applied is not known here.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError, CutRefused, InvalidRequest
from monolith.data import Batch
from monolith.data.sources.base import RecordKind
from monolith.embedding import MultiTable
from monolith.serving.canary_measures import CanaryLimits, Measures, measured
from monolith.serving.canary_sample import RecordSample, read_sample
from monolith.serving.servable import Servable
from monolith.telemetry import names as metrics
from monolith.telemetry.text import Samples

__all__ = ["Canary", "CanaryLimits", "CanarySettings", "Guarded"]

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["passed", "refused", "no_sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """What is tried, and what is too much."""

    limits: CanaryLimits = field(default_factory=CanaryLimits)
    records: Path | None = None
    """File with the sample; None = recent requests."""
    record_kind: RecordKind = "example_batch"
    """What the records of the file are."""
    max_rows: int = 1024
    """Rows of the sample."""
    min_rows: int = 32
    """With fewer rows of recent requests nothing can be said, and everything is shown."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "min_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"the canary's {name} is {getattr(self, name)}; give at least 1")
        if self.min_rows > self.max_rows:
            raise ConfigError(f"the canary's min_rows is {self.min_rows} and max_rows {self.max_rows}; give fewer")


@dataclass(frozen=True, slots=True)
class _Trial:
    is_refused: bool
    measures: Measures | None


class Canary:
    """Tries states of models, by the names that exports give them. Safe to use from several threads.

    Args:
        settings: What is tried, and what is too much.

    Raises:
        ConfigError: The file of records cannot be used.
    """

    def __init__(self, settings: CanarySettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._recent: dict[str, RecordSample] = {}
        self._given = (
            None if settings.records is None else read_sample(settings.records, settings.record_kind, settings.max_rows)
        )
        self._served: dict[tuple[str, int], Servable] = {}
        self._last: dict[tuple[str, int], _Trial] = {}
        self._trials: Counter[tuple[str, Outcome]] = Counter()

    def guarded(self, servable: Servable) -> Guarded:
        """Return a version as something to be moved, which tries every state before it shows it."""
        return Guarded(self, servable)

    def admit(self, servable: Servable) -> None:
        """Let a version that was loaded be served, and keep the requests that it answers as a sample.

        Raises:
            CutRefused: It scores too differently from the newest one that is served.
        """
        key = servable.name, servable.version
        with self._lock:
            others = [each for (name, _), each in self._served.items() if name == servable.name]
        if others and servable.can_score:
            newest = max(others, key=lambda each: each.version)
            self._try(servable, newest, lambda batches: servable)
        with self._lock:
            self._served[key] = servable
            gone = [each for each in self._last if each[0] == servable.name and each not in self._served]
            for each in gone:  # versions that were refused, and are of the past now
                del self._last[each]
        servable.before_close(lambda: self._leave(servable))
        if self._given is None and servable.can_score:
            servable.on_scored = self._recent_of(servable.name).add

    def _leave(self, servable: Servable) -> None:
        key = servable.name, servable.version
        with self._lock:
            if self._served.get(key) is servable:
                del self._served[key]
                self._last.pop(key, None)

    def check(self, servable: Servable, foresee: Callable[[Sequence[Batch]], Servable]) -> None:
        """Try what a version will be, given as a model beside it.

        Raises:
            CutRefused: A measure is over its limit.
        """
        if servable.can_score:
            self._try(servable, servable, foresee)

    def _try(self, servable: Servable, old: Servable, foresee: Callable[[Sequence[Batch]], Servable]) -> None:
        batches = self._batches(servable)
        before = batches if old is servable else self._batches(old)
        if not batches or not before:
            self._note(servable, "no_sample", None)
            return
        found = measured(
            _scores(old, before),
            _scores(foresee(batches), batches),
            np.concatenate([batch.label for batch in batches]),
            np.concatenate([batch.label_mask for batch in batches]),
        )
        over = found.over(self._settings.limits)
        self._note(servable, "refused" if over else "passed", found)
        if over:
            rows = sum(batch.size for batch in batches)
            raise CutRefused(
                f"the canary refuses it for model {servable.name!r} version {servable.version}: {'; '.join(over)}; "
                f"tried on {rows} rows; the last good state is shown on: repair what is published, or change the limits"
            )

    def _batches(self, servable: Servable) -> list[Batch]:
        sample = self._given or self._recent_of(servable.name)
        if self._given is None and sample.rows < self._settings.min_rows:
            return []
        try:
            return [servable.read(records, kind) for kind, records in sample.by_kind().items()]
        except InvalidRequest as error:
            if self._given is not None:
                raise ConfigError(
                    f"canary_records is '{self._settings.records}', which does not fit model {servable.name!r}: {error}"
                ) from error
            logger.warning("recent requests do not fit another version model=%s error=%s", servable.name, error)
            return []

    def _recent_of(self, name: str) -> RecordSample:
        with self._lock:
            return self._recent.setdefault(name, RecordSample(self._settings.max_rows))

    def _note(self, servable: Servable, outcome: Outcome, found: Measures | None) -> None:
        key = servable.name, servable.version
        with self._lock:
            self._trials[servable.name, outcome] += 1
            was = self._last.get(key)
            self._last[key] = _Trial(outcome == "refused", was.measures if found is None and was is not None else found)
        if was is not None and was.is_refused and outcome != "refused":
            logger.info("a published state passes the canary again model=%s version=%d", *key)

    def samples(self) -> list[Samples]:
        """Return the numbers of now."""
        with self._lock:
            last = [((name, str(version)), each) for (name, version), each in self._last.items()]
            trials = [((name, outcome), count) for (name, outcome), count in self._trials.items()]
            recent = [((name,), each.rows) for name, each in self._recent.items()]
        limits = self._settings.limits
        values = {each.name: getattr(limits, each.name) for each in fields(limits)}
        return [
            (metrics.CANARY_TRIALS_TOTAL, trials),
            (metrics.CANARY_HELD, [(key, int(each.is_refused)) for key, each in last]),
            (
                metrics.CANARY_MEASURE,
                [
                    ((*key, measure), value)
                    for key, each in last
                    if each.measures is not None
                    for measure, value in each.measures.new.items()
                ],
            ),
            (metrics.CANARY_LIMIT, [((name,), value) for name, value in values.items() if value is not None]),
            (metrics.CANARY_ROWS, recent if self._given is None else [(("",), self._given.rows)]),
        ]


class Guarded:
    """A version that is moved only to states that the canary lets pass. A ``Target`` of a follower."""

    def __init__(self, canary: Canary, servable: Servable) -> None:
        self._canary = canary
        self._servable = servable

    @property
    def tables(self) -> MultiTable | None:
        """Its rows."""
        return self._servable.tables

    @property
    def shard(self) -> tuple[int, int]:
        """(index, count) of the ids that its tables hold."""
        return self._servable.shard

    @property
    def has_weights(self) -> bool:
        """Whether it has dense weights."""
        return self._servable.has_weights

    def apply(
        self,
        update: Callable[[MultiTable], None] | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
        **more: Any,
    ) -> None:
        """Try a state, and then move to it as ``Servable.apply`` does.

        Raises:
            CutRefused: It is not shown.
        """
        servable = self._servable
        self._canary.check(servable, lambda batches: servable.foreseen(batches, update, weights=weights, tables=tables))
        servable.apply(update, weights=weights, tables=tables, **more)


def _scores(servable: Servable, batches: Sequence[Batch]) -> dict[str, NDArray[Any]]:
    found = [servable.predict_batch(batch) for batch in batches]
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
