from __future__ import annotations

import math
from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.data.records.messages import Example
from monolith.data.transforms import (
    INVALID_LABEL,
    AddLabel,
    FillMultiRankOutput,
    LabelNormalization,
    LabelUpperBound,
    MultiLabelGen,
    ScatterLabel,
    TaskLabel,
    UseFieldAsLabel,
)


def labels(rows: list[Any]) -> list[list[float | None]]:
    return [[None if value == INVALID_LABEL else value for value in row.label] for row in rows]


def test_add_label_follows_the_actions(bench: Any, make_example: Any) -> None:
    step = AddLabel(config="1,2:3:1.0;4::1.0;5:6", negative_value=-1, new_sample_rate=0.25)
    rows = [make_example(actions=actions) for actions in ([1], [3], [4], [7], [2, 3, 6])]
    result = bench.run(step, rows)
    assert labels(result) == [[1, -1, None], [-1, -1, None], [None, 1, None], [None, -1, None], [1, -1, -1]]
    assert {row.line_id.sample_rate for row in result} == {0.25}


def test_add_label_appends_and_forgets_a_first_label_that_is_not_positive(bench: Any, make_example: Any) -> None:
    rows = [make_example(label=[value, 0.0], actions=[1]) for value in (0.0, -2.0, 3.0)]
    assert labels(bench.run(AddLabel(config="1:"), rows)) == [[None, 0, 1], [None, 0, 1], [3, 0, 1]]


def test_add_label_leaves_other_line_id_fields_alone(bench: Any) -> None:
    row = Example()
    unknown = bytes.fromhex("5a0161")  # field 11, which the schema does not know
    row.line_id.MergeFromString(unknown + bytes.fromhex("dd010000803e") + bytes.fromhex("1107000000" + "00000000"))
    (result,) = bench.run(AddLabel(config="1::0", new_sample_rate=0.5), [row])
    assert result.line_id.sample_rate == 0.5
    assert result.line_id.uid == 7
    assert unknown in result.line_id.SerializeToString()


def test_rates_are_drawn_once_per_row_and_task(make_bench: Any, make_example: Any) -> None:
    rows = [make_example() for _ in range(4000)]
    step = AddLabel(config="1::0.25;1::0.25")
    first = labels(make_bench(seed=1).run(step, rows))
    assert first == labels(make_bench(seed=1).run(step, rows))
    assert first != labels(make_bench(seed=2).run(step, rows))
    both = sum(a is not None and b is not None for a, b in first) / len(first)
    assert sum(a is not None for a, _ in first) / len(first) == pytest.approx(0.25, abs=0.03)
    assert both == pytest.approx(0.0625, abs=0.02)  # the tasks are independent


def test_structured_tasks_equal_their_text() -> None:
    tasks = (TaskLabel(pos_actions=[1, 2], neg_actions=[3]), TaskLabel(pos_actions=[4], sample_rate=0.5))
    assert AddLabel(config=tasks) == AddLabel(config="1,2:3:1.0;4::0.5;")


def test_scatter_label_takes_an_unlisted_channel_for_no_head(bench: Any, make_example: Any) -> None:
    rows = [make_example(label=[7], chnid=2), make_example(label=[7]), make_example(chnid=1)]
    assert labels(bench.run(ScatterLabel(config={1: 0, 2: 1}), rows)) == [[None, 7], [None, None], [None, None]]


@pytest.mark.parametrize("field", ["chnid", "rank", "uid", "is_draw"])
def test_multi_label_gen_works_with_any_integer_head(bench: Any, make_example: Any, field: str) -> None:
    step = MultiLabelGen(head_to_index={0: 1, 1: 0}, head_field=field, pos_actions=[5], task_num=3)
    rows = [make_example(actions=[5], **{field: 1}), make_example(actions=[6], **{field: 0})]
    assert labels(bench.run(step, rows)) == [[1, None, None], [None, 0, None]]


def test_multi_label_gen_may_use_the_label_that_is_there(bench: Any, make_example: Any) -> None:
    step = MultiLabelGen(head_to_index="ios:1", head_field="device_type", use_origin_label=True)
    rows = [make_example(label=[0.3, 9], device_type="ios"), make_example(device_type="ios"), make_example(label=[1])]
    result = labels(bench.run(step, rows))
    assert result[0][1] == pytest.approx(0.3)
    assert result[1:] == [[None, None], [None, None]]


def test_multi_label_gen_without_the_listed_action_is_missing(bench: Any, make_example: Any) -> None:
    step = MultiLabelGen(
        head_to_index={1: 0}, pos_actions=[2], neg_actions=[3], action_priority=[9, 2, 3], pos_label=5, neg_label=-5
    )
    rows = [make_example(chnid=1, actions=actions) for actions in ([2, 3], [3], [9, 2], [8], [])]
    assert labels(bench.run(step, rows)) == [[5], [-5], [None], [None], [None]]


def test_upper_bound_leaves_missing_and_short_labels_alone(bench: Any, make_example: Any) -> None:
    step = LabelUpperBound(bounds=[1, 2])
    rows = [make_example(label=[5, INVALID_LABEL, 9]), make_example(label=[5])]
    assert labels(bench.run(step, rows)) == [[1, None, 9], [5]]


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("log", 1.0, math.log(3.7)),
        ("scale", 2.0, 1.35),
        ("scale2int", 2.0, 1.0),
        ("pow", 2.0, 3.7**2),
        ("repow", 2.0, 2.7**2),
        ("scalelog", 2.0, math.log(2.35)),
    ],
)
def test_each_normalization(bench: Any, make_example: Any, method: Any, value: float, expected: float) -> None:
    step = LabelNormalization(methods=[method], values=[value])
    (row,) = bench.run(step, [make_example(label=[2.7, INVALID_LABEL])])
    assert row.label[0] == pytest.approx(expected, rel=1e-6)
    assert row.label[1] == INVALID_LABEL


def test_repow_of_a_number_that_is_not_positive_is_0(bench: Any, make_example: Any) -> None:
    (row,) = bench.run(LabelNormalization(methods=["repow"], values=[-1]), [make_example(label=[-3, 0])])
    assert list(row.label) == [0, 0]


def test_use_field_as_label_without_the_field_changes_nothing(bench: Any, make_example: Any) -> None:
    step = UseFieldAsLabel(field_name="rank")
    rows = [make_example(label=[-4]), make_example(label=[-4], rank=0), make_example(label=[INVALID_LABEL], rank=3)]
    assert labels(bench.run(step, rows)) == [[-4], [0], [3]]


def test_rank_outputs_append_one_label(bench: Any, make_example: Any) -> None:
    row = make_example(label=[9], is_draw=True, chnid=7, rank=40)
    assert labels(bench.run(FillMultiRankOutput(enable_draw_as_rank=True, enable_chnid_as_rank=True), [row])) == [
        [9, 1]
    ]
    assert labels(bench.run(FillMultiRankOutput(enable_chnid_as_rank=True), [row])) == [[9, 2]]
    assert labels(bench.run(FillMultiRankOutput(enable_lineid_rank_as_rank=True), [row])) == [[9, 17]]
    assert labels(bench.run(FillMultiRankOutput(enable_lineid_rank_as_rank=True), [Example()])) == [[0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AddLabel(config=""), "give at least one task"),
        (lambda: AddLabel(config=":1"), "TaskLabel.pos_actions is empty"),
        (lambda: AddLabel(config="1"), "write pos,pos:neg,neg:rate"),
        (lambda: AddLabel(config="1:x"), "has 'x'; give a whole number"),
        (lambda: AddLabel(config="1,2:2"), r"actions \[2\] are both positive and negative"),
        (lambda: AddLabel(config="1::1.5"), "TaskLabel.sample_rate is 1.5; give a number from 0 to 1"),
        (lambda: AddLabel(config="1:", new_sample_rate=0), "new_sample_rate is 0"),
        (lambda: ScatterLabel(config="1"), "items look like a:b"),
        (lambda: ScatterLabel(config="1:0,1:2"), "has 1 twice"),
        (lambda: ScatterLabel(config={}), "is empty"),
        (lambda: MultiLabelGen(head_to_index="a:0"), "either pos_actions or use_origin_label"),
        (lambda: LabelNormalization(methods=["exp"], values=[1]), "use some of: log, scale"),
        (lambda: LabelNormalization(methods=["log"], values=[]), "1 methods and 0 values"),
        (lambda: LabelNormalization(methods=["scale"], values=[0]), "divides by 0"),
        (lambda: FillMultiRankOutput(), "has no source"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_settings_that_do_not_fit_the_fields_are_refused(bench: Any) -> None:
    heads: dict[str, Any] = {"head_to_index": "ios:1", "pos_actions": [1]}
    with pytest.raises(ConfigError, match="has 'ios'; give a whole number"):
        MultiLabelGen(**heads).build(bench.context)
    with pytest.raises(ConfigError, match="head_field 'sample_rate' must be a single integer or text"):
        MultiLabelGen(head_to_index={1: 1}, pos_actions=[1], head_field="sample_rate").build(bench.context)
    with pytest.raises(ConfigError, match="task_num is 1, a head has the index 1"):
        MultiLabelGen(head_to_index={1: 1}, pos_actions=[1], task_num=1).build(bench.context)
    with pytest.raises(ConfigError, match="heads of field 'chnid' have a number twice"):
        MultiLabelGen(head_to_index="7:0,07:1,8:2", pos_actions=[1]).build(bench.context)
    with pytest.raises(ConfigError, match="'device_type' cannot be a label"):
        UseFieldAsLabel(field_name="device_type").build(bench.context)
