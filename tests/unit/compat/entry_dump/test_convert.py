from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from monolith.compat.entry_dump.convert import (
    entry_dump_to_table,
    multi_entry_dump_to_tables,
    restore_multi_entry_dump,
    table_to_entry_dump,
    tables_to_multi_entry_dump,
)
from monolith.compat.entry_dump.dump import count_entries, write_multi_entry_dump
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.embedding import (
    Adagrad,
    Adam,
    BatchSoftmax,
    Constant,
    Entry,
    Fp16,
    Ftrl,
    MovingAverage,
    Sgd,
    SliceSpec,
    Table,
    TableSpec,
    WritableFile,
    read_entry_dump,
    write_entry_dump,
)
from monolith.embedding.entry import SliceState

DAY = 86400


def spec_of(name: str = "t", *, dim: int = 3, **settings: object) -> TableSpec:
    slices = [SliceSpec(1, optimizer=Ftrl()), SliceSpec(dim, optimizer=Adam())]
    return TableSpec(name, slices, **settings)  # type: ignore[arg-type]


def trained(spec: TableSpec, rows: int = 500, time_s: int = 1000) -> Table:
    table = Table(spec)
    ids = (np.arange(rows) - rows // 2) * 7919
    grads = np.random.default_rng(3).normal(size=(rows, spec.dim)).astype(np.float32)
    for step in range(3):
        table.apply_gradients(ids, grads * (step + 1), time_s=time_s, step=step)
    return table


def assert_same_rows(ours: Table, theirs: Table) -> None:
    assert len(ours) == len(theirs)
    for ids, _ in theirs.items():
        for fid in ids.tolist():
            mine, other = ours.entry(fid), theirs.entry(fid)
            assert mine is not None
            assert other is not None
            assert mine.time_s == other.time_s
            assert mine.values.tobytes() == other.values.tobytes()
            for one, two in zip(mine.state, other.state, strict=True):
                assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in two.items()}


@pytest.mark.parametrize("shards", [None, 3])
def test_a_table_survives_the_round_trip_and_trains_alike(tmp_path: Path, shards: int | None) -> None:
    table = trained(spec_of())
    assert table_to_entry_dump(table, tmp_path / "t", shards=shards) == 500
    back = entry_dump_to_table(tmp_path / "t", table.spec)
    assert_same_rows(back, table)
    assert back.max_time_s == table.max_time_s
    ids = np.arange(10) * 7919
    for each in (table, back):
        each.apply_gradients(ids, np.ones((10, 4), np.float32), time_s=2000, step=9)
    assert np.array_equal(table.lookup(ids), back.lookup(ids))


def test_entries_written_one_by_one_make_the_same_table(tmp_path: Path) -> None:
    table = trained(spec_of(), rows=50)
    table_to_entry_dump(table, tmp_path / "native")
    entries = [table.entry(fid) for ids, _ in table.items() for fid in ids.tolist()]
    write_entry_dump(tmp_path / "python", [each for each in entries if each is not None])
    assert sorted(each.id for each in read_entry_dump(tmp_path / "native")) == sorted(e.id for e in entries if e)
    assert_same_rows(entry_dump_to_table(tmp_path / "python", table.spec), table)


def test_optimizers_without_element_and_with_steps_survive(tmp_path: Path) -> None:
    spec = TableSpec(
        "t",
        [
            SliceSpec(1, optimizer=MovingAverage()),
            SliceSpec(1, optimizer=BatchSoftmax()),
            SliceSpec(2, optimizer=Sgd()),
            SliceSpec(1, optimizer=Adagrad()),
        ],
    )
    table = trained(spec, rows=20)
    table_to_entry_dump(table, tmp_path / "t")
    assert [state.kind for state in next(read_entry_dump(tmp_path / "t")).state] == ["batch_softmax", "sgd", "adagrad"]
    assert_same_rows(entry_dump_to_table(tmp_path / "t", spec), table)


def test_expired_rows_are_not_written(tmp_path: Path) -> None:
    spec = spec_of(expire_days=1, slot_expire_days={5: 0, 6: 3})
    table = Table(spec)
    newest = 10 * DAY
    times = {
        1: newest - DAY - 1,
        2: newest - DAY,
        3: newest - DAY + 1,
        4: newest,
        5 << 48: newest,
        6 << 48: newest - 2 * DAY,
    }
    for fid, time_s in times.items():
        table.assign([fid], np.ones((1, 4), np.float32), time_s=time_s)
    assert table_to_entry_dump(table, tmp_path / "t") == 3
    assert sorted(each.id for each in read_entry_dump(tmp_path / "t")) == [3, 4, 6 << 48]


def test_rows_of_one_time_are_all_kept(tmp_path: Path) -> None:
    table = trained(spec_of(expire_days=1), rows=10, time_s=0)
    assert table_to_entry_dump(table, tmp_path / "t") == 10


def test_values_that_a_record_lacks_are_those_of_a_new_row(tmp_path: Path) -> None:
    spec = TableSpec(
        "t",
        [
            SliceSpec(2, optimizer=Adagrad(initial_accumulator_value=0.5)),
            SliceSpec(2, optimizer=Sgd(), initializer=Constant(7)),
        ],
    )
    values, norm = np.array([1, 2, 3], np.float32), np.array([4, 5], np.float32)
    state = (SliceState("adagrad", {"norm": norm}), SliceState("sgd"))
    write_entry_dump(tmp_path / "t", [Entry(9, values[:3], state, 11), Entry(8, values[:2], state, 11)])
    table = entry_dump_to_table(tmp_path / "t", spec)
    assert table.lookup([9, 8]).tolist() == [[1, 2, 3, 7], [1, 2, 7, 7]]
    entry = table.entry(8)
    assert entry is not None
    assert entry.state[0]["norm"].tolist() == [4, 5]
    assert entry.time_s == 11


def test_an_item_cache_becomes_a_table_when_missing_state_is_allowed(tmp_path: Path) -> None:
    with WritableFile(tmp_path / "items-00000-of-00001") as file:
        file.append_entry_dump(5, 0.5, [1.0, 2.0, 3.0])
    with pytest.raises(RecordCorrupt, match=r"slice 0 \(ftrl\) has no element"):
        entry_dump_to_table(tmp_path / "items", spec_of())
    table = entry_dump_to_table(tmp_path / "items", spec_of(), allow_missing_state=True)
    assert table.lookup([5]).tolist() == [[0.5, 1, 2, 3]]
    assert table.to_serving().lookup([5]).tolist() == [[0.5, 1, 2, 3]]


def test_another_spec_is_refused_by_name(tmp_path: Path) -> None:
    table_to_entry_dump(trained(spec_of(), rows=5), tmp_path / "t")
    other = TableSpec("t", [SliceSpec(1, optimizer=Ftrl()), SliceSpec(3, optimizer=Adagrad())])
    with pytest.raises(RecordCorrupt, match=r"slice 1 \(adagrad\) finds the state of adam"):
        entry_dump_to_table(tmp_path / "t", other)
    with pytest.raises(RecordCorrupt, match="more than the table's 3 values"):
        entry_dump_to_table(tmp_path / "t", spec_of(dim=2))


def test_a_serving_table_cannot_be_written(tmp_path: Path) -> None:
    spec = TableSpec("t", [SliceSpec(2, optimizer=Sgd(), compressor=Fp16())])
    with pytest.raises(ConfigError, match="'t' is a serving table"):
        table_to_entry_dump(trained(spec, rows=5).to_serving(), tmp_path / "t")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    table_to_entry_dump(trained(spec_of(), rows=5), tmp_path / "t")
    path = tmp_path / "t-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordCorrupt, match=r"t-00000-of-00001: record at byte \d+"):
        entry_dump_to_table(tmp_path / "t", spec_of())


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    table_to_entry_dump(trained(spec_of()), tmp_path / "t", progress=lambda *call: calls.append(call))
    assert calls[-1] == (500, 500)
    entry_dump_to_table(tmp_path / "t", spec_of(), progress=lambda *call: calls.append(call))
    assert calls[-1][0] == calls[-1][1] == (tmp_path / "t-00000-of-00001").stat().st_size


@pytest.mark.parametrize("shards", [1, 4])
def test_several_tables_survive_the_round_trip(tmp_path: Path, shards: int) -> None:
    tables = {name: trained(spec_of(name, dim=dim), rows=100 * dim) for name, dim in (("b", 2), ("a", 3))}
    assert tables_to_multi_entry_dump(tables, tmp_path / "m", shards=shards) == {"a": 300, "b": 200}
    assert count_entries(tmp_path / "m") == {"a": 300, "b": 200}
    back = multi_entry_dump_to_tables(tmp_path / "m", [table.spec for table in tables.values()])
    assert list(back) == ["a", "b"]
    for name, table in back.items():
        assert_same_rows(table, tables[name])


def test_unknown_tables_are_skipped_and_absent_ones_only_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = {name: trained(spec_of(name, dim=dim), rows=40) for name, dim in (("slot0", 1), ("slot1", 2), ("slot2", 2))}
    tables_to_multi_entry_dump(saved, tmp_path / "m", shards=2)
    specs = [spec_of("slot0", dim=1), spec_of("new", dim=2, extra_restore_names=("slot2",)), spec_of("slot3", dim=3)]
    with caplog.at_level(logging.WARNING):
        back = multi_entry_dump_to_tables(tmp_path / "m", specs)
    assert {name: len(table) for name, table in back.items()} == {"new": 40, "slot0": 40, "slot3": 0}
    assert_same_rows(back["new"], saved["slot2"])
    assert [record.args[0] for record in caplog.records if record.args] == ["slot3"]


def test_restoring_into_tables_keeps_the_rows_they_have(tmp_path: Path) -> None:
    source = trained(spec_of("a"), rows=10)
    tables_to_multi_entry_dump({"a": source}, tmp_path / "m")
    target = Table(spec_of("a"))
    target.assign([123456], np.ones((1, 4), np.float32))
    restore_multi_entry_dump(tmp_path / "m", {"a": target})
    assert len(target) == 11


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names of specs"):
        multi_entry_dump_to_tables(tmp_path / "m", [spec_of("a"), spec_of("a")])


def test_short_data_is_refused(tmp_path: Path) -> None:
    write_multi_entry_dump(tmp_path / "m", {"a": [], "b": []})
    data = tmp_path / "m.meta-00000-of-00001"
    tables_to_multi_entry_dump({"a": trained(spec_of("a"), rows=10)}, tmp_path / "n")
    (tmp_path / "m.meta-00000-of-00001").write_bytes((tmp_path / "n.meta-00000-of-00001").read_bytes())
    assert data.exists()
    with pytest.raises(RecordCorrupt, match="ends after 0 of 10 entries of table 'a'"):
        multi_entry_dump_to_tables(tmp_path / "m", [spec_of("a")])
