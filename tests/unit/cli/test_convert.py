from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.compat.entry_dump.convert import table_to_entry_dump, tables_to_multi_entry_dump
from monolith.core.errors import ConfigError
from monolith.embedding import Adagrad, MultiTable, SliceSpec, Table, TableSpec


def spec_of(name: str) -> TableSpec:
    return TableSpec(name, [SliceSpec(2, optimizer=Adagrad())])


def filled(name: str) -> Table:
    table = Table(spec_of(name))
    table.apply_gradients([1, 2, 3], np.ones((3, 2), np.float32), time_s=5)
    return table


def run(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["convert", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_there_and_back_again(tmp_path: Path) -> None:
    table = filled("user")
    table_to_entry_dump(table, tmp_path / "dump")
    (tmp_path / "spec.json").write_text(table.spec.to_json())
    assert run("--to", "snapshot", "--spec", tmp_path / "spec.json", tmp_path / "dump", tmp_path / "snap") == (
        "user: 3 rows\n"
    )
    assert np.array_equal(Table.load(tmp_path / "snap").lookup([1, 2, 3]), table.lookup([1, 2, 3]))
    out = run("--to", "entry-dump", tmp_path / "snap", tmp_path / "new" / "dump", "--json")
    assert json.loads(out) == {"to": "entry-dump", "destination": str(tmp_path / "new" / "dump"), "rows": {"user": 3}}
    old = (tmp_path / "dump-00000-of-00001").read_bytes()
    assert len((tmp_path / "new" / "dump-00000-of-00001").read_bytes()) == len(old)


def test_several_tables(tmp_path: Path) -> None:
    tables = {name: filled(name) for name in ("a", "b")}
    tables_to_multi_entry_dump(tables, tmp_path / "dump")
    specs = tmp_path / "specs.json"
    specs.write_text(json.dumps([json.loads(table.spec.to_json()) for table in tables.values()]))
    out = run("--multi", "--to", "snapshot", "--spec", specs, tmp_path / "dump", tmp_path / "snap")
    assert out == "a: 3 rows\nb: 3 rows\n"
    assert list(MultiTable.load(tmp_path / "snap")) == ["a", "b"]
    run("--multi", "--to", "entry-dump", tmp_path / "snap", tmp_path / "back", "--shards", 2)
    assert len(list(tmp_path.glob("back*"))) == 4


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    table = filled("user")
    table_to_entry_dump(table, tmp_path / "dump")
    (tmp_path / "spec.json").write_text(table.spec.to_json())
    to_snapshot = ("--to", "snapshot", "--spec", tmp_path / "spec.json", tmp_path / "dump", tmp_path / "snap")
    to_dump = ("--to", "entry-dump", tmp_path / "snap", tmp_path / "dump")
    run(*to_snapshot)
    with pytest.raises(ConfigError, match="exists"):
        run(*to_snapshot)
    with pytest.raises(ConfigError, match="exist"):
        run(*to_dump)
    run(*to_dump, "--overwrite")
    run(*to_snapshot, "--overwrite")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read"), ("{", "cannot be read"), ("[]", "gives 0 tables"), ("{}", "no key")],
)
def test_a_bad_spec_is_refused(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "spec.json").write_text(content)
    with pytest.raises(ConfigError, match=reason):
        run("--to", "snapshot", "--spec", tmp_path / "spec.json", tmp_path / "dump", tmp_path / "snap")


def test_a_spec_for_a_snapshot_that_has_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--spec"):
        run("--to", "entry-dump", "--spec", tmp_path / "spec.json", tmp_path / "snap", tmp_path / "dump")
