from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.data.records.messages import FilterValues
from monolith.data.transforms import (
    AddLabel,
    Compose,
    FilterByAction,
    FilterByFids,
    FilterByLabel,
    FilterByValue,
    LogicalOr,
    TaskLabel,
    parse_transform_config,
)


def test_every_transform_of_the_text_form() -> None:
    config = parse_transform_config(
        """
        configs { basic_config { filter_by_fid { has_fids: 18446744073709551615 filter_fids: [2, 3] select_fids: 4 } } }
        configs { basic_config { filter_by_action { has_actions: -1 has_actions: 2 } } }
        configs { basic_config { filter_by_label { thresholds: [0.5, -100] } } }
        configs { basic_config { add_label {
          task_label_configs { pos_actions: [1, 2] neg_actions: 3 }
          task_label_configs { pos_actions: 4 sample_rate: 0.5 }
          negative_value: -1 new_sample_rate: 0.25 } } }
        configs { basic_config {
          filter_by_value { field_name: "uid" op: "between" int_operand: [1, 5] keep_empty: true } } }
        configs { logical_or_config {
          x { filter_by_value { field_name: "sample_rate" op: "gt" float_operand: 0.5 } }
          y { filter_by_value { field_name: "device_type" op: "in" string_operand: ["a", "b"] } } } }
        """
    )
    assert config == Compose(
        [
            FilterByFids(has_fids=[-1], filter_fids=[2, 3], select_fids=[4]),
            FilterByAction(has_actions=[-1, 2]),
            FilterByLabel(thresholds=[0.5, -100]),
            AddLabel(
                config=[
                    TaskLabel(pos_actions=[1, 2], neg_actions=[3]),
                    TaskLabel(pos_actions=[4], sample_rate=0.5),
                ],
                negative_value=-1,
                new_sample_rate=0.25,
            ),
            FilterByValue(field_name="uid", op="between", operand=[1, 5], keep_empty=True),
            LogicalOr(
                FilterByValue(field_name="sample_rate", op="gt", operand=[0.5]),
                FilterByValue(field_name="device_type", op="in", operand=["a", "b"]),
            ),
        ]
    )


def test_an_empty_text_is_refused(bench: Any, make_example: Any) -> None:
    assert list(parse_transform_config("")) == []
    assert len(bench.run(parse_transform_config("  # nothing\n"), [make_example()])) == 1


def test_operand_files_are_read_when_the_pipeline_is_built(bench: Any, make_example: Any, tmp_path: Path) -> None:
    path = tmp_path / "uids"
    path.write_bytes(FilterValues(int64_list={"value": [7, 5]}).SerializeToString())
    config = parse_transform_config(
        f'configs {{ basic_config {{ filter_by_value {{ field_name: "uid" op: "in" operand_filepath: "{path}" }} }} }}'
    )
    rows = [make_example(uid=uid) for uid in range(10)]
    assert [row.line_id.uid for row in bench.run(config, rows)] == [5, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("configs { basic_config { no_such { } } }", r"transform config: line 1: .*TransformConfig"),
        ("configs { }", r"configs\[0\] is empty; give basic_config or logical_or_config"),
        ("configs { basic_config { } }", r"configs\[0\] is empty; give one of filter_by_fid"),
        ("configs { logical_or_config { x { filter_by_action { has_actions: 1 } } } }", "lacks the required|required"),
        (
            'configs { basic_config { filter_by_value { field_name: "a" op: "eq" int_operand: 1 float_operand: 2 } } }',
            r"configs\[0\].filter_by_value has operands of two kinds",
        ),
        ('configs { basic_config { filter_by_value { field_name: "a" op: "no" int_operand: 1 } } }', "op is 'no'"),
        ("configs { basic_config { filter_by_action { } } }", "has_actions is empty"),
    ],
)
def test_wrong_text_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_transform_config(text)
