"""Canary: compare a new state of a model with the served one on a sample of requests, before the state is served.

``Canary`` builds a preview of the new state from the rows that the sample needs and the rows that the cut changes. Both
states score the sample. If a difference exceeds its limit, the new state is not served, and the next one is compared
with the state served then. Requests do not wait. ``Guarded`` is the follower's target that applies this check.
Thread safe.
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
from typing_extensions import override

from monolith.artifacts.delta_log import Cut
from monolith.core.errors import ConfigError, CutRefused, InvalidRequest
from monolith.data import Batch
from monolith.data.sources.base import RecordKind
from monolith.embedding import MultiTable
from monolith.serving.follow.measures import CanaryLimits, Measures, measure
from monolith.serving.follow.sample import RecordSample, read_sample
from monolith.serving.servable.servable import Servable
from monolith.sync.follower import Target
from monolith.sync.row_updates import Move
from monolith.telemetry import names as metrics
from monolith.telemetry.text import Samples

__all__ = ["Canary", "CanaryLimits", "CanarySettings", "Guarded"]

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["passed", "refused", "no_sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """Sample and limits of the canary."""

    limits: CanaryLimits = field(default_factory=CanaryLimits)
    records: Path | None = None
    """File with the sample; None takes recent requests."""
    record_kind: RecordKind = "example_batch"
    """Type of the file's records."""
    max_rows: int = 1024
    """Largest number of rows in the sample."""
    min_rows: int = 32
    """With fewer rows of recent requests the canary passes every state."""

    def __post_init__(self) -> None:
        for name in ("max_rows", "min_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"the canary's {name} is {getattr(self, name)!r}, expected at least 1")
        if self.min_rows > self.max_rows:
            raise ConfigError(f"canary min_rows is {self.min_rows!r}, expected at most max_rows ({self.max_rows})")


@dataclass(frozen=True, slots=True)
class _Trial:
    is_refused: bool
    measures: Measures | None


class Canary:
    """Checks new states of models, by model name. Thread safe.

    Args:
        settings: Sample and limits.

    Raises:
        ConfigError: The file of records is unusable.
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
        """Return the follower's target for a version; it checks every state before it applies the state."""
        return Guarded(self, servable)

    def admit(self, servable: Servable) -> None:
        """Check a loaded version against the newest served one, and sample its requests from now on.

        Raises:
            CutRefused: A difference exceeds its limit.
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
            for each in gone:  # earlier versions that were refused
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

    def check(self, servable: Servable, preview: Callable[[Sequence[Batch]], Servable]) -> None:
        """Check the next state of a version.

        Args:
            servable: The served version.
            preview: Returns a servable that scores batches with the next state.

        Raises:
            CutRefused: A difference exceeds its limit.
        """
        if servable.can_score:
            self._try(servable, servable, preview)

    def _try(self, servable: Servable, old: Servable, preview: Callable[[Sequence[Batch]], Servable]) -> None:
        batches = self._batches(servable)
        before = batches if old is servable else self._batches(old)
        if not batches or not before:
            self._note(servable, "no_sample", None)
            return
        found = measure(
            _scores(old, before),
            _scores(preview(batches), batches),
            np.concatenate([batch.label for batch in batches]),
            np.concatenate([batch.label_mask for batch in batches]),
        )
        over = found.over(self._settings.limits)
        self._note(servable, "refused" if over else "passed", found)
        if over:
            rows = sum(batch.size for batch in batches)
            raise CutRefused(
                f"canary refused a new state of model {servable.name!r} version {servable.version}: {', '.join(over)} "
                f"on {rows} rows; the last good state stays: repair the published model, or change the limits"
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
                    f"canary_records is '{self._settings.records}', expected records for {servable.name!r}: {error}"
                ) from error
            logger.warning("canary sample does not fit a new version model=%s error=%s", servable.name, error)
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
            logger.info("canary passed after a refusal model=%s version=%d", *key)

    def samples(self) -> list[Samples]:
        """Return the current metrics."""
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


class Guarded(Target):
    """A follower's ``Target`` that applies only states that pass the canary."""

    def __init__(self, canary: Canary, servable: Servable) -> None:
        self._canary = canary
        self._servable = servable

    @property
    @override
    def tables(self) -> MultiTable | None:
        return self._servable.tables

    @property
    @override
    def shard(self) -> tuple[int, int]:
        return self._servable.shard

    @property
    @override
    def has_weights(self) -> bool:
        return self._servable.has_weights

    def apply(
        self,
        move: Move | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Check a state, then apply it as ``Servable.apply`` does.

        Raises:
            CutRefused: The state fails the check and is not applied.
        """
        servable = self._servable
        self._canary.check(servable, lambda batches: servable.preview(batches, move, weights=weights, tables=tables))
        servable.apply(move, weights=weights, tables=tables, cut=cut)


def _scores(servable: Servable, batches: Sequence[Batch]) -> dict[str, NDArray[Any]]:
    found = [servable.predict_batch(batch) for batch in batches]
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
