from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest


def test_an_update_has_arrived_when_an_answer_shows_it_or_a_later_one() -> None:
    from freshness.latency import _result

    made = np.arange(10.0)
    """Update k was made at second k - 1."""
    result: Any = _result("update_to_predict_p99_s", made, [(2.5, 2), (5.0, 4), (9.5, 8)], requests=7)
    waits = [5.0 - 2, 5.0 - 3, 9.5 - 4, 9.5 - 5, 9.5 - 6, 9.5 - 7]
    assert result.rounds == len(waits)
    assert result.ours == result.ratio == pytest.approx(np.percentile(waits, 99))
    assert result.extra["max_s"] == max(waits)
    assert result.extra["cuts"] == 2


def test_the_marker_counts_up_by_one_wherever_its_row_is() -> None:
    from freshness.trainer import Mark
    from freshness.workload import MARKER, Ranker
    from monolith.embedding import MultiTable
    from monolith.ps import RemoteStore
    from monolith.testing.processes.ps_servers import PsServers

    class Pipe:
        def poll(self) -> bool:
            return False

    class Run:
        def __init__(self, store: Any) -> None:
            self.store = store

    specs = Ranker().declaration.table_specs()
    with PsServers(2) as servers, RemoteStore(servers.addresses, specs) as remote:
        for store in (MultiTable(specs), remote):
            mark = Mark(Pipe())
            for _ in range(3):
                mark.after_step(Run(store), None)  # type: ignore[arg-type]
            np.testing.assert_array_equal(store.pull({"marker": np.array([MARKER])})["marker"], [[3.0]])


def test_examples_and_marker_are_what_the_model_declares() -> None:
    from freshness.workload import MARKER, QUICK, Examples, Ranker, fill, marker_record
    from monolith.data.records import messages
    from monolith.embedding import MultiTable

    sizes = replace(QUICK, rows=200, batch=8)
    batch = next(iter(Examples(sizes)))
    model = Ranker()
    assert sorted(batch.ids) == sorted(model.declaration.features)
    tables = MultiTable(model.declaration.table_specs())
    fill(tables, sizes)
    assert {name: len(tables[name]) for name in tables} == {"item": 100, "marker": 1, "user": 100}
    for name in ("user", "item"):
        assert tables[name].contains(batch.ids[name].values).all()
    example = messages.Example.FromString(marker_record())
    assert {each.name for each in example.named_feature} == {"user", "item", "marker"}
    assert tables["marker"].contains([MARKER]).all()
