"""``RankingMetrics``: GAUC, NDCG and recall of groups such as users, and the AUC of each hour of event time.

All rows are kept, 24 bytes each and head, up to a limit; the values are exact. Equal predictions keep the order of the
data in NDCG and recall, and count half in an AUC.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError, DataError
from monolith.data.batch import Ragged, Texts
from monolith.training.run import HeadResult, StepResult

__all__ = ["RankingMetrics", "auc_of_groups", "rank_in_groups"]

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_HOUR_S = 3600


@dataclass(slots=True)
class _Rows:
    """The rows of one head, batch by batch."""

    predictions: list[NDArray[np.float32]] = field(default_factory=list)
    labels: list[NDArray[np.float32]] = field(default_factory=list)
    groups: list[Ints] = field(default_factory=list)
    hours: list[Ints] = field(default_factory=list)
    size: int = 0


class RankingMetrics:
    """Metrics of groups and hours over all rows counted.

    Args:
        group_by: Feature, field or ``uid`` that names the group of a row; None = no groups.
        top_k: Rows of a group that count in ``ndcg`` and ``recall``.
        by_hour: Whether to measure the AUC of each hour.
        most_rows: Rows to keep at most, per head.
    """

    def __init__(
        self, group_by: str | None = None, *, top_k: int = 10, by_hour: bool = False, most_rows: int = 50_000_000
    ) -> None:
        self._group_by = group_by
        self._top_k = top_k
        self._by_hour = by_hour
        self._most_rows = most_rows
        self._heads: dict[str, _Rows] = {}

    @property
    def is_on(self) -> bool:
        """True if there is anything to measure."""
        return self._group_by is not None or self._by_hour

    def update(self, result: StepResult) -> None:
        """Count the labelled rows of a batch.

        Raises:
            ConfigError: The batch has no field ``group_by``, or it is text.
            DataError: There are more rows than ``most_rows``.
        """
        if not self.is_on:
            return
        groups = self._groups_of(result.batch)
        hours = np.asarray(result.batch.event_time_s, np.int64) // _HOUR_S
        for name, head in result.heads.items():
            if head.label is not None:
                self._add(self._heads.setdefault(name, _Rows()), head, groups, hours)

    def results(self) -> dict[str, float]:
        """Return ``head/gauc``, ``head/ndcg@k``, ``head/recall@k``, ``head/auc_by_hour`` and each hour's AUC."""
        values: dict[str, float] = {}
        for name, rows in self._heads.items():
            if not rows.size:
                continue
            predictions, labels = np.concatenate(rows.predictions), np.concatenate(rows.labels)
            if self._group_by is not None:
                groups = np.concatenate(rows.groups)
                gauc, _, _ = _weighted_auc(predictions, labels, groups)
                ndcg, recall = rank_in_groups(predictions, labels, groups, self._top_k)
                values |= {
                    f"{name}/gauc": gauc,
                    f"{name}/ndcg@{self._top_k}": ndcg,
                    f"{name}/recall@{self._top_k}": recall,
                }
            if self._by_hour:
                mean, hours, aucs = _weighted_auc(predictions, labels, np.concatenate(rows.hours))
                values[f"{name}/auc_by_hour"] = mean
                values |= {f"{name}/auc/{_show_hour(hour)}": auc for hour, auc in zip(hours, aucs, strict=True)}
        return values

    def _groups_of(self, batch: Any) -> Ints:
        if self._group_by is None:
            return np.zeros(batch.size, np.int64)
        try:
            column = batch[self._group_by]
        except KeyError as error:
            raise ConfigError(f"group_by is {self._group_by!r}, expected a feature: {error.args[0]}") from None
        if isinstance(column, Texts) or (not isinstance(column, Ragged) and np.asarray(column).dtype.kind in "SUO"):
            raise ConfigError(
                f"group_by is {self._group_by!r}, which is text, expected ids or numbers; declare it as a feature of "
                "ids, or name another one"
            )
        if not batch.size:  # of a rank without rows
            return np.zeros(0, np.int64)
        if not isinstance(column, Ragged):
            first = np.asarray(column).reshape(batch.size, -1)[:, 0]
            if first.dtype.kind != "f":
                return first.astype(np.int64)
            return (first.astype(np.float64) + 0.0).view(np.int64)  # each number is a group; -0.0 is 0.0
        column = column.expanded(batch.size)
        ends, values = np.asarray(column.offsets), np.asarray(column.values).astype(np.int64, copy=False)
        begins = ends[:-1]
        padded = np.append(values, -1)  # of a row without an id
        return np.where(ends[1:] > begins, padded[np.minimum(begins, len(values))], -1)

    def _add(self, rows: _Rows, head: HeadResult, groups: Ints, hours: Ints) -> None:
        kept = np.ones(len(groups), np.bool_) if head.mask is None else np.asarray(head.mask, np.bool_)
        if head.weight is not None:
            kept = kept & (np.asarray(head.weight) >= 0)  # an undo row of a joiner measures nothing
        predictions = np.asarray(head.predictions)[kept]
        rows.size += len(predictions)
        if rows.size > self._most_rows:
            raise DataError(
                f"there are more than {self._most_rows} rows, expected fewer for group_by and auc_by_hour; evaluate on "
                "fewer rows: --eval-steps"
            )
        rows.predictions.append(predictions)
        rows.labels.append(np.asarray(head.label)[kept])
        rows.groups.append(groups[kept])
        rows.hours.append(hours[kept])


def auc_of_groups(
    predictions: NDArray[np.floating[Any]], labels: NDArray[np.floating[Any]], groups: Ints
) -> tuple[Ints, Doubles, Ints]:
    """Return the groups in rising order, the AUC of each (NaN without both labels), and its rows.

    >>> auc_of_groups(np.array([0.1, 0.9, 0.5]), np.array([0.0, 1.0, 1.0]), np.array([7, 7, 8]))[1].tolist()
    [1.0, nan]
    """
    order = np.lexsort((predictions, groups))
    group, prediction, label = groups[order], predictions[order], labels[order] > 0.5
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    sizes = np.diff(np.append(starts, len(group)))
    # Ranks within a group, where equal predictions share the mean of their ranks.
    is_new = np.append(True, (prediction[1:] != prediction[:-1]) | (group[1:] != group[:-1]))
    ties = np.flatnonzero(is_new)
    tie_sizes = np.diff(np.append(ties, len(group)))
    rank = np.repeat(ties + (tie_sizes + 1) / 2, tie_sizes) - np.repeat(starts, sizes)
    positives = np.add.reduceat(label.astype(np.float64), starts)
    rank_sums = np.add.reduceat(np.where(label, rank, 0.0), starts)
    pairs = positives * (sizes - positives)
    with np.errstate(invalid="ignore", divide="ignore"):
        aucs = np.where(pairs > 0, (rank_sums - positives * (positives + 1) / 2) / pairs, np.nan)
    return group[starts], aucs, sizes


def rank_in_groups(
    predictions: NDArray[np.floating[Any]], labels: NDArray[np.floating[Any]], groups: Ints, top_k: int
) -> tuple[float, float]:
    """Return NDCG and recall of the first ``top_k`` rows, as means over the groups with a positive label.

    >>> rank_in_groups(np.array([0.9, 0.5, 0.1]), np.array([0.0, 1.0, 0.0]), np.array([1, 1, 1]), 2)
    (0.6309297535714575, 1.0)
    """
    order = np.lexsort((-predictions, groups))
    group, gain = groups[order], labels[order].astype(np.float64)
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    sizes = np.diff(np.append(starts, len(group)))
    place = np.arange(len(group)) - np.repeat(starts, sizes)
    discount = np.where(place < top_k, 1 / np.log2(place + 2), 0.0)
    ideal = labels[np.lexsort((-labels, groups))].astype(np.float64)
    dcg, best = np.add.reduceat(gain * discount, starts), np.add.reduceat(ideal * discount, starts)
    positives = np.add.reduceat(gain, starts)
    hits = np.add.reduceat(np.where(place < top_k, gain, 0.0), starts)
    kept = positives > 0
    if not kept.any():
        return math.nan, math.nan
    return float((dcg[kept] / best[kept]).mean()), float((hits[kept] / positives[kept]).mean())


def _weighted_auc(
    predictions: NDArray[np.floating[Any]], labels: NDArray[np.floating[Any]], groups: Ints
) -> tuple[float, Ints, Doubles]:
    """Return the mean of the AUC of groups with both labels, by their rows; these groups; and their AUC."""
    names, aucs, sizes = auc_of_groups(predictions, labels, groups)
    kept = ~np.isnan(aucs)
    if not kept.any():
        return math.nan, names[kept], aucs[kept]
    return float(np.average(aucs[kept], weights=sizes[kept])), names[kept], aucs[kept]


def _show_hour(hour: int) -> str:
    return datetime.datetime.fromtimestamp(int(hour) * _HOUR_S, datetime.UTC).strftime("%Y-%m-%dT%H")
