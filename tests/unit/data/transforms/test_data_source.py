from __future__ import annotations

from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.data.transforms import Compose, FilterBySource, SetDataSource


def test_rows_are_set_and_filtered_by_source(bench: Any, make_example: Any) -> None:
    rows = bench.rows([make_example(chnid=chnid) for chnid in (1, 2, 3)])
    SetDataSource(name="pc", by_chnid={2: "mobile", 3: "cloud"}).build(bench.context).run(rows)
    assert rows.source_keys().tolist() == [914176, 1250992640, 2782803200]
    FilterBySource(names=["cloud", "pc"]).build(bench.context).run(rows)
    assert rows.source_keys().tolist() == [914176, 2782803200]


def test_rows_of_no_source_are_not_kept(bench: Any, make_example: Any) -> None:
    assert not bench.run(Compose([FilterBySource(names="pc")]), [make_example()])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FilterBySource(names=[]), "give at least one name"),
        (lambda: SetDataSource(), "neither name nor by_chnid"),
        (lambda: SetDataSource(by_chnid={1: ""}), "by_chnid has 1: ''"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
