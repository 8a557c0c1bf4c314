from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.cli import inspect_records
from monolith.cli import main as program
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records.framing import Framing
from monolith.data.records.writer import RecordWriter

INSTANCE = bytes.fromhex(
    "0a10 0100000000000000 0200000000000000 1a08 00000000 0000803f 2a03 320101 4a0d 0a0161 1208 0300000000000000"
)
FIXTURES = Path(os.environ.get("MONOLITH_FIXTURES", Path(__file__).parents[4] / "shared" / "fixtures"))


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "part-0.pb.zst"
    with RecordWriter(path, framing=Framing(kafka_dump=True)) as writer:
        for number in range(100):
            writer.write(INSTANCE, sort_id=b"user %d" % number)
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["inspect", "records", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_plain_form_shows_the_format_of_a_file_and_the_evidence(records: Path) -> None:
    out = run(records, "--limit", 2)
    assert f"{records}: instance records, " in out
    assert "compression  zstd" in out
    assert "framing      Framing(sort_id=True, kafka_dump=True) (likely)" in out
    assert "sizes chain over 64 records" in out
    assert "records      100, 4,800 bytes, 48 to 48 each" in out
    assert "record 1 at byte 108, 48 bytes" in out
    assert "record 2" not in out


def test_the_json_form_has_all_of_it(records: Path) -> None:
    report = json.loads(run(records, "--json", "--limit", 1))
    assert (report["compression"], report["record"], report["confidence"]) == ("zstd", "instance", "likely")
    assert report["framing"]["call"] == "Framing(sort_id=True, kafka_dump=True)"
    assert report["framing"]["kafka_dump"] is True
    assert report["read"]["records"] == 100
    assert report["read"]["payload_bytes"] == 4800
    assert report["damage"] is None
    assert [each["offset"] for each in report["first"]] == [30]


def test_a_framing_that_was_asked_for_is_tried(records: Path) -> None:
    assert "as asked" not in run(records, "--framing", "sort_id,kafka_dump")
    assert "read with    Framing(sort_id=True, kafka_dump=True, kafka_dump_prefix=True), as asked" in run(
        records, "--framing", "sort_id,kafka_dump,kafka_dump_prefix"
    )
    with pytest.raises(RecordCorrupt, match=r"the file reads well with Framing\(sort_id=True, kafka_dump=True\)"):
        run(records, "--framing", "tfrecord")
    with pytest.raises(ConfigError, match="the framing is 'sortid'"):
        run(records, "--framing", "sortid")


def test_a_damaged_file_is_counted_up_to_the_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut"
    path.write_bytes((Framing().frame(INSTANCE) * 10)[:-5])
    with pytest.raises(RecordCorrupt, match="record 9 at byte 576"):
        inspect_records.records(str(path), framing=None, limit=0, as_json=False)
    assert "records      9 before the damage" in capsys.readouterr().out


def test_records_are_shown_by_the_formatter_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = types.ModuleType("messages")
    formatter = types.ModuleType("formatter")
    messages.record_class = lambda record: record  # type: ignore[attr-defined]
    messages.parse_message = lambda kind, payload: (kind, payload)  # type: ignore[attr-defined]
    formatter.format_record = lambda message, style, readable: f"{message} {style} {readable}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "monolith.data.records.messages", messages)
    monkeypatch.setitem(sys.modules, "monolith.data.records.formatter", formatter)
    assert inspect_records.describe(b"x", "instance") == "('instance', b'x') json True"

    def refuse(kind: object, payload: bytes) -> None:
        raise RecordCorrupt("no such message")

    messages.parse_message = refuse  # type: ignore[attr-defined]
    assert inspect_records.describe(b"\x08\x01", "instance") == "no such message\nfield 1: 1 x, 2 bytes"


def test_unknown_messages_are_shown_by_their_fields() -> None:
    assert inspect_records.describe(INSTANCE, None).splitlines() == [
        "field 1: 1 x, 18 bytes",
        "field 3: 1 x, 10 bytes",
        "field 5: 1 x, 5 bytes",
        "field 9: 1 x, 15 bytes",
    ]
    assert inspect_records.describe(b"\xff" * 40, None).startswith("no message: ff ff")
    assert inspect_records.describe(b"\x0a\x05ab", None).startswith("no message")


def test_files_that_hold_no_records_get_a_clear_answer(tmp_path: Path) -> None:
    (tmp_path / "inst.json").write_text('{"fid": [1], "label": [1]}')
    assert "JSON of one instance, 26 bytes; no framed records" in run(tmp_path / "inst.json")
    (tmp_path / "agent.conf").write_text("bzid demo\n")
    assert "agent.conf: text, 10 bytes; no framed records" in run(tmp_path / "agent.conf")
    (tmp_path / "empty").touch()
    assert "empty: nothing known, 0 bytes" in run(tmp_path / "empty")
    for wrong in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="expected a file"):
            run(wrong)


@pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"the fixtures are not at {FIXTURES}")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("inst.json", "JSON of one instance"),
        ("inst.pbtext", "a text proto of one instance"),
        ("inst.dump", "a dump of keys of one instance"),
        ("example_batch.pbtxt", "a text proto of one example_batch"),
        ("agent.conf", "text"),
    ],
)
def test_the_fixtures_are_explained(name: str, answer: str) -> None:
    assert f"{name}: {answer}, " in run(FIXTURES / name)


def test_on_a_terminal_the_count_has_a_bar(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    inspect_records.records(str(records), framing=None, limit=1, as_json=False)
    assert "records      100" in capsys.readouterr().out


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(program.app, ["inspect", "records", "--help"])
    assert "Example: monolith inspect records part-0.pb.zst" in result.output
