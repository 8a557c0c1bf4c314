"""The plan of a batch: the same whether its ids are where the parser left them, or in arrays."""

import numpy as np
import pytest

from monolith.core.errors import SchemaMismatch
from monolith.data.batch import Batch, ParsedIds
from monolith.data.records.messages import Example
from monolith.data.schema import parse_batch
from monolith.features import Declaration, HostEmbedder


def declared(*more: str) -> Declaration:
    made = Declaration()
    for slot, name in enumerate(("user", "item", *more), 1):
        made.add_feature(name, slot=slot)
    made.add_layout(["user", "item", *more], "vec", 4, out="concat")
    made.freeze()
    return made


def parsed(declaration: Declaration) -> Batch:
    records = []
    for users, items in (([7], [1, 2, 1]), ([7, 8], []), ([], [3])):
        record = Example()
        record.named_feature.add(name="user").feature.fid_v2_list.value.extend(users)
        record.named_feature.add(name="item").feature.fid_v2_list.value.extend(items)
        records.append(record.SerializeToString())
    return parse_batch(records, record="example", schema=declaration.schema())


def test_ids_of_records_are_planned_as_those_of_arrays() -> None:
    declaration = declared()
    embedder = HostEmbedder(declaration, store=None)  # type: ignore[arg-type]  # a plan needs no store
    batch = parsed(declaration)
    assert isinstance(batch.ids, ParsedIds)
    plans = [embedder.plan(each) for each in (batch, Batch.from_arrays(ids=dict(batch.ids)))]
    assert plans[0].rows == plans[1].rows == 3
    assert plans[0].occurrences == plans[1].occurrences == 7
    for table in range(2):
        np.testing.assert_array_equal(plans[0].ids(table), plans[1].ids(table))
        np.testing.assert_array_equal(plans[0].counts(table), plans[1].counts(table))


def test_a_batch_that_was_read_for_another_model_is_refused() -> None:
    embedder = HostEmbedder(declared("shop"), store=None)  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatch, match="no feature 'shop'"):
        embedder.plan(parsed(declared()))
