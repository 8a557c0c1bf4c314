"""Scores that servers with different publish intervals would have given, from one training run.

A version of interval d holds the parameters at the last multiple of d. One trainer makes all versions, and every
version scores the same rows, so differences between intervals are paired. No parameters are copied: at each multiple
of d, the current parameters score all rows up to the next multiple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch
from monolith.training.estimator import Estimator
from monolith.training.hooks import Hook
from monolith.training.run import Run, StepResult

__all__ = ["PublishedScores", "score_published_versions"]

_ROWS_PER_CALL = 8192

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedScores:
    """Labels and times of the rows, and one score per row and interval."""

    time_s: NDArray[np.int64]
    label: NDArray[np.bool_]
    scores: dict[float, Floats]
    """Interval in seconds to scores."""

    def after(self, seconds: float) -> PublishedScores:
        """Return the rows that are more than ``seconds`` after the first row."""
        rows = self.time_s > self.time_s[0] + seconds
        scores = {interval: values[rows] for interval, values in self.scores.items()}
        return PublishedScores(time_s=self.time_s[rows], label=self.label[rows], scores=scores)


def score_published_versions(
    estimator: Estimator,
    batches: Sequence[Batch],
    intervals_s: Sequence[float],
    *,
    head: str | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> PublishedScores:
    """Train on the batches in order, and score each row by the version of every interval.

    Versions change between batches: a batch whose newest row passes a multiple of an interval starts a new version.

    Args:
        estimator: An estimator that has not trained.
        batches: Rows in the order of time, with event times.
        intervals_s: Publish intervals in seconds of event time.
        head: The head to score; None = the only one.
        progress: Called with the share of batches that are trained.

    Raises:
        ConfigError: An interval is not above 0, or the model has several heads and none is named.
        DataError: A row has no event time, or the rows are not in the order of time.
    """
    if not intervals_s or min(intervals_s) <= 0:
        raise ConfigError(f"intervals_s is {list(intervals_s)}, expected numbers of seconds above 0")
    times = _batch_times(batches)
    scorer = _Scorer(estimator, batches, times, intervals_s, head, progress)
    estimator.train(batches, hooks=[scorer], resume_data=False)
    return PublishedScores(
        time_s=np.concatenate([np.asarray(batch.event_time_s) for batch in batches]),
        label=np.concatenate([np.asarray(batch.label)[:, 0] > 0.5 for batch in batches]),
        scores=scorer.scores,
    )


def _batch_times(batches: Sequence[Batch]) -> NDArray[np.int64]:
    """Return the newest event time of each batch."""
    if not batches:
        raise DataError("the data has no rows, expected rows with event times")
    oldest = np.array([int(np.asarray(batch.event_time_s).min()) for batch in batches])
    newest = np.array([int(np.asarray(batch.event_time_s).max()) for batch in batches])
    if oldest.min() <= 0:
        number = int(oldest.argmin())
        raise DataError(f"event time in batch {number} is {oldest[number]}, expected unix seconds; name a time column")
    falls = np.flatnonzero(newest[1:] < newest[:-1])
    if len(falls):
        at = int(falls[0]) + 1
        raise DataError(
            f"newest event time of batch {at} is {newest[at]}, expected at least {newest[at - 1]} of the batch before "
            "it; sort the rows by time"
        )
    return newest


class _Scorer(Hook):
    """Scores the rows of each version at its first batch."""

    def __init__(
        self,
        estimator: Estimator,
        batches: Sequence[Batch],
        times: NDArray[np.int64],
        intervals_s: Sequence[float],
        head: str | None,
        progress: Callable[[float], None],
    ) -> None:
        self._estimator = estimator
        self._batches = batches
        self._first_row = np.cumsum([0, *(batch.size for batch in batches)])
        self._versions = {interval: (times // interval).astype(np.int64) for interval in intervals_s}
        self._head = head
        self._progress = progress
        self._done = 0
        self.scores = {interval: np.full(self._first_row[-1], np.nan) for interval in intervals_s}

    @override
    def on_start(self, run: Run) -> None:
        self._score(0)

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        self._done += 1
        self._score(self._done)
        self._progress(self._done / len(self._batches))

    def _score(self, begin: int) -> None:
        if begin == len(self._batches):
            return
        for interval, versions in self._versions.items():
            if begin and versions[begin] == versions[begin - 1]:
                continue
            end = int(versions.searchsorted(versions[begin], side="right"))
            rows = slice(self._first_row[begin], self._first_row[end])
            self.scores[interval][rows] = np.concatenate(list(self._predict(begin, end)))

    def _predict(self, begin: int, end: int) -> Iterator[Floats]:
        while begin < end:
            until = max(begin + 1, int(self._first_row.searchsorted(self._first_row[begin] + _ROWS_PER_CALL)))
            until = min(until, end)
            rows = self._batches[begin:until]
            for heads in self._estimator.predict([rows[0] if len(rows) == 1 else Batch.concat(rows)]):
                yield np.asarray(heads[self._chosen(heads)], np.float64)
            begin = until

    def _chosen(self, heads: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> str:
        if self._head in heads:
            return str(self._head)
        if self._head is None and len(heads) == 1:
            return next(iter(heads))
        raise ConfigError(f"head is {self._head!r}, expected one of {', '.join(heads)}")
