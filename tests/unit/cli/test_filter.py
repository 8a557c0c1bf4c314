"""``monolith filter`` copies the records that filters keep, byte by byte."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data import transforms
from monolith.data.record_filter import RecordFilter
from monolith.data.records.convert import examples_to_batch
from monolith.data.records.framing import Framing
from monolith.data.records.messages import Example, ExampleBatch, Instance
from monolith.data.records.reader import read_records
from monolith.data.records.writer import RecordWriter

CLICKED = "configs { basic_config { filter_by_action { has_actions: 2 } } }"
LABELLED = """configs { basic_config { add_label {
    task_label_configs { pos_actions: 2 neg_actions: 1 } negative_value: 0.0 new_sample_rate: 0.5 } } }"""


def instance(number: int) -> bytes:
    row = Instance(fid=[fid.as_unsigned(fid.make_v1(600, number)), fid.make_v1(5, number % 3)], label=[number % 2])
    row.dense.extend([number, 1.5])  # no parser reads it
    row.line_id.req_time = 1000 + number
    row.line_id.actions.append(number % 4)
    return row.SerializeToString()


@pytest.fixture
def part(tmp_path: Path) -> Path:
    path = tmp_path / "part-0.pb"
    with RecordWriter(path, framing=Framing(kafka_dump=True)) as writer:
        for number in range(40):
            writer.write(instance(number), sort_id=b"user %d" % number)
    return path


def run(*arguments: object, command: str = "filter") -> str:
    words = [*command.split(), *map(str, arguments)]
    result = CliRunner().invoke(program.app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--transform", CLICKED], [n for n in range(40) if n % 4 == 2]),
        (["--has-actions", "2", "--has-actions", "3"], [n for n in range(40) if n % 4 in (2, 3)]),
        (["--has-fids", str(fid.as_unsigned(fid.make_v1(600, 7)))], [7]),
        (["--filter-fids", str(fid.make_v1(5, 0))], [n for n in range(40) if n % 3]),
        (["--select-fids", str(fid.make_v1(5, 1)), "--select-fids", str(fid.make_v1(600, 4))], [4]),
        (["--req-time-min", "1035"], list(range(35, 40))),
        (["--req-time-min", "1030", "--transform", CLICKED], [30, 34, 38]),
        ([], list(range(40))),
    ],
)
def test_kept_records_are_copied_byte_by_byte(part: Path, tmp_path: Path, options: list[str], kept: list[int]) -> None:
    counts = json.loads(run(part, tmp_path / "kept.pb.zst", "--json", *options))
    assert counts == {"records": 40, "kept": len(kept)}
    copied = list(read_records(tmp_path / "kept.pb.zst", framing=Framing(kafka_dump=True)))
    assert copied == [instance(number) for number in kept]


def test_standard_input_goes_to_standard_output(part: Path) -> None:
    command = [sys.executable, "-c", "from monolith.cli.main import main; main()", "filter", "-", "-", "--record"]
    options = ["instance", "--framing", "sort_id,kafka_dump", "--to-framing", "sort_id", "--has-actions", "3"]
    done = subprocess.run([*command, *options], input=part.read_bytes(), capture_output=True, timeout=60, check=True)
    assert done.stderr.decode().endswith("10 of 40 records kept\n")
    expected = io.BytesIO(b"".join(Framing().frame(instance(number)) for number in range(3, 40, 4)))
    assert done.stdout == expected.getvalue()


def test_a_transform_that_sets_labels_changes_nothing_else(part: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.pbtxt").write_text(LABELLED)
    run(part, tmp_path / "labelled.pb", "--transform", f"@{tmp_path / 'rules.pbtxt'}")
    rows = [
        Instance.FromString(each) for each in read_records(tmp_path / "labelled.pb", framing=Framing(kafka_dump=True))
    ]
    assert len(rows) == 40
    missing = pytest.approx(transforms.INVALID_LABEL)
    for number, row in enumerate(rows):
        added = {1: 0.0, 2: 1.0}.get(number % 4, missing)
        assert list(row.label) == [1.0 if number % 2 else missing, added]
        assert row.line_id.sample_rate == (0.5)
        row.label[:] = [number % 2]
        row.line_id.ClearField("sample_rate")
        assert row == Instance.FromString(instance(number))


def test_rows_of_a_batch_are_kept_one_by_one() -> None:
    rows = []
    for number in range(6):
        row = Example()
        row.named_feature.add(name="item").feature.fid_v2_list.value.append(fid.make_v2(3, number))
        row.line_id.actions.append(number % 3)
        rows.append(row)
    keep = RecordFilter("example_batch", CLICKED)
    kept = keep(examples_to_batch(rows).SerializeToString())
    assert kept is not None
    (column,) = [each for each in ExampleBatch.FromString(kept).named_feature_list if each.name == "item"]
    assert [list(each.fid_v2_list.value) for each in column.feature] == [[fid.make_v2(3, n)] for n in (2, 5)]
    assert keep(examples_to_batch(rows[:2]).SerializeToString()) is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["PART", "PART"], "which exists, expected a new file; or add --overwrite"),
        (["-", "new.pb"], "expected --record with standard input"),
        (["PART", "new.pb", "--record", "tf_example"], "record is 'tf_example', expected one of instance, example"),
        (["PART", "new.pb", "--transform", "@none.pbtxt"], "expected @ and a readable text file"),
        (["PART", "new.pb", "--transform", "configs { x }"], "transform config"),
        (["none-*.pb", "new.pb"], "none-"),
    ],
)
def test_an_invalid_request_writes_nothing(
    part: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    monkeypatch.chdir(part.parent)
    before = sorted(part.parent.iterdir())
    words = [str(part) if each == "PART" else each for each in arguments]
    result = CliRunner().invoke(program.app, ["filter", *words])
    assert result.exit_code == 1
    assert text in str(result.exception)
    assert sorted(part.parent.iterdir()) == before


def test_inspect_shows_and_counts_the_records_that_a_transform_keeps(part: Path) -> None:
    report: dict[str, Any] = json.loads(run(part, "--json", "--transform", CLICKED, command="inspect records"))
    assert (report["read"]["records"], report["read"]["kept"]) == (40, 10)
    assert [each["record"] for each in report["first"]] == [2, 6, 10]
    assert "kept         10 by the transform" in run(part, "--transform", CLICKED, command="inspect records")
    with pytest.raises(ConfigError, match="transform config"):
        run(part, "--transform", "nothing", command="inspect records")
