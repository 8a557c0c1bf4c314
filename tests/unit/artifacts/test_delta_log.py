"""A delta log, replayed, yields the tables it was written from; a damaged log is refused with the reason."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.artifacts.delta_log import (
    DeltaReader,
    DeltaWriter,
    Segment,
    remove_log,
    segment_path,
    set_aside_log,
    shard_folder,
)
from monolith.core.errors import ConfigError, DeltaLogBroken, SchemaMismatch
from monolith.embedding import Adagrad, Adam, Fp16, MultiTable, RandomUniform, Sgd, SliceSpec, Table, TableSpec
from monolith.testing.fakes.clock import FakeClock

DAY = 86400
SPECS = [
    TableSpec(
        "user",
        [
            SliceSpec(1, optimizer=Sgd(0.1)),
            SliceSpec(3, optimizer=Adam(), initializer=RandomUniform(), compressor=Fp16()),
        ],
        expire_days=2,
    ),
    TableSpec("item", [SliceSpec(2, optimizer=Adagrad(0.1), initializer=RandomUniform())], expire_days=2),
]


def made(specs: list[TableSpec] | None = None) -> MultiTable:
    return MultiTable(SPECS if specs is None else specs)


def train(tables: MultiTable, ids: list[int], *, seed: int = 0, time_s: int = DAY) -> None:
    rng = np.random.default_rng(seed)
    grads = {name: rng.normal(size=(len(ids), tables[name].dim)).astype(np.float32) for name in tables.names}
    tables.apply_gradients(dict.fromkeys(tables.names, ids), grads, time_s=time_s, step=seed)


def rows_of(table: Table) -> dict[int, tuple[int, bytes]]:
    """Everything a table keeps per id, to the last bit."""
    ids = np.sort(np.concatenate([table._native.part_ids(part) for part in range(table._native.parts)]))
    found, times, rows = table._native.raw_rows(ids)
    return {int(fid): (int(time), row.tobytes()) for fid, time, row in zip(found, times, rows, strict=True)}


def state_of(tables: MultiTable) -> dict[str, tuple[int, dict[int, tuple[int, bytes]]]]:
    return {name: (tables[name].max_time_s, rows_of(tables[name])) for name in tables.names}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_s=1000.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


def written(folder: Path, clock: FakeClock, segments: int = 3) -> MultiTable:
    """Tables whose log has that many segments, a second apart."""
    tables = made()
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        for number in range(segments):
            train(tables, [number, number + 1, -number - 1], seed=number, time_s=DAY + number)
            tables["item"].delete([number - 1])
            assert writer.write() == number + 1
            clock.advance_s(1)
    return tables


# --- reading equals writing ---

IDS = st.lists(st.integers(-12, 12), min_size=1, max_size=8)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), IDS),
        st.tuples(st.just("assign"), IDS),
        st.tuples(st.just("delete"), IDS),
        st.tuples(st.just("reinitialize"), IDS),
        st.tuples(st.just("evict"), st.just([0])),
        st.tuples(st.just("clear"), st.just([0])),
        st.tuples(st.just("write"), st.just([0])),
        st.tuples(st.just("reopen"), st.just([0])),
        st.tuples(st.just("snapshot"), st.just([0])),
    ),
    max_size=25,
)


@given(operations=OPERATIONS)
@settings(max_examples=60)
def test_a_snapshot_and_the_segments_after_it_give_the_live_tables(operations: list[tuple[str, list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, clock, tables = Path(place) / "log", FakeClock(), made()
        snapshots: list[tuple[int, Path]] = []
        writer = DeltaWriter(folder, (0, 1), tables, clock=clock)
        for number, (operation, ids) in enumerate(operations):
            time_s = DAY + number * DAY // 4
            match operation:
                case "train":
                    train(tables, ids, seed=number, time_s=time_s)
                case "assign":
                    tables["user"].assign(ids, np.full((len(ids), 4), number, np.float32), time_s=time_s)
                case "delete":
                    tables["user"].delete(ids)
                case "reinitialize":
                    tables["item"].reinitialize(ids)
                case "evict":
                    tables.evict()
                case "clear":
                    tables["item"].clear()
                case "write":
                    writer.write()
                case "reopen":
                    writer.close()
                    writer = DeltaWriter(folder, (0, 1), tables, clock=clock)
                case "snapshot":
                    tables.evict()  # a snapshot leaves expired rows out
                    sequence, cut = writer.cut(tables.cut)
                    cut.write(Path(place) / f"snapshot-{number}")
                    snapshots.append((sequence, Path(place) / f"snapshot-{number}"))
        writer.write()
        writer.close()
        live = state_of(tables)
        fresh = made()
        assert DeltaReader(folder).replay(fresh).sequence == writer.sequence
        assert state_of(fresh) == live
        DeltaReader(folder).replay(fresh)
        assert state_of(fresh) == live, "replaying twice does harm"
        for sequence, snapshot in snapshots:
            restored = made()
            restored.restore(snapshot)
            DeltaReader(folder).replay(restored, after=sequence)
            assert state_of(restored) == live


def test_every_segment_leads_to_the_state_it_was_written_at(folder: Path, clock: FakeClock) -> None:
    tables, states = made(), {}
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        for number in range(5):
            train(tables, [number, 7], seed=number)
            tables["user"].delete([number - 2])
            sequence = writer.write()
            states[sequence] = state_of(tables)
    for sequence, state in states.items():
        fresh = made()
        replayed = DeltaReader(folder).replay(fresh, until=sequence)
        assert replayed.sequence == sequence
        assert state_of(fresh) == state


def test_time_travel_stops_before_the_first_segment_that_is_later(folder: Path, clock: FakeClock) -> None:
    written(folder, clock)
    reader = DeltaReader(folder)
    assert [segment.wall_time_s for segment in reader.segments()] == [1000.0, 1001.0, 1002.0]
    assert reader.replay(made(), until_time_s=1001.5).sequence == 2
    assert reader.replay(made(), until_time_s=1001.0).sequence == 2
    assert reader.replay(made(), until_time_s=999.0).sequence == 0


def test_a_clock_that_goes_back_does_not_turn_the_log_around(folder: Path, clock: FakeClock) -> None:
    tables = written(folder, clock, segments=1)
    clock.set_now_s(500.0)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=1) as writer:
        train(tables, [5])
        writer.write()
    assert [segment.wall_time_s for segment in DeltaReader(folder).segments()] == [1000.0, 1000.0]


def test_nothing_is_written_when_nothing_changed(folder: Path, clock: FakeClock) -> None:
    tables = made()
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        train(tables, [1])
        assert writer.write() == 1
        assert writer.write() is None
        assert writer.cut(lambda: "taken") == (1, "taken")
    assert len(list(folder.iterdir())) == 1


def test_a_segment_tells_changed_rows_from_removed_ones(folder: Path, clock: FakeClock) -> None:
    tables = made()
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        train(tables, [1, 2, 3, 4], time_s=DAY)
        writer.write()
        train(tables, [4, 5], time_s=9 * DAY)
        tables["user"].delete([1])
        tables["item"].evict(9 * DAY)
        writer.write()
    user, item = (DeltaReader(folder).segments()[-1].tables[name] for name in ("user", "item"))
    assert (user.upserts, user.tombstones, user.is_complete) == (2, 1, False)
    assert (item.upserts, item.tombstones, item.newest_event_s) == (2, 3, 2 * DAY)


def test_thousands_of_rows_take_several_blocks(folder: Path, clock: FakeClock) -> None:
    tables, rng = made(), np.random.default_rng(1)
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        for _ in range(3):
            train(tables, rng.integers(-(2**63), 2**63 - 1, 20_000).tolist())
            tables["user"].delete(next(iter(tables["user"].items()))[0][::2])
            writer.write()
    fresh = made()
    DeltaReader(folder).replay(fresh)
    assert state_of(fresh) == state_of(tables)


def test_notes_that_overflow_make_the_next_segment_complete(folder: Path, clock: FakeClock) -> None:
    spec = TableSpec("t", [SliceSpec(2, optimizer=Sgd(0.1))], touched_capacity=10)
    tables = made([spec])
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        train(tables, [1, 2, 3])
        writer.write()
        tables["t"].delete([1])
        train(tables, list(range(2, 40)))
        writer.write()
        train(tables, [5])
        writer.write()
    segments = DeltaReader(folder).segments()
    assert [segment.is_complete for segment in segments] == [True, True, False]
    fresh = made([spec])
    train(fresh, [1, 99])
    DeltaReader(folder).replay(fresh)
    assert state_of(fresh) == state_of(tables)


# --- marks, locks and cuts ---


def test_marks_travel_with_the_segment(folder: Path, clock: FakeClock) -> None:
    tables, marks = made(), [b"first"]
    with DeltaWriter(folder, (0, 1), tables, clock=clock, marks=lambda: marks[0]) as writer:
        train(tables, [1])
        assert writer.write() == 1
        marks[0] = b"second" * 1000
        assert writer.write() == 2, "marks alone are a change"
        assert writer.write() is None
    reader = DeltaReader(folder)
    assert reader.replay(made(), until=1).marks == b"first"
    assert reader.replay(made()).marks == b"second" * 1000
    assert reader.replay(made(), after=2).marks == b"second" * 1000


def test_the_lock_is_held_while_rows_are_copied_and_not_while_they_are_written(folder: Path, clock: FakeClock) -> None:
    events: list[str] = []

    class Lock(contextlib.AbstractContextManager["Lock"]):
        def __enter__(self) -> Lock:
            events.append("locked")
            return self

        def __exit__(self, *error: object) -> None:
            events.append(f"free, {len(list(folder.iterdir()))} files")

    def marks() -> bytes:
        events.append("marks")
        return b"m"

    tables = made()
    with DeltaWriter(folder, (0, 1), tables, clock=clock, lock=Lock(), marks=marks) as writer:
        train(tables, [1])
        writer.cut(lambda: events.append("taken"))
    assert events == ["locked", "marks", "taken", "free, 0 files"]
    assert len(list(folder.iterdir())) == 1


# --- the writer's life ---


def test_a_writer_continues_at_the_end_of_the_log(folder: Path, clock: FakeClock) -> None:
    written(folder, clock)
    tables = made()
    replayed = DeltaReader(folder).replay(tables)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=replayed.sequence) as writer:
        assert writer.write() is None
        train(tables, [1])
        assert writer.write() == 4
    segment = DeltaReader(folder).segments()[-1]
    assert (segment.is_complete, segment.upserts, segment.previous) == (False, 2, 3)


@pytest.mark.parametrize("holds", [0, 2, 7], ids=["nothing", "something older", "something the log has lost"])
def test_a_writer_whose_tables_are_not_at_the_end_writes_all_rows(folder: Path, clock: FakeClock, holds: int) -> None:
    written(folder, clock)
    tables = made()
    train(tables, [50])
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=holds) as writer:
        assert writer.write() == max(3, holds) + 1
    other = made()
    train(other, [1, 2, 3])
    DeltaReader(folder).replay(other)
    assert rows_of(other["user"]) == rows_of(tables["user"])
    follower = made()
    DeltaReader(folder).replay(follower, until=3)
    DeltaReader(folder).replay(follower, after=3)
    assert rows_of(follower["user"]) == rows_of(tables["user"])


def test_a_log_has_one_writer(folder: Path, clock: FakeClock) -> None:
    with (
        DeltaWriter(folder, (0, 1), made(), clock=clock),
        pytest.raises(ConfigError, match="in use by another process"),
    ):
        DeltaWriter(folder, (0, 1), made(), clock=clock)
    DeltaWriter(folder, (0, 1), made(), clock=clock).close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": (1, 2)}, "is the durable log of shard 0 of 1, expected the durable log of shard 1 of 2"),
        ({"flavour": "serving"}, "expected the serving log"),
        ({"flavour": "other"}, "flavour is 'other', expected 'durable' or 'serving'"),
        ({"shard": (2, 2)}, r"shard is \(2, 2\), expected \(index, count\)"),
    ],
)
def test_a_writer_refuses_the_log_of_another(
    folder: Path, clock: FakeClock, change: dict[str, Any], message: str
) -> None:
    written(folder, clock)
    with pytest.raises(ConfigError, match=message):
        DeltaWriter(folder, **{"shard": (0, 1), "tables": made(), "clock": clock, **change})
    DeltaWriter(folder, (0, 1), made(), clock=clock).close()


def test_a_segment_that_cannot_be_written_comes_with_the_next(folder: Path, clock: FakeClock) -> None:
    tables = made()
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        train(tables, [1, 2])
        writer.write()
        obstacle = folder / f"seg-{2:020d}.delta.tmp"
        obstacle.mkdir()
        train(tables, [2, 3])
        tables["user"].delete([1])
        with pytest.raises(OSError, match="cannot create"):
            writer.write()
        obstacle.rmdir()
        train(tables, [4])
        assert writer.write() == 2
    assert DeltaReader(folder).segments()[-1].upserts == 6
    fresh = made()
    DeltaReader(folder).replay(fresh)
    assert state_of(fresh) == state_of(tables)


def test_a_write_that_fails_leaves_the_tables_free_to_be_cleared(folder: Path, clock: FakeClock) -> None:
    tables = made()

    def fail() -> None:
        raise ValueError("not now")

    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        train(tables, list(range(50)))
        with pytest.raises(ValueError, match="not now"):
            writer.cut(fail)
        clearing = threading.Thread(target=lambda: [tables[name].clear() for name in tables], daemon=True)
        clearing.start()
        clearing.join(30)
        assert not clearing.is_alive()  # a cut that stays keeps the rows, and clear waits for it


def test_leftovers_of_a_killed_writer_are_removed(folder: Path, clock: FakeClock) -> None:
    tables = written(folder, clock)
    (folder / f"seg-{4:020d}.delta.tmp").write_bytes(b"half")
    DeltaWriter(folder, (0, 1), tables, clock=clock, holds=3).close()
    assert len(list(folder.iterdir())) == 3


# --- retention ---


def test_compaction_removes_the_segments_that_a_snapshot_covers(folder: Path, clock: FakeClock, tmp_path: Path) -> None:
    tables = written(folder, clock, segments=4)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=4, marks=lambda: b"m") as writer:
        train(tables, [9])
        tables.evict()
        sequence, cut = writer.cut(tables.cut)
        cut.write(tmp_path / "snapshot")
        train(tables, [10])
        writer.write()
        assert writer.compact(sequence) == 4
        assert writer.compact(sequence) == 0
    reader = DeltaReader(folder)
    assert [segment.sequence for segment in reader.segments()] == [5, 6]
    assert reader.marks(sequence) == b"m"
    restored = made()
    restored.restore(tmp_path / "snapshot")
    reader.replay(restored, after=sequence)
    assert state_of(restored) == state_of(tables)
    with pytest.raises(DeltaLogBroken, match=r"has a gap: .* follows segment 4, the last good segment is 2") as info:
        reader.replay(made(), after=2)
    assert info.value.last_good == 2


def test_compaction_never_removes_the_newest_segment(folder: Path, clock: FakeClock) -> None:
    tables = written(folder, clock)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=3) as writer:
        assert writer.compact(1000) == 2
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=3) as writer:
        assert writer.sequence == 3


# --- damaged logs are refused ---


def test_a_missing_segment_is_a_gap(folder: Path, clock: FakeClock) -> None:
    written(folder, clock, segments=4)
    (folder / f"seg-{3:020d}.delta").unlink()
    tables = made()
    with pytest.raises(DeltaLogBroken, match=r"has a gap: .*4.delta' follows segment 3, .* is 2; start from") as info:
        DeltaReader(folder).replay(tables)
    assert info.value.last_good == 2
    assert len(tables["user"]) == 0
    assert DeltaReader(folder).replay(tables, until=info.value.last_good).sequence == 2


def test_a_missing_first_segment_is_a_gap(folder: Path, clock: FakeClock) -> None:
    written(folder, clock)
    (folder / f"seg-{1:020d}.delta").unlink()
    with pytest.raises(DeltaLogBroken, match="has a gap") as info:
        DeltaReader(folder).replay(made())
    assert info.value.last_good == 0


def test_a_log_that_ends_before_the_snapshot_is_refused(folder: Path, clock: FakeClock) -> None:
    written(folder, clock)
    with pytest.raises(DeltaLogBroken, match="ends at 3, expected segment 9"):
        DeltaReader(folder).replay(made(), after=9)
    with pytest.raises(DeltaLogBroken, match="is empty, expected segment 9"):
        DeltaReader(folder / "none").replay(made(), after=9)
    with pytest.raises(DeltaLogBroken, match="ends at segment 3, expected segment 7"):
        DeltaReader(folder).replay(made(), until=7)


def test_any_byte_that_is_not_as_written_is_refused(folder: Path, clock: FakeClock) -> None:
    tables = made()
    with DeltaWriter(folder, (0, 1), tables, clock=clock, marks=lambda: b"marks") as writer:
        train(tables, [1, 2])
        writer.write()
        train(tables, [3])
        tables["user"].delete([1])
        writer.write()
    victim = folder / f"seg-{2:020d}.delta"
    content = victim.read_bytes()
    target = made()
    DeltaReader(folder).replay(target, until=1)
    state = state_of(target)

    def refuses(damaged: bytes) -> None:
        victim.write_bytes(damaged)
        with pytest.raises(DeltaLogBroken, match=r"at byte .* the last good segment is 1") as info:
            DeltaReader(folder).replay(target, after=1)
        assert info.value.last_good == 1

    for place in range(len(content)):
        refuses(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
    for length in range(0, len(content), 7):
        refuses(content[:length])
    refuses(content[:-1])
    refuses(content + b"\0")
    assert state_of(target) == state
    victim.write_bytes(content)
    DeltaReader(folder).replay(target, after=1)
    assert state_of(target) == state_of(tables)


def test_a_damaged_newest_segment_stops_the_writer_until_it_is_moved_away(folder: Path, clock: FakeClock) -> None:
    written(folder, clock)
    newest = folder / f"seg-{3:020d}.delta"
    newest.write_bytes(newest.read_bytes()[:20])
    tables = made()
    with pytest.raises(DeltaLogBroken, match="it is the newest segment; move it away to resume from segment 2"):
        DeltaWriter(folder, (0, 1), tables, clock=clock)
    newest.unlink()
    replayed = DeltaReader(folder).replay(tables)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=replayed.sequence) as writer:
        train(tables, [1])
        assert writer.write() == 3


def test_damage_before_a_complete_segment_does_not_matter(folder: Path, clock: FakeClock) -> None:
    written(folder, clock)
    tables = made()
    train(tables, [77])
    with DeltaWriter(folder, (0, 1), tables, clock=clock) as writer:
        writer.write()
    (folder / f"seg-{2:020d}.delta").write_bytes(b"rubbish")
    fresh = made()
    assert DeltaReader(folder).replay(fresh).segments == 1
    assert state_of(fresh) == state_of(tables)


def test_a_segment_of_another_log_or_under_another_name_is_refused(
    folder: Path, clock: FakeClock, tmp_path: Path
) -> None:
    written(folder, clock)
    written(tmp_path / "other", clock)
    second = folder / f"seg-{2:020d}.delta"
    shutil.copy(tmp_path / "other" / second.name, second)
    with pytest.raises(DeltaLogBroken, match="belong to different logs"):
        DeltaReader(folder).replay(made())
    shutil.copy(folder / f"seg-{3:020d}.delta", second)
    with pytest.raises(DeltaLogBroken, match="is segment 3, expected segment"):
        DeltaReader(folder).replay(made())


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (SPECS[:1], "holds 2 tables, there are 1"),
        ([SPECS[0], TableSpec("thing", SPECS[1].slices)], "holds a table 'item' where 'thing' is asked for"),
        ([SPECS[0], TableSpec("item", [SliceSpec(2, optimizer=Sgd(0.1))])], r"has slices sgd\(2\), .* adagrad\(2\)"),
        ([SPECS[0], TableSpec("item", [SliceSpec(3, optimizer=Adagrad(0.1))])], r"has slices adagrad\(3\)"),
    ],
)
def test_tables_that_are_not_those_of_the_log_are_refused(
    folder: Path, clock: FakeClock, specs: list[TableSpec], message: str
) -> None:
    written(folder, clock)
    tables = made(specs)
    with pytest.raises(SchemaMismatch, match=message):
        DeltaReader(folder).replay(tables)
    assert [len(tables[name]) for name in tables] == [0] * len(tables)


# --- serving ---


def serving(tables: MultiTable, **settings: bool) -> MultiTable:
    """Empty serving tables of the same specs."""
    twin = MultiTable(())
    empty = made(list(tables.specs.values()))
    twin._tables = {name: empty[name].to_serving(**settings) for name in empty}
    return twin


@pytest.mark.parametrize("flavour", ["durable", "serving"])
def test_serving_tables_follow_a_log_of_either_flavour(folder: Path, clock: FakeClock, flavour: Any) -> None:
    tables = made()
    served = serving(tables)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, flavour=flavour) as writer:
        for number in range(4):
            train(tables, [number, number + 1, number + 2], seed=number)
            tables["item"].delete([number])
            writer.write()
            DeltaReader(folder).replay(served, after=number)
            for name in tables:
                assert rows_of(served[name]) == rows_of(tables[name].to_serving())


def test_a_serving_log_is_smaller_and_cannot_be_trained_from(folder: Path, clock: FakeClock, tmp_path: Path) -> None:
    sizes = {}
    for flavour in ("durable", "serving"):
        tables = made()
        with DeltaWriter(tmp_path / flavour, (0, 1), tables, clock=clock, flavour=flavour) as writer:  # type: ignore[arg-type]
            train(tables, list(range(1000)))
            writer.write()
        sizes[flavour] = DeltaReader(tmp_path / flavour).segments()[0].bytes
    assert sizes["serving"] < 0.6 * sizes["durable"]
    with pytest.raises(SchemaMismatch, match="is of the serving flavour"):
        DeltaReader(tmp_path / "serving").replay(made())
    with pytest.raises(ConfigError, match="is a serving table: it has no optimizer state; write its log with flavour"):
        DeltaWriter(folder, (0, 1), serving(made()), clock=clock)


@pytest.mark.parametrize("flavour", ["durable", "serving"])
def test_rows_that_became_zero_leave_a_table_that_skips_them(folder: Path, clock: FakeClock, flavour: Any) -> None:
    tables = made()
    served = serving(tables, skip_zero_rows=True)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, flavour=flavour) as writer:
        train(tables, [1, 2])
        writer.write()
        DeltaReader(folder).replay(served)
        tables["user"].assign([1], np.zeros((1, 4), np.float32), time_s=DAY)
        writer.write()
        DeltaReader(folder).replay(served, after=1)
    assert served["user"].contains([1, 2]).tolist() == [False, True]


# --- shards ---


def test_logs_of_several_shards_make_one_table_and_one_log_makes_several(tmp_path: Path, clock: FakeClock) -> None:
    whole, shards = made(), [made(), made()]
    writers = [
        DeltaWriter(shard_folder(tmp_path, index, 2), (index, 2), tables, clock=clock)
        for index, tables in enumerate(shards)
    ]
    for number in range(3):
        for index, tables in enumerate(shards):
            ids = [2 * fid + index for fid in range(number, number + 4)]
            train(tables, ids, seed=10 * number + index, time_s=DAY + number)
            tables["user"].delete([2 * number + index])
            writers[index].write()
    for writer in writers:
        writer.close()
    logs = [DeltaReader(shard_folder(tmp_path, index, 2)) for index in range(2)]
    for _ in range(2):  # the complete segment of one shard leaves the rows of the other alone
        for log in logs:
            log.replay(whole)
    both = {**rows_of(shards[0]["user"]), **rows_of(shards[1]["user"])}
    assert rows_of(whole["user"]) == both
    thirds = [made(), made(), made()]
    for index, tables in enumerate(thirds):
        for log in logs:
            log.replay(tables, keep=(index, 3))
    for index, tables in enumerate(thirds):
        assert rows_of(tables["user"]) == {fid: row for fid, row in both.items() if fid % 2**64 % 3 == index}


# --- following ---


class Scripted(FakeClock):
    """A clock that calls a function at every sleep."""

    def __init__(self, script: Iterator[Callable[[], object]]) -> None:
        super().__init__()
        self._script = script

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        next(self._script)()


def test_a_follower_sees_every_segment_once_and_in_order(folder: Path, clock: FakeClock) -> None:
    tables = written(folder, clock, segments=2)
    writer = DeltaWriter(folder, (0, 1), tables, clock=clock, holds=2)

    def more() -> None:
        train(tables, [1])
        writer.write()

    script = iter([more, lambda: None, lambda: (more(), more())])
    seen: list[Segment] = []
    follower = made()
    reader = DeltaReader(folder)
    for segment in reader.follow(clock=Scripted(script), is_stopped=lambda: len(seen) == 5, poll_s=0.25):
        reader.replay(follower, after=seen[-1].sequence if seen else 0, until=segment.sequence)
        seen.append(segment)
    assert [segment.sequence for segment in seen] == [1, 2, 3, 4, 5]
    assert state_of(follower) == state_of(tables)
    writer.close()


def test_a_follower_that_was_left_behind_raises(folder: Path, clock: FakeClock) -> None:
    tables = written(folder, clock)
    following = DeltaReader(folder).follow(after=1, clock=clock, is_stopped=lambda: False)
    with DeltaWriter(folder, (0, 1), tables, clock=clock, holds=3) as writer:
        writer.compact(3)
    with pytest.raises(DeltaLogBroken, match="has a gap"):
        list(itertools.islice(following, 1))


def test_a_segment_can_be_verified_alone(folder: Path, clock: FakeClock) -> None:
    written(folder, clock)
    reader = DeltaReader(folder)
    for segment in reader.segments():
        reader.verify(segment)
    victim = reader.segments()[1]
    content = bytearray(victim.path.read_bytes())
    content[-1] ^= 1
    victim.path.write_bytes(content)
    with pytest.raises(DeltaLogBroken, match="checksum does not match; the last good segment is 1"):
        reader.verify(victim)


def test_a_log_is_removed_from_its_newest_segment_to_its_oldest(
    folder: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder, clock)
    present = sorted(path.name for path in folder.glob("seg-*.delta"))
    assert len(present) > 1
    removed: list[str] = []
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        removed.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    assert remove_log(folder) == len(present)
    assert removed == present[::-1], "a crash in between must leave a log with its head"


def test_a_log_set_aside_stays_when_the_clock_was_set_back(tmp_path: Path) -> None:
    for time_s in (2000, 3000, 1000):
        segment_path(tmp_path, 1).write_bytes(b"segment")
        aside = set_aside_log(tmp_path, time_s)
        assert aside is not None
        assert segment_path(aside, 1).exists()
        assert len(list(tmp_path.glob("foreign-*"))) <= 2
