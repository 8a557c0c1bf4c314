"""``Clicks``: impressions as columns, with the true chance of every label.

This module defines names and slots of the features; ``world`` generates the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from monolith import data
from monolith.core.errors import ConfigError
from monolith.data.sources.arrow_columns import load_pyarrow

__all__ = ["Clicks", "Label", "auc"]

Label = Literal["click", "like"]

_SPARSE_SLOTS = {"user_id": 1, "item_id": 2, "history": 2, "gender": 3, "category": 4}
_DENSE = {"price": 1}


@dataclass(frozen=True, kw_only=True, eq=False)
class Clicks:
    """``n`` impressions in the order of time."""

    user_id: npt.NDArray[np.int64]
    item_id: npt.NDArray[np.int64]
    history: npt.NDArray[np.int64]
    """The items that the user clicked before, oldest first: row i has ``history[offsets[i]:offsets[i + 1]]``."""
    history_offsets: npt.NDArray[np.int64]
    """(n + 1,)."""
    gender: npt.NDArray[np.int64]
    """1 to 3."""
    category: npt.NDArray[np.int64]
    price: npt.NDArray[np.float32]
    event_time_s: npt.NDArray[np.int64]
    click: npt.NDArray[np.float32]
    """0 or 1."""
    like: npt.NDArray[np.float32]
    """0 or 1; never 1 without a click."""
    click_probability: npt.NDArray[np.float64]
    """The true chance of ``click``."""
    like_probability: npt.NDArray[np.float64]
    """The true chance of ``like``, before the click is observed."""
    slot: npt.NDArray[np.int64] | None = None
    """The slot of the item in a ``DriftingWorld``; None for rows of a ``World``."""

    def __len__(self) -> int:
        return len(self.user_id)

    @cached_property
    def best_auc(self) -> float:
        """AUC of the true click probabilities. A model exceeds it only by luck."""
        return self.auc(self.click_probability)

    def auc(self, scores: npt.ArrayLike, label: Label = "click") -> float:
        """Return the AUC of one score per row.

        Raises:
            ConfigError: There is not one score per row, or all labels are the same.
        """
        return auc(scores, getattr(self, label))

    def rows(self, begin: int, end: int | None = None) -> Clicks:
        """Return the rows ``begin`` up to, not including, ``end``; the last ones when that is not given."""
        begin, end, _ = slice(begin, end).indices(len(self))
        offsets = self.history_offsets[begin : end + 1]
        cut = {
            field.name: getattr(self, field.name)[begin:end]
            for field in fields(self)
            if not field.name.startswith("history") and getattr(self, field.name) is not None
        }
        return Clicks(**cut, history=self.history[offsets[0] : offsets[-1]], history_offsets=offsets - offsets[0])

    @staticmethod
    def schema(labels: Literal[1, 2] = 1) -> data.Schema:
        """Return the schema of the rows: the click is the label, and the like is the second of two labels.

        The features are fids, so that a model takes the records of ``files`` and the rows of ``dataset`` alike.
        """
        sparse = [data.SparseFeature(name, slot, value_type="fid") for name, slot in _SPARSE_SLOTS.items()]
        return data.Schema(sparse=sparse, dense=_DENSE, labels=labels)

    def dataset(self, *, labels: Literal[1, 2] = 1, seed: int = 0) -> data.Dataset:
        """Return the rows as a dataset out of memory. Needs the extra ``parquet``."""
        return data.frame(self.table(), schema=self.schema(labels), seed=seed)

    def table(self) -> Any:
        """Return a ``pyarrow.Table`` whose columns are the features and the reserved names of readers."""
        pa = load_pyarrow()
        return pa.table(
            self.feature_columns()
            | {
                "__LABEL__": pa.FixedSizeListArray.from_arrays(np.stack([self.click, self.like], 1).reshape(-1), 2),
                "__UID__": self.user_id,
                "__ITEM_ID__": self.item_id,
                "__REQ_TIME__": self.event_time_s,
            }
        )

    def feature_columns(self) -> dict[str, Any]:
        """Return the features as Arrow arrays, plain numbers in the place of ids."""
        pa = load_pyarrow()
        columns = {name: pa.array(getattr(self, name)) for name in (*_SPARSE_SLOTS, *_DENSE) if name != "history"}
        return columns | {"history": pa.LargeListArray.from_arrays(self.history_offsets, self.history)}


def auc(scores: npt.ArrayLike, label: npt.ArrayLike) -> float:
    """Return the chance that a random positive row has a higher score than a random negative one; ties count half.

    Raises:
        ConfigError: The arrays differ in length, or all labels are the same.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    values, positive = np.asarray(scores, np.float64).reshape(-1), np.asarray(label).reshape(-1) > 0.5
    if len(values) != len(positive):
        raise ConfigError(f"there are {len(values)} scores for {len(positive)} labels; give one score per row")
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        raise ConfigError(f"{positives} of {len(positive)} labels are positive; an AUC needs both kinds")
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of each value, from 1
    return float((ranks[place][positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))
