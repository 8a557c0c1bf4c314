from __future__ import annotations

from typing import Any

import pytest

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records.messages import Example, Instance
from monolith.data.transforms import Compose, FilterByAction, FilterByFids, FilterByLabel, FilterByValue, LogicalOr


def test_fids_of_features_and_of_lists_of_lists_are_seen_in_an_instance(make_bench: Any) -> None:
    instance = Instance(fid=[1])
    instance.feature.add(name="plain").fid.append(2)
    instance.feature.add(name="nested").fid_list.add().value.append(3)
    for present in (1, 2, 3):
        assert len(make_bench("instance").run(FilterByFids(has_fids=[present]), [instance])) == 1
    assert not make_bench("instance").run(FilterByFids(has_fids=[4]), [instance])
    assert make_bench("instance").run(FilterByFids(select_fids=[3, 1, 2, 2]), [instance])


@pytest.mark.parametrize("arm", ["fid_v1_lists", "fid_v2_lists"])
def test_fids_of_lists_of_lists_are_seen_in_an_example(bench: Any, arm: str) -> None:
    example = Example()
    lists = getattr(example.named_feature.add(name="a").feature, arm)
    lists.list.add().value.extend([10, 11])
    lists.list.add().value.append(12)
    assert len(bench.run(FilterByFids(select_fids=[12, 10]), [example])) == 1
    assert not bench.run(FilterByFids(filter_fids=[11]), [example])


def test_ids_are_given_signed_unsigned_or_as_text(bench: Any) -> None:
    value = fid.make_v1(600, 5)
    assert value < 0
    example = Example()
    example.named_feature.add(name="a").feature.fid_v1_list.value.append(fid.as_unsigned(value))
    for given in ([value], [fid.as_unsigned(value)], f"{fid.as_unsigned(value)},"):
        assert bench.run(FilterByFids(has_fids=given), [example])


def test_many_ids_are_looked_up_by_hash(bench: Any, make_example: Any) -> None:
    rows = [make_example(features={"a": [i]}, uid=i) for i in range(200)]
    wanted = list(range(0, 200, 3))
    assert [row.line_id.uid for row in bench.run(FilterByFids(has_fids=wanted), rows)] == wanted
    assert len(bench.run(FilterByFids(filter_fids=wanted), rows)) == 200 - len(wanted)


def test_a_row_without_line_id_has_time_0_and_no_action(bench: Any) -> None:
    assert bench.run(FilterByFids(req_time_min=0), [Example()])
    assert not bench.run(FilterByFids(req_time_min=1), [Example()])
    assert not bench.run(FilterByAction(has_actions=[0]), [Example()])


def test_all_features_are_needed_only_when_ids_or_slots_are_asked_for() -> None:
    assert not FilterByFids(has_actions=[1], req_time_min=5).needs_all_features
    by_slot = FilterByFids(select_slots=[1])
    assert by_slot.needs_all_features
    assert Compose(
        [FilterByAction(has_actions=[1]), LogicalOr(FilterByAction(has_actions=[1]), by_slot)]
    ).needs_all_features


@pytest.mark.parametrize("label", [float("nan"), -3.4028234663852886e38])
def test_a_missing_label_never_passes(bench: Any, make_example: Any, label: float) -> None:
    step = FilterByLabel(thresholds=[-3.4028234663852886e38, 5.0])
    assert not bench.run(step, [make_example(label=[label, 0.0])])
    assert bench.run(step, [make_example(label=[label, 6.0])])


def test_fewer_labels_than_thresholds_drop_the_row(bench: Any, make_example: Any) -> None:
    assert not bench.run(FilterByLabel(thresholds=[0.0, 0.0]), [make_example(label=[1.0])])


def test_a_field_that_is_not_as_declared_is_an_error_that_names_the_row(bench: Any) -> None:
    good = Example(label=[1.0])
    good.line_id.uid = 7
    rows = bench.parser.parse(
        _native.Records([good.SerializeToString(), bytes.fromhex("a206021007")])  # uid as a varint
    )
    with pytest.raises(
        RecordCorrupt, match=r"row 1 of the lot cannot be read at byte 1 of its LineId: field 2 has wire"
    ):
        FilterByValue(field_name="uid", op="eq", operand=7).build(bench.context).run(rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FilterByFids(has_fids="1,abc"), r"FilterByFids.has_fids has 'abc'; give a whole number"),
        (lambda: FilterByFids(has_fids=[1 << 64]), r"does not fit 64 bits"),
        (lambda: FilterByFids(filter_fids=5), r"FilterByFids.filter_fids is 5; give a list"),
        (lambda: FilterByFids(select_slots=[40000]), r"FilterByFids.select_slots has 40000; slots are 0 to 32767"),
        (lambda: FilterByAction(has_actions=[]), r"FilterByAction.has_actions is empty"),
        (lambda: FilterByAction(has_actions=[1.5]), r"FilterByAction.has_actions has 1.5; give whole numbers"),
        (lambda: FilterByLabel(thresholds=[]), r"FilterByLabel.thresholds is empty"),
        (lambda: FilterByLabel(thresholds=[0], filter_equal=1), r"FilterByLabel.filter_equal is 1; give True or False"),
    ],
)
def test_bad_settings_are_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
