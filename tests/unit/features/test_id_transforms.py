"""Declared transforms of ids: native, in the declaration, and alike in training, scoring and serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import _native, data
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.data.records.messages import Example, Instance, TfExample
from monolith.data.records.tfrecord import TfRecordWriter
from monolith.embedding import MultiTable
from monolith.features import Declaration, HostEmbedder, IdTransform, Model, Output, QuotientRemainder
from monolith.serving import Servable
from monolith.training import Estimator

_SIZES = st.none() | st.integers(1, 2**47)


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=70),
    _SIZES,
    st.sampled_from(["whole", "remainder", "quotient"]),
    st.integers(1, 2**47),
)
def test_native_ids_are_those_of_the_reference(ids: list[int], size: int | None, part: Any, divisor: int) -> None:
    transform = IdTransform(size=size, divisor=None if part == "whole" else divisor, part=part)
    kernel = _native.Layouts([1], [(0, "sum", 0)], [(0, 0, 0, 1, 0, 0)], [1], [(0, *transform.native())])
    plan = kernel.plan(1, [np.array(ids, np.int64)], [np.array([0, len(ids)])], [False])
    expected = list(dict.fromkeys(transform.apply(ids).tolist()))
    assert plan.ids(0).tolist() == expected


@given(st.integers(1, 10**6), st.integers(1, 9), st.data())
def test_a_split_gives_each_id_its_own_pair_of_rows(size: int, rate: int, draw: st.DataObject) -> None:
    split = QuotientRemainder(size, rate)
    ids = draw.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    remainders = IdTransform.of_split(split, "remainder").apply(ids)
    quotients = IdTransform.of_split(split, "quotient").apply(ids)
    assert len(set(zip(remainders.tolist(), quotients.tolist(), strict=True))) == len(ids)
    assert remainders.max() < split.remainder_rows <= quotients.min()
    assert quotients.max() < split.remainder_rows + split.quotient_rows


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": 0}, "IdTransform.size is 0, expected a whole number"),
        ({"size": 2**48}, "expected a whole number from 1 to 2"),
        ({"part": "half"}, "IdTransform.part is 'half'"),
        ({"part": "quotient"}, "IdTransform.divisor is None with part 'quotient'"),
        ({"divisor": 3}, "IdTransform.divisor is 3 with part 'whole'"),
    ],
)
def test_a_transform_that_cannot_work_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        IdTransform(**options)


class Split(Model):
    """Users by quotient-remainder hashing (R = 3), items modulo 5."""

    def __init__(self) -> None:
        super().__init__()
        users = self.split_feature("user", QuotientRemainder(10, 4), slot=1)
        self.embedding_feature("item", slot=2, id_transform=IdTransform(size=5))
        self.vec = self.embedding_slice([users, ("item",)], "vec", dim=2, out="add_n")

    def forward(self, batch: Any) -> Output:
        return Output(logits=self.vec(batch).sum(1), label=batch.label[:, 0])


def _write(path: Path, rows: int = 32) -> None:
    with TfRecordWriter(path) as writer:
        for row in range(rows):
            example = TfExample()
            example.features.feature["user"].int64_list.value.append(row % 10)
            example.features.feature["item"].int64_list.value.append(row)
            example.features.feature["label"].float_list.value.append(row % 2)
            writer.write(example.SerializeToString())


def _ids(estimator: Estimator, table: str) -> set[int]:
    store = estimator.store
    assert isinstance(store, MultiTable)
    return {fid.signature_v2(int(each)) for ids, _ in store[table].items() for each in ids}


def test_training_scoring_and_serving_read_the_same_rows(tmp_path: Path) -> None:
    _write(tmp_path / "part-0")
    rows = data.files(str(tmp_path / "part-0"), record="tf_example")
    estimator = Estimator(Split)
    estimator.train(rows.batch(8))
    assert _ids(estimator, "item") == {0, 1, 2, 3, 4}
    assert _ids(estimator, "user_0") == {0, 1, 2, 3 + 0, 3 + 1, 3 + 2, 3 + 3}

    scores = np.concatenate([each["ctr"] for each in estimator.predict(rows.batch(8))])
    assert np.unique(scores.round(6)).size > 2
    estimator.evaluate(rows.batch(8))
    assert _ids(estimator, "item") == {0, 1, 2, 3, 4}

    servable = Servable.load(estimator.export(tmp_path / "exported"))
    requests = [{"user": [row % 10], "item": [row]} for row in range(32)]
    served = servable.predict_features(requests)["ctr"]
    np.testing.assert_allclose(served, scores, atol=2e-3)  # half precision
    records = []
    for row in range(32):
        example = Example()
        for name, slot, value in (("user", 1, row % 10), ("item", 2, row)):
            example.named_feature.add(name=name).feature.fid_v2_list.value.append(fid.make_v2(slot, value))
        records.append(example.SerializeToString())
    np.testing.assert_array_equal(servable.predict(records, "example")["ctr"], served)
    flat = [Instance(fid=[fid.make_v1(1, row % 10), fid.make_v1(2, row)]).SerializeToString() for row in range(32)]
    np.testing.assert_array_equal(servable.predict(flat, "instance")["ctr"], served)


def test_a_declaration_keeps_its_transforms_as_json() -> None:
    model = Split()
    model.declaration.freeze()
    again = Declaration.from_json(model.declaration.to_json())
    assert again.features == model.declaration.features
    batch = Batch.from_arrays(ids={"user": [[9]], "item": [[-1, 13]]})
    plans = [
        HostEmbedder(each, MultiTable(each.table_specs())).plan(batch).ids(0).tolist()
        for each in (again, model.declaration)
    ]
    assert plans[0] == plans[1] == [(2**48 - 1) % 5 - 2**48, 3]
