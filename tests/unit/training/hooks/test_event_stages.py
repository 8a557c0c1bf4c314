"""Stages of rows, from the stamps of the joiner."""

import numpy as np
import pytest

from monolith.data import Batch, Schema
from monolith.data.records.line_id import LineIdFields
from monolith.training.hooks.event_stages import STAMPS, measure_stages, trained_rows, with_stamps


def batch(weight: list[float] | None = None, **stamps: list[int]) -> Batch:
    size = len(next(iter(stamps.values())))
    extras = {name: np.zeros(size, np.int64) for name in STAMPS}
    extras |= {name: np.array(values, np.int64) for name, values in stamps.items()}
    return Batch.from_arrays(label=[0.0] * size, weight=weight or [1.0] * size, extras=extras)


def test_stages_of_an_impression_add_up_to_the_time_from_its_event() -> None:
    row = batch(event_time_ms=[1000], cause_time_ms=[1000], ingest_time_ms=[1010], join_time_ms=[1060])
    stages = dict(measure_stages(row, 1.26))
    assert stages == {"ingest": pytest.approx(0.01), "join": pytest.approx(0.05), "train": pytest.approx(0.2)}
    assert sum(stages.values()) == pytest.approx(0.26)


def test_a_row_of_a_later_action_counts_from_the_action() -> None:
    row = batch(event_time_ms=[1000], cause_time_ms=[9000], ingest_time_ms=[1010], join_time_ms=[9040], emission=[1])
    assert dict(measure_stages(row, 9.1)) == {"join": pytest.approx(0.04), "train": pytest.approx(0.06)}
    rows = trained_rows(row, 9.1)
    assert rows is not None
    assert rows.event_time_s.tolist() == [9.0]


def test_undo_rows_and_rows_without_stamps_do_not_count() -> None:
    rows = trained_rows(batch(cause_time_ms=[1000, 2000, 0], weight=[1.0, -1.0, 1.0]), 3.0)
    assert rows is not None
    assert rows.event_time_s.tolist() == [1.0]
    assert trained_rows(Batch.from_arrays(label=[0.0]), 3.0) is None
    assert list(measure_stages(Batch.from_arrays(label=[0.0]), 3.0)) == []


def test_a_schema_with_its_own_line_id_fields_stays_as_it_is() -> None:
    assert with_stamps(Schema()).extras == dict.fromkeys(STAMPS, 1)
    own = Schema(extras=["mine"], line_fields=LineIdFields.standard().extended({"mine": (2000, "int64")}))
    assert with_stamps(own) is own
