from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from monolith.cli import inspect
from monolith.cli import main as program
from monolith.core.errors import ConfigError, SnapshotCorrupt
from monolith.embedding import (
    Adagrad,
    Fp16,
    Ftrl,
    MultiTable,
    SliceSpec,
    SlidingHashFilter,
    Table,
    TableSpec,
)

SPEC = TableSpec(
    "user",
    [SliceSpec(1, optimizer=Ftrl()), SliceSpec(4, optimizer=Adagrad(learning_rate=0.5))],
    admission=SlidingHashFilter(1000),
    slot_thresholds={1: 2},
    expire_days=30,
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    table = Table(SPEC)
    table.apply_gradients([1, 2, -3, 2**63 - 1], np.ones((4, 5), np.float32), time_s=1_700_000_000)
    table.save(tmp_path / "user.table", shards=2)
    return tmp_path / "user.table"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["inspect", "table", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_plain_form_shows_the_content_of_a_snapshot(saved: Path) -> None:
    out = run(saved)
    assert f"{saved}: 1 table, " in out
    assert "table user (training)" in out
    assert "4, dim 5," in out
    assert "slice 1    dim 4: adagrad(" in out
    assert "learning_rate=0.5" in out
    assert "2023-11-14 22:13:20 UTC" in out
    assert "sliding_hash_filter (slot 1: 2)" in out
    assert "30 days" in out
    assert out.count(".rows") == 2
    assert "checksum" not in out


def test_the_json_form_adds_up(saved: Path) -> None:
    report = json.loads(run(saved, "--json", "--verify"))
    (table,) = report["tables"]
    assert report["is_verified"]
    assert report["bytes"] == sum(file.stat().st_size for file in saved.iterdir() if file.name != "manifest.json")
    assert (table["rows"], table["dim"], table["newest_event_s"]) == (4, 5, 1_700_000_000)
    assert sum(file["rows"] for file in table["files"]) == 4
    assert [piece["optimizer"]["kind"] for piece in table["slices"]] == ["ftrl", "adagrad"]
    assert table["admission"]["slot_thresholds"] == {"1": 2}
    assert "explain" not in report


def test_verify_confirms_all_checksums(saved: Path) -> None:
    assert "checksums match" in run(saved, "--verify")


def test_verify_finds_an_altered_byte_that_the_manifest_alone_does_not_show(saved: Path) -> None:
    part = sorted(saved.glob("*.rows"))[0]
    content = bytearray(part.read_bytes())
    content[-30] ^= 1
    part.write_bytes(content)
    run(saved)
    with pytest.raises(SnapshotCorrupt, match=rf"{part.name}' at byte \d+"):
        run(saved, "--verify")


@pytest.mark.parametrize("fid", ["2", "-3", "0x7fffffffffffffff", str(2**64 - 3)])
def test_explain_shows_a_row(saved: Path, fid: str) -> None:
    report = json.loads(run(saved, "--explain", fid, "--json"))
    (found,) = report["explain"]
    table = Table.load(saved)
    number = int(fid, 0)
    entry = table.entry(number - 2**64 if number >= 2**63 else number)
    assert entry is not None
    assert found["entry"]["id"] == entry.id
    assert found["entry"]["time_s"] == 1_700_000_000
    assert np.float32(found["entry"]["values"]).tolist() == entry.values.tolist()
    assert list(found["entry"]["state"][1]) == ["norm"]
    assert found["text"] == table.explain(entry.id)
    assert "is present" in run(saved, "--explain", fid)


def test_a_row_that_is_not_finite_is_valid_json(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    table = Table(SPEC)
    table.assign([1], np.array([[np.nan, np.inf, 1, 1, 1]], np.float32))
    table.save(tmp_path / "table")
    (found,) = json.loads(run(tmp_path / "table", "--explain", 1, "--json"), parse_constant=refuse)["explain"]
    assert found["entry"]["values"] == [None, None, 1, 1, 1]
    assert "[nan, inf, 1, 1, 1]" in run(tmp_path / "table", "--explain", 1)


def test_explain_gives_the_reason_for_an_absent_id_in_each_table(tmp_path: Path) -> None:
    waiting = 1 << 48
    tables = MultiTable([SPEC, TableSpec("item", [SliceSpec(2, optimizer=Adagrad())])])
    tables["user"].assign([waiting], np.ones((1, 5), np.float32))
    tables.save(tmp_path / "both")
    out = run(tmp_path / "both", "--explain", waiting)
    assert f"item: id {waiting} is absent: never seen" in out
    assert f"user: id {waiting} (slot 1) is absent: below threshold: seen 1 times" in out
    assert "does not contain" in out


def test_a_serving_table_and_a_rate_without_a_text_form_are_shown_too(tmp_path: Path) -> None:
    Table(SPEC).to_serving().save(tmp_path / "serving")
    assert "table user (serving)" in run(tmp_path / "serving", "--verify", "--explain", 1)
    table = Table(TableSpec("user", [SliceSpec(2, optimizer=Adagrad(), learning_rate=lambda step: 0.1)]))
    table.assign([1], [[1, 2]])
    table.save(tmp_path / "bare")
    out = run(tmp_path / "bare", "--verify")
    assert "checksums match" in out
    assert "dim 2: adagrad(), not saved, not saved" in out
    with pytest.raises(ConfigError, match="bare function"):
        run(tmp_path / "bare", "--explain", 1)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Tables as an export has them; ``user`` with rows in many parts."""
    piece = SliceSpec(3, optimizer=Adagrad(), compressor=Fp16())
    tables = MultiTable([TableSpec("user", [piece, piece], expire_days=30), TableSpec("item", [piece])])
    tables["user"].assign(range(500), np.tile(np.arange(500)[:, None], 6), time_s=1_700_000_000)
    tables.to_serving().save_images(tmp_path / "tables")
    return tmp_path / "tables"


def test_the_tables_of_an_export_are_shown_and_checked(images: Path) -> None:
    out = run(images, "--verify", "--explain", 7)
    assert f"{images}: 2 tables, " in out
    assert "checksums match" in out
    assert "table user (serving)" in out
    assert "500, dim 6," in out
    assert "slice 1    dim 3: adagrad(" in out
    assert "fp16()" in out
    assert "2023-11-14 22:13:20 UTC" in out
    assert "user: id 7 is present" in out
    assert "item: id 7 is absent: never seen; an export contains only the rows" in out
    report = json.loads(run(images.parent, "--json", "--explain", 7))  # the export itself
    assert report["path"] == str(images)
    assert report["bytes"] == sum(file.stat().st_size for file in images.glob("*.table"))
    assert [(each["name"], each["rows"]) for each in report["tables"]] == [("item", 0), ("user", 500)]
    assert [found["entry"] and found["entry"]["values"] for found in report["explain"]] == [None, [7.0] * 6]


def test_verify_finds_every_altered_byte_of_the_rows_of_an_export(images: Path, seed: int) -> None:
    file = images / "0001.table"
    sound = file.read_bytes()
    numbers = np.arange(500, dtype=np.float16)
    for value in np.random.default_rng(seed).choice(numbers[300:], 20, replace=False):
        content = bytearray(sound)
        content[sound.index(value.tobytes() * 6) + 5] ^= 1
        file.write_bytes(content)
        run(images)
        with pytest.raises(SnapshotCorrupt, match=r"0001.table' at byte \d+: the rows to byte \d+ were altered"):
            run(images, "--verify")
    file.write_bytes(sound[:-1])
    with pytest.raises(SnapshotCorrupt, match=r"0001\.table"):
        run(images)


@pytest.mark.parametrize("fid", ["ada", "1.5", "", str(2**64), str(-(2**63) - 1)])
def test_an_invalid_id_is_refused(saved: Path, fid: str) -> None:
    with pytest.raises(ConfigError, match="--explain"):
        run(saved, "--explain", fid)


def test_errors_are_one_line_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "setup_logging", lambda level: None)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "manifest.json").mkdir()
    for path, reason in [(tmp_path / "nothing", "holds no snapshot"), (tmp_path / "odd", "manifest.json")]:
        monkeypatch.setattr(sys, "argv", ["monolith", "inspect", "table", str(path)])
        with pytest.raises(SystemExit) as exited:
            program.main()
        shown = capsys.readouterr()
        assert exited.value.code == 1
        assert shown.out == ""
        assert shown.err.startswith("error: ")
        assert reason in shown.err
        assert shown.err.count("\n") == 1


def test_on_a_terminal_the_tables_are_in_a_grid(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    inspect.table(saved, verify=True, explain="2", as_json=False)
    out = capsys.readouterr().out
    assert "newest event" in out
    assert "user" in out
    assert "4 adagrad" in out
    assert "id 2 (slot 0) is present" in out


def test_help_shows_the_kinds_and_an_example() -> None:
    for arguments in (["inspect", "--help"], ["inspect", "table", "--help"]):
        result = CliRunner().invoke(program.app, arguments)
        assert result.exit_code == 0
        assert "Example: monolith inspect table" in result.output


@pytest.mark.parametrize(
    ("admission", "shown"),
    [
        (None, "not saved"),
        ({"kind": "no_filter", "occurrence_threshold": 3, "slot_thresholds": {}}, "all ids"),
        ({"kind": "sliding_hash", "occurrence_threshold": 0, "slot_thresholds": {}}, "all ids"),
        ({"kind": "sliding_hash", "occurrence_threshold": 3, "slot_thresholds": {}}, "sliding_hash (threshold 3)"),
        ({"kind": "sliding_hash", "occurrence_threshold": 0, "slot_thresholds": {"1": 2}}, "sliding_hash (slot 1: 2)"),
    ],
)
def test_the_admission_of_a_table_is_one_line(admission: dict[str, object] | None, shown: str) -> None:
    assert inspect._admission({"admission": admission}, 5) == shown
