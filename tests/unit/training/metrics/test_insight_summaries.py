from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.training.metrics.insight_summaries import feature_insight_summary, nas_weight_summary, prepare_head


@pytest.mark.parametrize(
    ("sizes", "weights", "kind"),
    [([3, 5], 2, "gating"), ([[2, 4], [8, 16, 32]], 5, "selecting"), ([3, [8, 16]], 3, "mixed"), ([], 4, "simple")],
)
def test_the_sizes_say_how_weights_are_read(sizes: list[Any], weights: int, kind: str) -> None:
    insight = nas_weight_summary(np.arange(weights), ["a", "b"][: len(sizes)], sizes)
    assert insight.tag == "monolith_nas_weight"
    assert json.loads(insight.head)["tag_type"] == kind
    assert json.loads(insight.head)["segment_sizes"] == sizes
    assert insight.values.tolist() == list(range(weights))


def test_labels_become_the_last_columns_of_the_parts() -> None:
    parts = np.ones((2, 4))
    direct = feature_insight_summary(parts, ["a", "b"], [3, 5])
    assert json.loads(direct.head) == {"tag_type": "fi_direct", "segment_names": ["a", "b"], "segment_sizes": [3, 5]}
    assert direct.values.shape == (2, 4)
    train = feature_insight_summary(parts, ["a", "b"], [3, 5], label=[0, 7])
    assert train.tag == "monolith_feature_insight"
    assert json.loads(train.head)["tag_type"] == "fi_train"
    assert json.loads(train.head)["label_size"] == 1
    assert train.values[:, -1].tolist() == [0, 7]


def test_a_segment_of_several_groups_belongs_to_the_first() -> None:
    head = prepare_head("gating", ["a", "b"], [1, 1], groups=[["b"], ["a", "b"]])
    assert json.loads(head)["group_index"] == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tag_type": "other"}, "tag_type must be one of gating, .* got 'other'"),
        ({"segment_sizes": [1]}, "2 segment_names have 1 segment_sizes"),
        ({"groups": [["a"]]}, r"segments \['b'\] are in none of the groups \[\['a'\]\]"),
        ({"label_size": 2}, "label_size belongs to tag_type 'fi_train', got 2 with 'gating'"),
        ({"tag_type": "fi_train"}, "label_size belongs to tag_type 'fi_train', got None with 'fi_train'"),
    ],
)
def test_a_head_that_contradicts_itself_is_told(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        prepare_head(**{"tag_type": "gating", "segment_names": ["a", "b"], "segment_sizes": [1, 2], **arguments})


def test_arrays_that_do_not_fit_their_segments_are_told() -> None:
    with pytest.raises(ConfigError, match=r"weights have the shape \(3,\), the segments need \(2,\)"):
        nas_weight_summary([1, 2, 3], ["a", "b"], [1, 1])
    with pytest.raises(ConfigError, match=r"parts have the shape \(2, 3\)"):
        feature_insight_summary(np.ones((2, 3)), ["a", "b"], [1, 1])
    with pytest.raises(ConfigError, match=r"label has the shape \(3,\); give a row for each of the 2"):
        feature_insight_summary(np.ones((2, 2)), ["a", "b"], [1, 1], label=[1, 2, 3])
