"""A join group writes every row once, and has a stated behaviour for each kind of bad input."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from join_events import START_MS, make_action, make_impression
from join_process import SETTINGS, make_group, make_topics, read_topic, run_to_end
from monolith.core.errors import ClusterError, ConfigError, DataError, SnapshotCorrupt
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.stream import JoinSettings
from monolith.stream.line_id import MESSAGES
from monolith.stream.runtime import GroupOptions, JoinGroup, StateFolder
from monolith.stream.runtime.event_log import LogInput, LogSink
from monolith.stream.runtime.journal import Journal, read_journal
from monolith.stream.runtime.ports import Lot
from monolith.stream.runtime.topics import JoinTopics
from monolith.testing.fakes.clock import FakeClock

NOW_MS = START_MS
OPTIONS = GroupOptions(commit_ms=0, snapshot_s=0.0, idle_advance=False, lot_records=10)


def write(root: Path, values: Sequence[bytes], topic: str = "events") -> None:
    with LogWriter(Topic.open(root, topic)) as writer:
        for value in values:
            writer.write(value, b"key", START_MS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("events", "examples", "examples.dead"):
        Topic.create(tmp_path, name, TopicSettings(durability="never"))
    return tmp_path


def labels(root: Path) -> list[tuple[int, list[float]]]:
    rows = [MESSAGES.Example.FromString(value) for _, value in read_topic(root, "examples")]
    return [(row.line_id.item_id, list(row.label)) for row in rows]


def run_steps(group: JoinGroup) -> None:
    """Join until an error, for ever otherwise."""
    while True:
        group.step(0.0)


def impressions(count: int, first: int = 0) -> list[bytes]:
    return [
        make_impression(number, b"request-%d" % number, number, START_MS + number * 10)
        for number in range(first, first + count)
    ]


# --- commits and snapshots --------------------------------------------------------------------------------------------


def test_a_stopped_group_continues_where_it_stopped(root: Path) -> None:
    chosen = JoinSettings(window_ms=100, out_of_order_ms=0)
    write(root, impressions(50))
    group = make_group(root, settings=chosen, options=OPTIONS)
    group.start()
    while group.step(0.0):
        pass
    group.close()
    assert 0 < len(labels(root)) < 50
    write(root, impressions(50, first=50))
    run_to_end(make_group(root, settings=chosen, options=OPTIONS))
    assert labels(root) == [(number, [0.0]) for number in range(100)]


def test_changed_settings_hold_from_the_next_start(root: Path) -> None:
    write(root, [*impressions(3), make_action(b"request-1", 1, 2, START_MS + 15)])
    group = make_group(root, settings=JoinSettings(window_ms=1000, out_of_order_ms=0), options=OPTIONS)
    group.start()
    while group.step(0.0):
        pass
    group.close()
    changed = JoinSettings(window_ms=1000, out_of_order_ms=0, tasks=(frozenset({1}), frozenset({2})))
    run_to_end(make_group(root, settings=changed, options=OPTIONS))
    assert labels(root) == [(0, [0.0, 0.0]), (1, [0.0, 1.0]), (2, [0.0, 0.0])]


@pytest.mark.parametrize(("before_ms", "after_ms", "label"), [(10, 1000, 1.0), (1000, 10, 0.0)])
def test_a_changed_window_judges_the_actions_of_open_impressions_again(
    root: Path, before_ms: int, after_ms: int, label: float
) -> None:
    write(root, [*impressions(1), make_action(b"request-0", 0, 1, START_MS + 500)])
    group = make_group(root, settings=JoinSettings(window_ms=before_ms, out_of_order_ms=5000), options=OPTIONS)
    group.start()
    while group.step(0.0):
        pass
    group.close()
    run_to_end(make_group(root, settings=JoinSettings(window_ms=after_ms, out_of_order_ms=5000), options=OPTIONS))
    assert labels(root) == [(0, [label])]


def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path: Path) -> None:
    make_topics(tmp_path, 300, 4)
    run_to_end(make_group(tmp_path, state="expected-state", output="expected"))
    group = make_group(tmp_path, options=GroupOptions(commit_ms=0, snapshot_s=0.0, lot_records=20))
    group.start()
    for _ in range(10):
        group.step(0.0)
    group.abandon()
    snapshots = sorted((tmp_path / "state").glob("snap-*"))
    assert len(snapshots) == 2
    core = snapshots[-1] / "core.bin"
    core.write_bytes(core.read_bytes()[:-3] + b"abc")
    saved = shutil.copytree(tmp_path / "state", tmp_path / "copy")
    run_to_end(make_group(tmp_path))
    assert read_topic(tmp_path, "examples") == read_topic(tmp_path, "expected")
    for snapshot in saved.glob("snap-*"):
        (snapshot / "meta.json").write_text("{}")
    with pytest.raises(SnapshotCorrupt, match=r"snap-.*; .*snap-"):
        make_group(tmp_path, state="copy").start()


def test_a_stopped_process_that_wakes_up_writes_nothing(tmp_path: Path) -> None:
    make_topics(tmp_path, 300, 7)
    run_to_end(make_group(tmp_path, state="expected-state", output="expected"))
    old = make_group(tmp_path)
    old.start()
    for _ in range(3):
        old.step(0.0)
    with pytest.raises(ClusterError, match="is owned by another process"):
        make_group(tmp_path)
    new = make_group(tmp_path, take_over=True)
    new.start()
    with pytest.raises(ClusterError, match="owner"):
        run_steps(old)
    while new.step(0.0) or not new.is_at_end():
        pass
    new.finish()
    new.close()
    old.abandon()
    run_to_end(make_group(tmp_path))
    for topic in ("", ".dead"):
        assert read_topic(tmp_path, f"examples{topic}") == read_topic(tmp_path, f"expected{topic}")


def test_a_stopped_process_that_wakes_up_without_rows_removes_no_state(root: Path) -> None:
    settings = JoinSettings(window_ms=3_600_000, out_of_order_ms=0)  # no row before the end
    write(root, impressions(200))
    old = make_group(root, options=OPTIONS, settings=settings)
    old.start()
    for _ in range(3):
        old.step(0.0)
    new = make_group(root, take_over=True, options=OPTIONS, settings=settings)
    new.start()

    def run_old() -> None:
        while old.step(0.0):
            pass

    with pytest.raises(ClusterError, match=r"has owner 2, and this process is owner 1; another process has taken over"):
        run_old()
    old.abandon()
    new.abandon()
    run_to_end(make_group(root, settings=settings))
    assert [item for item, _ in labels(root)] == list(range(200))


def test_a_process_that_takes_over_saves_the_state_before_its_predecessor_can_remove_it(tmp_path: Path) -> None:
    make_topics(tmp_path, 300, 7)
    old = make_group(tmp_path, options=OPTIONS)
    old.start()
    old.step(0.0)
    new = make_group(tmp_path, take_over=True, options=OPTIONS)
    new.start()
    assert list((tmp_path / "state").glob("snap-000002-*"))
    for group in (old, new):
        group.abandon()


def test_a_process_that_takes_over_recovers_though_its_predecessor_removes_a_journal(tmp_path: Path) -> None:
    make_topics(tmp_path, 300, 7)
    old = make_group(tmp_path, options=OPTIONS)
    old.start()
    old.step(0.0)
    surplus = Journal(tmp_path / "state" / "journal-000000-000000000001.log", {})
    new = make_group(tmp_path, take_over=True, options=OPTIONS)
    surplus.path.unlink()
    new.start()
    for group in (old, new):
        group.abandon()
    surplus.close()


def test_processes_that_start_together_have_different_owner_numbers(tmp_path: Path) -> None:
    first, second = StateFolder(tmp_path), StateFolder(tmp_path, take_over=True)
    assert (first.owner, second.owner) == (1, 2)
    with pytest.raises(ClusterError, match="another process has taken over"):
        first.start_journal(1, {})
    with pytest.raises(ClusterError, match="another process has taken over"):
        first.trim()
    for folder in (first, second):
        folder.close()


def test_a_state_folder_with_journals_and_no_snapshot_is_refused(tmp_path: Path) -> None:
    make_topics(tmp_path, 300, 7)
    run_to_end(make_group(tmp_path))
    for path in (tmp_path / "state").glob("snap-*"):
        shutil.rmtree(path)
    group = make_group(tmp_path)
    with pytest.raises(SnapshotCorrupt, match="journals and no snapshot"):
        group.start()
    group.abandon()


def test_a_state_folder_of_other_inputs_raises(root: Path) -> None:
    group = make_group(root)
    group.start()
    group.close()
    Topic.create(root, "others")
    sinks = [LogSink(LogWriter(Topic.open(root, name)), 0, "join") for name in ("examples", "examples.dead")]
    other = JoinGroup(
        SETTINGS, [LogInput(Topic.open(root, "others"), 0, group="join")], *sinks, StateFolder(root / "state")
    )
    with pytest.raises(ConfigError, match=r"inputs are \['others'\], expected \['events'\]"):
        other.start()
    other.abandon()


def test_a_journal_without_its_last_commit_repeats_the_work(tmp_path: Path) -> None:
    path = tmp_path / "journal-000001-000000000001.log"
    journal = Journal(path, {"settings": "x"})
    for number in (1, 2, 3):
        journal.append({"n": number})
    journal.close()
    content = path.read_bytes()
    assert [record.get("n") for record in read_journal(path)] == [None, 1, 2, 3]
    for size in range(len(content) - 1, len(content) - 10, -1):
        path.write_bytes(content[:size])
        assert [record.get("n") for record in read_journal(path)] == [None, 1, 2]
    path.write_bytes(content[:-1] + b"?")
    assert [record.get("n") for record in read_journal(path)] == [None, 1, 2]


def test_an_empty_state_folder_writes_its_rows_after_those_of_the_folder_before(root: Path) -> None:
    settings = JoinSettings(window_ms=10)
    write(root, impressions(20))
    run_to_end(make_group(root, settings=settings, options=OPTIONS))
    shutil.rmtree(root / "state")
    write(root, impressions(20, first=20))
    run_to_end(make_group(root, settings=settings, options=OPTIONS))
    assert [item for item, _ in labels(root)] == [*range(20), *range(40)]


def test_records_after_the_end_of_a_finite_input_are_refused(root: Path) -> None:
    settings = JoinSettings(window_ms=10)
    write(root, impressions(20))
    run_to_end(make_group(root, settings=settings, options=OPTIONS))
    run_to_end(make_group(root, settings=settings, options=OPTIONS))
    write(root, impressions(20, first=20))
    again = make_group(root, settings=settings, options=OPTIONS)
    again.start()
    with pytest.raises(DataError, match=r"events\[0\] has records from offset 20 on.*--until-end"):
        again.step(0.0)
    again.abandon()
    assert [item for item, _ in labels(root)] == list(range(20))


def test_a_state_folder_that_is_older_than_its_output_is_refused(root: Path) -> None:
    settings = JoinSettings(window_ms=10, out_of_order_ms=0)
    write(root, impressions(100))
    options = dataclasses.replace(OPTIONS, snapshot_s=1000.0)
    group = make_group(root, settings=settings, options=options)
    group.start()
    while group.step(0.0):
        pass
    group.abandon()
    journal = sorted((root / "state").glob("journal-*"))[-1]
    content = bytearray(journal.read_bytes())
    content[len(content) // 3] ^= 1
    journal.write_bytes(content)
    damaged = make_group(root, settings=settings, options=options)
    with pytest.raises(SnapshotCorrupt, match=r"ends at commit \d and its outputs at commit 1\d.*empty --state folder"):
        damaged.start()
    damaged.abandon()


def test_a_folder_that_takes_no_owner_number_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "no space", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", refuse)
        with pytest.raises(OSError, match="no space"):
            StateFolder(tmp_path)
    StateFolder(tmp_path).close()


def test_a_replay_refuses_input_that_retention_has_removed(root: Path) -> None:
    fill = make_short_log(root)
    write(root, impressions(20), topic="short")

    def make() -> JoinGroup:
        sinks = [LogSink(LogWriter(Topic.open(root, name)), 0, "join") for name in ("examples", "examples.dead")]
        port = LogInput(Topic.open(root, "short"), 0, group="join", on_lost="earliest")
        options = dataclasses.replace(OPTIONS, snapshot_s=1000.0)
        return JoinGroup(JoinSettings(window_ms=10), [port], *sinks, StateFolder(root / "state"), options=options)

    group = make()
    group.start()
    while group.step(0.0):
        pass
    group.abandon()  # as a kill: the restart repeats the commits
    fill()
    late = make()
    with pytest.raises(DataError, match=r"short\[0\] begins at offset \d+, expected 0"):
        late.start()
    late.abandon()


def test_a_replay_refuses_input_that_a_power_loss_has_replaced(root: Path) -> None:
    chosen, options = JoinSettings(window_ms=10), dataclasses.replace(OPTIONS, snapshot_s=1000.0)
    segment = root / "events" / "part-00000-of-00001" / "seg-00000000000000000000.log"
    write(root, impressions(10))
    kept = segment.stat().st_size
    write(root, impressions(10, first=10))
    group = make_group(root, settings=chosen, options=options)
    group.start()
    while group.step(0.0):
        pass
    group.abandon()  # as a kill: the restart repeats the commits
    os.truncate(segment, kept)
    (segment.parent / "HEAD").unlink()
    write(root, impressions(30, first=100))
    late = make_group(root, settings=chosen, options=options)
    with pytest.raises(DataError, match=r"events\[0\] has epoch 2 before offset 20, expected 1 to repeat"):
        late.start()
    late.abandon()


def test_a_sink_that_cannot_be_closed_keeps_no_lock(root: Path) -> None:
    group = make_group(root, options=OPTIONS)
    closed: list[str] = []

    def refuse() -> None:
        raise DataError("the disk has failed")

    group._rows.close = refuse  # type: ignore[method-assign]
    group._dead.close = lambda: closed.append("dead")  # type: ignore[method-assign]
    with pytest.raises(DataError, match="the disk has failed"):
        group.abandon()
    assert closed == ["dead"]
    make_group(root, options=OPTIONS).abandon()


def test_a_group_opens_only_its_partition_of_each_output(tmp_path: Path) -> None:
    Topic.create(tmp_path, "wide", TopicSettings(partitions=8))
    topics = JoinTopics([f"log://{tmp_path}/wide"], f"log://{tmp_path}/out")
    before = len(os.listdir("/proc/self/fd"))
    groups = [topics.make_group(number, JoinSettings(), tmp_path / "state") for number in range(8)]
    assert len(os.listdir("/proc/self/fd")) - before < 100
    for group in groups:
        group.abandon()


class SlowInput(LogInput):
    """An input whose broker needs several reads to answer, as after a restart."""

    empty_reads = 0

    @override
    def read(self, most_records: int, wait_s: float) -> Lot | None:
        if self.empty_reads:
            self.empty_reads -= 1
            return None
        return super().read(most_records, wait_s)


def test_an_input_that_does_not_answer_is_not_idle(root: Path) -> None:
    write(root, [*impressions(1), make_impression(9, b"late", 9, START_MS + 60_000)])
    actions = Topic.create(root, "actions", TopicSettings(durability="never"))
    with LogWriter(actions) as writer:
        writer.write(make_action(b"request-0", 0, 1, START_MS + 5), b"request-0", START_MS + 5)
    sinks = [LogSink(LogWriter(Topic.open(root, name)), 0, "join") for name in ("examples", "examples.dead")]
    silent = SlowInput(actions, 0, group="join")
    silent.empty_reads = 1000
    ports = [LogInput(Topic.open(root, "events"), 0, group="join"), silent]
    chosen = JoinSettings(window_ms=1000, out_of_order_ms=0, idle_ms=100, horizon_ms=0)
    clock = FakeClock()
    options = dataclasses.replace(OPTIONS, lot_records=1)
    group = JoinGroup(chosen, ports, *sinks, StateFolder(root / "state"), options=options, clock=clock)
    group.start()
    for _ in range(5):
        group.step(0.0)
        clock.advance_s(1.0)
    silent.empty_reads = 0  # the broker answers again
    for _ in range(5):
        group.step(0.0)
        clock.advance_s(1.0)
    group.finish()
    group.close()
    assert labels(root) == [(0, [1.0]), (9, [0.0])]


def test_a_replay_waits_for_an_input_that_answers_late_and_not_forever(root: Path) -> None:
    write(root, impressions(20))

    def make(empty_reads: int) -> JoinGroup:
        sinks = [LogSink(LogWriter(Topic.open(root, name)), 0, "join") for name in ("examples", "examples.dead")]
        port = SlowInput(Topic.open(root, "events"), 0, group="join")
        port.empty_reads = empty_reads
        options = dataclasses.replace(OPTIONS, snapshot_s=1000.0)
        return JoinGroup(JoinSettings(window_ms=10), [port], *sinks, StateFolder(root / "state"), options=options)

    group = make(0)
    group.start()
    while group.step(0.0):
        pass
    group.abandon()  # as a kill: the restart repeats the commits
    silent = make(1000)
    with pytest.raises(ClusterError, match=r"events\[0\] gave no record within 30 s, expected \d+ more") as raised:
        silent.start()
    assert raised.value.retryable
    silent.abandon()
    run_to_end(make(3))
    assert [item for item, _ in labels(root)] == list(range(20))


@pytest.mark.parametrize(
    ("inputs", "output", "dead", "text"),
    [
        (["events"], "events", None, "topic of the output is 'events', which is also that of an input"),
        (["examples.dead"], "examples", None, "topic of the dead letters is 'examples.dead', which is .* an input"),
        (["events"], "examples", "events", "topic of the dead letters is 'events', which is also that of an input"),
        (["events"], "examples", "examples", "which is also that of the output.*pass --dead"),
    ],
)
def test_a_topic_with_two_roles_is_refused(
    root: Path, inputs: list[str], output: str, dead: str | None, text: str
) -> None:
    urls = [f"log://{root}/../{root.name}/{topic}" for topic in inputs]
    with pytest.raises(ConfigError, match=text):
        JoinTopics(urls, f"log://{root}/{output}", dead and f"log://{root}/{dead}")


def test_a_disk_that_is_full_after_a_snapshot_stops_no_group(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = JoinSettings(window_ms=10)
    write(root, impressions(50))
    group = make_group(root, settings=settings, options=OPTIONS)
    group.start()

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as full:
        full.setattr("monolith.stream.runtime.state_folder.Journal", refuse)
        full.setattr("monolith.stream.runtime.event_log.commit_group", refuse)
        for _ in range(3):
            group.step(0.0)
    assert group.status.snapshots == 4
    for _ in range(2):
        group.step(0.0)
    group.abandon()  # as a kill
    run_to_end(make_group(root, settings=settings, options=OPTIONS))
    assert [item for item, _ in labels(root)] == list(range(50))


def test_a_journal_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="no space"):
            Journal(tmp_path / "journal", {})
    assert list(tmp_path.iterdir()) == []


# --- bad input --------------------------------------------------------------------------------------------------------


def test_an_event_from_the_future_is_a_dead_letter_and_moves_no_window(root: Path) -> None:
    far_ms = 4_000_000_000_000
    write(root, [make_impression(1, b"a", 1, START_MS), make_impression(2, b"b", 2, far_ms), b"junk"])
    group = make_group(root, options=OPTIONS)
    group.start()
    while group.step(0.0):
        pass
    assert group.status.watermark_ms == START_MS - SETTINGS.intake.out_of_order_ms
    assert group.status.dead_letters == {"from_future": 1, "not_parsed": 1}
    group.close()
    assert [key for key, _ in read_topic(root, "examples.dead")] == [
        b'{"reason":"from_future","topic":"events","partition":0,"offset":1}',
        b'{"reason":"not_parsed","topic":"events","partition":0,"offset":2}',
    ]


class JumpingClock:
    """A wall clock that is wrong by ``shift_s``."""

    def __init__(self, shift_s: float) -> None:
        self.shift_s = shift_s

    def now_s(self) -> float:
        return NOW_MS / 1000 + self.shift_s

    def monotonic_s(self) -> float:
        return 0.0

    def sleep_s(self, seconds: float) -> None:
        raise AssertionError(seconds)


@pytest.mark.parametrize("time_ms", [-1, -(1 << 62)])
def test_an_event_before_1970_becomes_a_row(root: Path, time_ms: int) -> None:
    write(root, [make_impression(1, b"old", 7, time_ms), *impressions(3)])
    run_to_end(make_group(root, settings=JoinSettings(window_ms=10), options=OPTIONS))
    rows = [MESSAGES.Example.FromString(value).line_id for _, value in read_topic(root, "examples")]
    assert [row.event_time_ms for row in rows if row.request_key == b"old"] == [time_ms]
    assert len(rows) == 4


def make_large_record(kind: str) -> bytes:
    """Return a record that the input log holds, and whose row or dead letter the output log could not hold."""
    if kind == "not parsed":
        return b"{" + b"x" * ((16 << 20) - 64)
    if kind == "json that grows":
        ids = b",".join([b"1"] * 3_000_000)
        return b'{"kind":"impression","key":"r","item":7,"features":{"x":{"fid_v2_list":[%s]}}}' % ids
    example: Any = MESSAGES.Example()
    example.ParseFromString(make_impression(1, b"r", 7, START_MS))
    example.named_feature[0].feature.bytes_list.value.append(b"x" * ((16 << 20) - 256))
    return bytes(example.SerializeToString())


@pytest.mark.parametrize("kind", ["not parsed", "json that grows", "example"])
def test_a_record_that_fits_no_output_record_is_a_dead_letter(root: Path, kind: str) -> None:
    value = make_large_record(kind)
    write(root, [value, *impressions(3)])
    run_to_end(make_group(root, settings=JoinSettings(window_ms=10), options=OPTIONS))
    assert [item for item, _ in labels(root)] == [0, 1, 2]
    ((key, dead),) = read_topic(root, "examples.dead")
    assert key == b'{"reason":"too_large","topic":"events","partition":0,"offset":0}'
    assert value.startswith(dead)


def test_a_clock_that_jumped_is_counted_and_changes_no_row(root: Path) -> None:
    write(root, impressions(3))
    sinks = [LogSink(LogWriter(Topic.open(root, name)), 0, "join") for name in ("examples", "examples.dead")]
    inputs = [LogInput(Topic.open(root, "events"), 0, group="join")]
    group = JoinGroup(
        JoinSettings(window_ms=100),
        inputs,
        *sinks,
        StateFolder(root / "state"),
        options=OPTIONS,
        clock=JumpingClock(-3600),
    )
    run_to_end(group)
    assert group.status.clock_jumps == {"forward": 1}
    assert labels(root) == [(number, [0.0]) for number in range(3)]


def test_a_key_with_many_actions_costs_only_its_bounds(root: Path) -> None:
    chosen = JoinSettings(window_ms=1000, max_codes=4, max_orphans=8)
    actions = [make_action(b"poison", 1, code, START_MS + 1) for code in range(3000)]
    write(root, [*actions, make_impression(1, b"poison", 1, START_MS), *actions, *impressions(2, first=5)])
    group = make_group(root, settings=chosen, options=GroupOptions(idle_advance=False))
    run_to_end(group)
    assert group.status.counters["orphan_overflow"] == 3000 - 8
    assert group.status.counters["action_overflow"] >= 3000 - 8
    assert labels(root) == [(1, [1.0]), (5, [0.0]), (6, [0.0])]


class BrokenCore:
    """A core that raises for one item: always in a batch, and as often as asked alone."""

    def __init__(self, core: Any, item: int, failures: int) -> None:
        self._core, self._item, self._failures = core, item, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def join(self, batch: Any, first: int = 0) -> int:
        values = [bytes(value) for value in batch.values[first:]]
        if any(MESSAGES.Example.FromString(value).line_id.item_id == self._item for value in values):
            raise RuntimeError("slot is out of range")
        return self._core.join(batch, first)

    def add(self, event: Any, ingest_ms: int) -> None:
        if event.item == self._item and self._failures:
            self._failures -= 1
            raise RuntimeError("slot is out of range")
        self._core.add(event, ingest_ms)


@pytest.mark.parametrize(("failures", "dead"), [(1, 0), (1000, 1)])
def test_an_event_that_makes_the_core_raise_twice_is_a_dead_letter(root: Path, failures: int, dead: int) -> None:
    write(root, impressions(5))
    group = make_group(root, settings=JoinSettings(window_ms=10), options=OPTIONS)
    group._core = BrokenCore(group._core, 3, failures)
    run_to_end(group)
    assert dict(group.status.dead_letters) == ({"core_error": 1} if dead else {})
    assert labels(root) == [(number, [0.0]) for number in range(5) if not dead or number != 3]
    letters = read_topic(root, "examples.dead")
    assert [key for key, _ in letters] == [
        b'{"reason":"core_error","topic":"events","partition":0,"offset":3}' for _ in range(dead)
    ]
    assert [value for _, value in letters] == [impressions(5)[3]] * dead


def test_a_full_disk_stops_commits_and_loses_nothing(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(root, impressions(20))
    failures = [errno.ENOSPC, errno.ENOSPC, errno.EDQUOT]
    group = make_group(root, settings=JoinSettings(window_ms=10), options=OPTIONS)
    group.start()
    append = group._rows.append

    def refuse(*arguments: Any) -> None:
        if failures:
            raise OSError(failures.pop(), "no space")
        append(*arguments)

    group._rows.append = refuse  # type: ignore[method-assign]
    group._clock = JumpingClock(0)
    group._clock.sleep_s = lambda seconds: None  # type: ignore[method-assign]
    while group.step(0.0) or not group.is_at_end():
        pass
    group.finish()
    group.close()
    assert group.status.commit_failures == 3
    assert caplog.text.count("commit waits") == 1, "the log may lie on the same disk"
    assert [item for item, _ in labels(root)] == list(range(20))


def test_an_append_that_could_not_be_synced_is_not_repeated(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = JoinSettings(window_ms=10)
    write(root, impressions(20))
    group = make_group(root, settings=settings, options=OPTIONS)
    group.start()
    append = LogWriter.append

    def append_without_sync(*arguments: Any, **options: Any) -> int:
        append(*arguments, **options)
        raise OSError(errno.EMFILE, "too many open files")

    while group.step(0.0):
        pass
    with monkeypatch.context() as short:
        short.setattr(LogWriter, "append", append_without_sync)
        with pytest.raises(DataError, match="'examples' could not sync an append"):
            group.finish()
    group.abandon()
    run_to_end(make_group(root, settings=settings, options=OPTIONS))
    assert [item for item, _ in labels(root)] == list(range(20))


def test_a_full_disk_at_the_stop_leaves_the_commit_to_the_next_start(root: Path) -> None:
    write(root, impressions(20))
    group = make_group(root, settings=JoinSettings(window_ms=10), options=OPTIONS)
    group.start()
    group.is_stopping = True

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    group._rows.append = refuse  # type: ignore[method-assign]
    while group.step(0.0):
        pass
    with pytest.raises(OSError, match="no space"):
        group.finish()
    group.abandon()
    run_to_end(make_group(root, settings=JoinSettings(window_ms=10), options=OPTIONS))
    assert [item for item, _ in labels(root)] == list(range(20))


def test_state_beyond_the_disk_budget_closes_the_oldest_windows(root: Path) -> None:
    chosen = JoinSettings(window_ms=10**6, out_of_order_ms=0)
    write(root, impressions(1500))
    options = GroupOptions(commit_ms=0, memory_bytes=1 << 16, disk_bytes=20_000, idle_advance=False)
    group = make_group(root, settings=chosen, options=options)
    group.start()
    while group.step(0.0):
        pass
    assert group.status.counters["early_close"] > 0
    assert group.status.spilled_bytes <= 20_000
    group.abandon()  # as a kill: the restart repeats the early closes of the journal
    run_to_end(make_group(root, settings=chosen, options=options))
    rows = [item for item, _ in labels(root)]
    assert sorted(rows) == list(range(1500))


def make_short_log(root: Path) -> Callable[[], None]:
    """Create an input that retains few segments, and return the function that fills it beyond."""
    Topic.create(root, "short", TopicSettings(durability="never", segment_bytes=4096, retain_bytes=8192))

    def fill() -> None:
        with LogWriter(Topic.open(root, "short"), linger_ms=0) as writer:
            for value in impressions(200):
                writer.write(value, b"key", START_MS)

    return fill


@pytest.mark.parametrize("on_lost", ["raise", "earliest"])
def test_a_consumer_behind_retention_raises_or_counts(root: Path, on_lost: Any) -> None:
    fill = make_short_log(root)
    write(root, impressions(1), topic="short")
    sinks = [LogSink(LogWriter(Topic.open(root, name)), 0, "join") for name in ("examples", "examples.dead")]
    port = LogInput(Topic.open(root, "short"), 0, group="join", on_lost=on_lost)
    group = JoinGroup(JoinSettings(window_ms=10), [port], *sinks, StateFolder(root / "state"), options=OPTIONS)
    group.start()
    fill()
    if on_lost == "raise":
        with pytest.raises(DataError, match="offset"):
            group.step(0.0)
    else:
        while group.step(0.0):
            pass
        assert group.lost_records()["short"] > 100
        assert group.status.records < 100
    group.abandon()


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_damaged_batch_of_an_input_raises_or_is_skipped_once(root: Path, on_corrupt: Any) -> None:
    with LogWriter(Topic.open(root, "events"), partition=0) as writer:
        for first in (0, 10, 20):
            writer.append(0, impressions(10, first), [b"key"] * 10, [START_MS] * 10)
    (segment,) = (root / "events").rglob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    topics = JoinTopics([f"log://{root}/events"], f"log://{root}/examples", on_corrupt=on_corrupt)
    settings = JoinSettings(window_ms=10)

    def join() -> JoinGroup:
        return topics.make_group(0, settings, root / "state", options=OPTIONS)

    if on_corrupt == "raise":
        with pytest.raises(DataError, match="offsets 10 to 19"):
            run_to_end(join())
        return
    group = join()
    group.start()
    while group.step(0.0):
        pass
    assert group.lost_records() == {"events": 10}
    group.abandon()  # as a killed process: the next one repeats the commits across the damage
    run_to_end(join())
    assert [item for item, _ in labels(root)] == [*range(10), *range(20, 30)]
