"""A model chooses the admission filter of each feature, and its declaration keeps the choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable, NoFilter, ProbabilisticFilter, SlidingHashFilter, Table
from monolith.features import Declaration

IDS = np.arange(4000)


def declare(**options: Any) -> Declaration:
    made = Declaration()
    made.add_feature("user", slot=1, **options)
    made.add_layout(["user"], "bias", 1, out=None)
    return made


def admitted(table: Table, calls: int) -> float:
    for _ in range(calls):
        table.apply_gradients(IDS, np.ones((len(IDS), table.dim), np.float32))
    return len(table) / len(IDS)


def test_each_feature_trains_with_the_filter_that_its_model_chose() -> None:
    by_chance = declare(occurrence_threshold=4, admission=ProbabilisticFilter(equal_probability=True))
    by_count = declare(occurrence_threshold=4)
    chance = MultiTable(by_chance.table_specs())["user"]
    count = MultiTable(by_count.table_specs())["user"]
    assert 0.1 < admitted(chance, 1) < 0.95  # some ids enter at their first sighting
    assert admitted(count, 4) == 0.0
    assert admitted(count, 1) == 1.0
    assert chance.memory_bytes < count.memory_bytes


def test_the_filter_of_a_thresholded_feature_takes_the_memory_of_its_ids() -> None:
    table = MultiTable(declare(occurrence_threshold=2).table_specs())["user"]
    empty = table.memory_bytes
    admitted(table, 1)
    assert table.memory_bytes - empty < 4 << 20


def test_a_declaration_keeps_the_filter_as_json() -> None:
    made = declare(occurrence_threshold=2, admission=SlidingHashFilter(5000, split_num=9))
    read = Declaration.from_json(made.to_json())
    assert read.features["user"].admission == SlidingHashFilter(5000, split_num=9)
    assert read.table_specs() == made.table_specs()
    assert Declaration.from_json(declare().to_json()).features["user"].admission is None


def test_a_shared_feature_has_the_filter_of_its_owner() -> None:
    made = declare(occurrence_threshold=2, admission=ProbabilisticFilter())
    made.add_feature("friend", shared_with="user")
    assert made.features["friend"].admission == ProbabilisticFilter()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"admission": ProbabilisticFilter()}, "with occurrence_threshold 0, which admits every id"),
        ({"admission": "probabilistic", "occurrence_threshold": 2}, "admission is 'probabilistic', expected a filter"),
    ],
)
def test_an_admission_without_effect_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(**options)


def test_no_filter_may_be_spelled_out() -> None:
    assert declare(admission=NoFilter()).table_specs()[0].admission == NoFilter()
