from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import monolith as mt
from monolith.cli import main as program
from monolith.compat.entry_dump.convert import table_to_entry_dump, tables_to_multi_entry_dump
from monolith.core.errors import CheckpointMissing, ConfigError
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


class Ranker(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        for name in ("a", "b"):
            self.embedding_feature(name)
        self.vec = self.embedding_slice(["a", "b"], "vec", 2, out="add_n", optimizer=Adagrad())

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.vec(batch).sum(1), label=batch.label[:, 0])


def test_a_run_starts_from_all_parts_of_an_original_checkpoint(tmp_path: Path) -> None:
    assets = tmp_path / "model.ckpt-100.assets"
    assets.mkdir()
    model = Ranker()
    specs = model.declaration.table_specs()
    ids = np.arange(1, 21)
    whole = MultiTable(specs)
    for name in ("a", "b"):
        whole[name].assign(ids, np.stack([ids, -ids], 1).astype(np.float32) + (name == "b"), time_s=5)
    for server in range(3):  # the original wrote the ids of each parameter server to its own set of files
        part = MultiTable(specs)
        own = ids[ids % 3 == server]
        for name in ("a", "b"):
            part[name].assign(own, whole[name].lookup(own), time_s=5)
        tables = {name: part[name] for name in part}
        tables_to_multi_entry_dump(tables, assets / f"MonolithMultiHashTable_{server}", shards=2)
    spec_file = tmp_path / "specs.json"
    spec_file.write_text(json.dumps([json.loads(spec.to_json()) for spec in specs]))
    out = run("--multi", "--to", "snapshot", "--spec", spec_file, assets, tmp_path / "snap")
    assert out == "a: 20 rows\nb: 20 rows\n"

    config = mt.RunConfig(model_dir=str(tmp_path / "run"), restore_dir=str(tmp_path / "snap"))
    batch = mt.Batch.from_arrays(ids={"a": [[3], [4]], "b": [[5], []]}, label=[0, 1])
    for _ in range(2):  # a run that ends before its first checkpoint starts from the snapshot again
        estimator = mt.Estimator(Ranker(), config)
        assert estimator.step == 0
        assert isinstance(estimator.store, MultiTable)
        for name in ("a", "b"):
            np.testing.assert_array_equal(estimator.store[name].lookup(ids), whole[name].lookup(ids))
    estimator.train([batch])
    resumed = mt.Estimator(Ranker(), config)
    assert resumed.step == 1
    assert isinstance(resumed.store, MultiTable)
    assert not np.array_equal(resumed.store["a"].lookup([3]), whole["a"].lookup([3]))
    assert np.array_equal(resumed.store["a"].lookup([9]), whole["a"].lookup([9]))


def test_a_single_table_takes_the_files_of_several_servers(tmp_path: Path) -> None:
    for server, ids in enumerate(([1, 2], [3])):
        table = Table(spec_of("user"))
        table.assign(ids, np.full((len(ids), 2), server, np.float32))
        table_to_entry_dump(table, tmp_path / f"user_{server}")
    (tmp_path / "spec.json").write_text(spec_of("user").to_json())
    sources = [tmp_path / "user_0", tmp_path / "user_1"]
    assert run("--to", "snapshot", "--spec", tmp_path / "spec.json", *sources, tmp_path / "snap") == "user: 3 rows\n"
    assert Table.load(tmp_path / "snap").lookup([1, 2, 3])[:, 0].tolist() == [0, 0, 1]
    with pytest.raises(ConfigError, match="SOURCE is 2 paths, expected one snapshot"):
        run("--to", "entry-dump", *sources, tmp_path / "back")
    with pytest.raises(CheckpointMissing, match="has no multi-table file NAME-ddddd-of-ddddd"):
        run("--multi", "--to", "snapshot", "--spec", tmp_path / "spec.json", tmp_path / "snap", tmp_path / "other")


def test_filters_and_single_tables_beside_the_parts_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assets = tmp_path / "model.ckpt-100.assets"
    assets.mkdir()
    for server in range(2):
        table = Table(spec_of("a"))
        table.assign([server], np.ones((1, 2), np.float32))
        tables_to_multi_entry_dump({"a": table}, assets / f"MonolithMultiHashTable_{server}")
        (assets / f"hash_filter_{server}-00000-of-00002").touch()
        (assets / f"hash_filter_{server}-00001-of-00002").touch()
    table_to_entry_dump(filled("item"), assets / "MonolithHashTable_cached_item_embeddings")
    specs = tmp_path / "spec.json"
    specs.write_text(spec_of("a").to_json())
    convert = ("--multi", "--to", "snapshot", "--spec", specs, assets)
    with caplog.at_level("WARNING"):
        assert run(*convert, tmp_path / "snap") == "a: 2 rows\n"
    assert "MonolithHashTable_cached_item_embeddings,hash_filter_0,hash_filter_1" in caplog.text
    (assets / "MonolithMultiHashTable_1.meta-00000-of-00001").unlink()
    with pytest.raises(CheckpointMissing, match=r"MonolithMultiHashTable_1\.meta"):
        run(*convert, tmp_path / "other")


def test_several_tables_without_the_flag_are_refused_with_it_as_the_remedy(tmp_path: Path) -> None:
    tables_to_multi_entry_dump({name: filled(name) for name in ("a", "b")}, tmp_path / "dump")
    (tmp_path / "spec.json").write_text(spec_of("a").to_json())
    with pytest.raises(ConfigError, match="add --multi"):
        run("--to", "snapshot", "--spec", tmp_path / "spec.json", tmp_path / "dump", tmp_path / "snap")
    MultiTable([spec_of("a"), spec_of("b")]).save(tmp_path / "both")
    with pytest.raises(ConfigError, match=r"2 tables \(a, b\), expected one; add --multi"):
        run("--to", "entry-dump", tmp_path / "both", tmp_path / "new" / "dump")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("multi", [False, True])
def test_the_rows_of_the_snapshot_are_counted_without_the_expired_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, multi: bool
) -> None:
    table = Table(spec_of("a"))
    for row_id, time_s in ((1, 1_700_000_000), (2, 1_700_000_000 + 10 * 86400)):
        table.assign([row_id], np.ones((1, 2), np.float32), time_s=time_s)
    if multi:
        tables_to_multi_entry_dump({"a": table}, tmp_path / "dump")
    else:
        table_to_entry_dump(table, tmp_path / "dump")
    spec = TableSpec("a", spec_of("a").slices, expire_days=3)
    (tmp_path / "spec.json").write_text(spec.to_json())
    flags = ("--multi",) if multi else ()
    convert = ("--to", "snapshot", *flags, "--spec", tmp_path / "spec.json", tmp_path / "dump", tmp_path / "snap")
    with caplog.at_level("WARNING"):
        assert run(*convert) == "a: 1 rows\n"
    assert "expired rows left out table=a rows=1" in caplog.text
    assert len(Table.load(tmp_path / "snap")) == 1
