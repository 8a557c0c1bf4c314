"""Summaries for the "monolith" plugin of TensorBoard: weights of a searched architecture, effect of each feature.

A summary is an array and a head: JSON that maps parts of the array to segments.
:mod:`monolith.training.hooks.summaries` writes it to a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ConfigError

__all__ = ["InsightSummary", "TagType", "feature_insight_summary", "nas_weight_summary", "prepare_head"]

NAS_WEIGHT_TAG = "monolith_nas_weight"
FEATURE_INSIGHT_TAG = "monolith_feature_insight"

TagType: TypeAlias = Literal["gating", "selecting", "mixed", "simple", "fi_direct", "fi_train"]
"""How the array is to be read: one weight per segment, one per candidate size, both kinds, one array as it is, the
parts of a product, or those with labels behind them."""

SegmentSize: TypeAlias = int | Sequence[int]
"""The width of a segment, or its candidate widths."""


@dataclass(frozen=True, slots=True)
class InsightSummary:
    """One summary, ready to be written."""

    tag: str
    head: str
    """JSON, the plugin's content."""
    values: NDArray[np.float32]


def prepare_head(
    tag_type: TagType,
    segment_names: Sequence[str],
    segment_sizes: Sequence[SegmentSize],
    groups: Sequence[Sequence[str]] | None = None,
    label_size: int | None = None,
) -> str:
    """Return the JSON that explains a summary's array.

    Args:
        tag_type: How the array is to be read.
        segment_names: The segments in the order of the array, such as feature names.
        segment_sizes: One per segment.
        groups: Segments that belong together; each segment gets the number of its group.
        label_size: Labels that follow the parts in each row of the array, with "fi_train".

    >>> prepare_head("gating", ["a", "b"], [3, 5], groups=[["a"], ["b", "c"]])
    '{"tag_type": "gating", "segment_names": ["a", "b"], "segment_sizes": [3, 5], "group_index": [0, 1]}'

    Raises:
        ConfigError: The arguments contradict each other.
    """
    if tag_type not in get_args(TagType):
        raise ConfigError(f"tag_type must be one of {', '.join(get_args(TagType))}, got {tag_type!r}")
    if len(segment_names) != len(segment_sizes):
        raise ConfigError(f"{len(segment_names)} segment_names have {len(segment_sizes)} segment_sizes; give one each")
    head: dict[str, object] = {
        "tag_type": tag_type,
        "segment_names": list(segment_names),
        "segment_sizes": [size if isinstance(size, int) else list(size) for size in segment_sizes],
    }
    if groups is not None:
        head["group_index"] = _group_index(segment_names, groups)
    if (tag_type == "fi_train") != (label_size is not None):
        raise ConfigError(f"label_size belongs to tag_type 'fi_train', got {label_size} with {tag_type!r}")
    if label_size is not None:
        head["label_size"] = label_size
    return json.dumps(head)


def nas_weight_summary(
    weights: ArrayLike,
    segment_names: Sequence[str],
    segment_sizes: Sequence[SegmentSize],
    groups: Sequence[Sequence[str]] | None = None,
) -> InsightSummary:
    """Describe the weights that a search gives to segments.

    A segment with one size has one weight ("gating"), one with candidate sizes a weight for each ("selecting"); a
    model may have both kinds ("mixed"). Without segments the array is shown as it is ("simple").

    Shapes: ``weights`` (n,), n = Σ weights of the segments.

    Raises:
        ConfigError: The number of weights is another one.
    """
    values = np.asarray(weights, np.float32)
    counts = [1 if isinstance(size, int) else len(size) for size in segment_sizes]
    if segment_names and values.shape != (sum(counts),):
        raise ConfigError(f"weights have the shape {values.shape}, the segments need {(sum(counts),)}")
    head = prepare_head(_kind_of(segment_sizes), segment_names, segment_sizes, groups)
    return InsightSummary(NAS_WEIGHT_TAG, head, values)


def feature_insight_summary(
    parts: ArrayLike,
    segment_names: Sequence[str],
    segment_sizes: Sequence[int],
    groups: Sequence[Sequence[str]] | None = None,
    label: ArrayLike | None = None,
) -> InsightSummary:
    """Describe the result of ``monolith.layers.feature_insight`` for a batch.

    With labels, they become the last columns of the array, so that their relation to the parts can be learned
    ("fi_train"); without, the parts are shown as they are ("fi_direct").

    Shapes: ``parts`` (B, n·K) of n segments; ``label`` (B,) or (B, L).

    Raises:
        ConfigError: The shapes do not fit.
    """
    values = np.asarray(parts, np.float32)
    if values.ndim != 2 or not segment_names or values.shape[1] % len(segment_names):
        raise ConfigError(
            f"parts have the shape {values.shape}; give (B, a multiple of {len(segment_names)} segments), at least one"
        )
    if label is None:
        head = prepare_head("fi_direct", segment_names, segment_sizes, groups)
        return InsightSummary(FEATURE_INSIGHT_TAG, head, values)
    labels = np.asarray(label, np.float32)
    columns = labels[:, None] if labels.ndim == 1 else labels
    if columns.ndim != 2 or len(columns) != len(values):
        raise ConfigError(f"label has the shape {labels.shape}; give a row for each of the {len(values)} of parts")
    head = prepare_head("fi_train", segment_names, segment_sizes, groups, columns.shape[1])
    return InsightSummary(FEATURE_INSIGHT_TAG, head, np.concatenate([values, columns], axis=1))


def _kind_of(sizes: Sequence[SegmentSize]) -> TagType:
    are_fixed = {isinstance(size, int) for size in sizes}
    if not are_fixed:
        return "simple"
    if len(are_fixed) == 2:
        return "mixed"
    return "gating" if are_fixed == {True} else "selecting"


def _group_index(names: Sequence[str], groups: Sequence[Sequence[str]]) -> list[int]:
    places = {name: place for place, group in reversed(list(enumerate(groups))) for name in group}
    if lost := [name for name in names if name not in places]:
        raise ConfigError(f"segments {lost} are in none of the groups {[list(group) for group in groups]}")
    return [places[name] for name in names]
