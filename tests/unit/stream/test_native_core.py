"""The native core reads and writes the records that the Python parser and assembler do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from file_limit import file_limit
from join_events import START_MS, make_action, make_impression, numbered_events
from monolith import _native
from monolith.core.errors import ConfigError, SnapshotCorrupt
from monolith.stream import (
    END_OF_TIME,
    DeadLetter,
    EventParser,
    Impression,
    JoinBatch,
    JoinSettings,
    NativeJoiner,
    RecordPlace,
    ReferenceJoiner,
    RowAssembler,
)
from monolith.stream.line_id import MESSAGES

INGEST_MS = START_MS + 10_000_000
SETTINGS = JoinSettings(window_ms=10_000, late="correct", tasks=(frozenset({1}), frozenset({2})), sample_rate=0.5)


def make_batch(values: Sequence[bytes], ingest_ms: int = INGEST_MS, **options: Any) -> JoinBatch:
    return JoinBatch(_native.Records(list(values)), np.full(len(values), ingest_ms, np.int64), **options)


def join_by_reference(
    chosen: JoinSettings, values: Sequence[bytes], join_time_ms: int
) -> list[tuple[bytes, bytes, int]]:
    core, parser, assembler = ReferenceJoiner(chosen), EventParser(chosen), RowAssembler()
    rows = []
    for offset, value in enumerate(values):
        events = parser.parse(value, RecordPlace("events", 0, offset), ingest_time_ms=INGEST_MS)
        assert not isinstance(events, DeadLetter), events
        for event in events:
            rows += core.on_impression(event) if isinstance(event, Impression) else core.on_action(event)
    rows += core.on_watermark(END_OF_TIME)
    assembled = [assembler.assemble(row, join_time_ms=join_time_ms) for row in rows]
    return [(row.key, row.value, row.time_ms) for row in assembled]


def test_native_examples_equal_those_of_the_assembler() -> None:
    values = [value for _, value, _ in numbered_events(400, 5) if not value.startswith(b"{")]
    core = NativeJoiner(SETTINGS)
    assert core.join(make_batch(values)) == len(values)
    core.advance(END_OF_TIME)
    examples = list(zip(*core.take_examples(77), strict=True))
    assert len(examples) > 200
    assert examples == join_by_reference(SETTINGS, values, 77)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("window_ms", 1 << 60),
        ("horizon_ms", 1 << 60),
        ("orphan_hold_ms", 1 << 60),
        ("skew_ms", 1 << 60),
        ("out_of_order_ms", 1 << 60),
        ("future_ms", 1 << 60),
        ("idle_ms", 1 << 60),
        ("max_codes", (1 << 63) - 1),
        ("max_orphans", (1 << 63) - 1),
        ("max_record_bytes", (1 << 63) - 1),
        ("salt", (1 << 64) - 1),
    ],
)
def test_the_largest_settings_leave_the_native_rules_equal_and_larger_ones_are_refused(name: str, most: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is {most + 1}, expected a whole number from \d to {most}"):
        JoinSettings(**{name: most + 1})
    chosen = JoinSettings(**{name: most})
    values = [value for _, value, _ in numbered_events(100, 5) if not value.startswith(b"{")]
    core = NativeJoiner(chosen)
    assert core.join(make_batch(values)) == len(values)
    core.advance(END_OF_TIME)
    assert list(zip(*core.take_examples(77), strict=True)) == join_by_reference(chosen, values, 77)


FEATURES = st.lists(
    st.tuples(
        st.text("abc_é", min_size=1, max_size=4),
        st.sampled_from(["fid_v1_list", "fid_v2_list", "float_list", "double_list", "int64_list", "bytes_list"]),
        st.integers(0, 3),
    ),
    max_size=4,
)


@given(
    features=FEATURES,
    uid=st.booleans(),
    weight=st.sampled_from([0.0, 2.0]),
    extra=st.booleans(),
    code=st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_an_impression_of_any_form_gives_the_example_of_the_assembler(
    features: list[tuple[str, str, int]], uid: bool, weight: float, extra: bool, code: int
) -> None:
    example: Any = MESSAGES.Example()
    for name, arm, count in features:
        named = example.named_feature.add()
        named.name = name
        fill = [b"v"] * count if arm == "bytes_list" else [3] * count
        getattr(named.feature, arm).value.extend(fill)
    line_id = example.line_id
    line_id.request_key, line_id.item_id, line_id.event_time_ms = b"key", 7, START_MS
    if uid:
        line_id.uid, line_id.event_id, line_id.model_version = 5, 9, 3
    if extra:
        line_id.chnid, line_id.user_id, line_id.event_kind = 4, "someone", 0
    example.instance_weight, example.data_source_key = weight, int(extra)
    values = [example.SerializeToString(), make_action(b"key", 7, code, START_MS + 1)]
    core, parser = NativeJoiner(SETTINGS), EventParser(SETTINGS)
    batch, first = make_batch(values), 0
    while (first := core.join(batch, first)) < len(values):
        events = parser.parse(values[first], RecordPlace("events", 0, 0), ingest_time_ms=INGEST_MS)
        assert isinstance(events, list)
        for event in events:
            core.add(event)
        first += 1
    core.advance(END_OF_TIME)
    assert list(zip(*core.take_examples(), strict=True)) == join_by_reference(SETTINGS, values, 0)


IMPRESSION = make_impression(1, b"key", 7, START_MS)


@pytest.mark.parametrize(
    "value",
    [
        b'{"kind":"action","key":"key","item":7,"actions":[1],"time_ms":5}',
        b"",
        b"\xff\xff",
        IMPRESSION[:-1],
        IMPRESSION + b"\x08\x01",
        make_impression(1, b"k" * 257, 7, START_MS),
        make_impression(1, b"", 7, START_MS),
        make_impression(1, b"key", 7, INGEST_MS + 300_001),
        make_impression(1, b"key", 7, 1 << 62 | 1),
        make_action(b"key", 7, -1, START_MS),
    ],
)
def test_a_rare_or_broken_record_goes_to_the_python_parser(value: bytes) -> None:
    core = NativeJoiner(SETTINGS)
    assert core.join(make_batch([IMPRESSION, value, IMPRESSION])) == 1
    assert core.join(make_batch([IMPRESSION, value, IMPRESSION]), 2) == 3
    assert core.open_impressions == 1


@given(position=st.integers(0, len(IMPRESSION) - 1), byte=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_record_that_the_native_reader_accepts_is_one_that_the_parser_accepts(position: int, byte: int) -> None:
    value = IMPRESSION[:position] + bytes([byte]) + IMPRESSION[position + 1 :]
    chosen = JoinSettings(window_ms=10)
    core = NativeJoiner(chosen)
    is_accepted = core.join(make_batch([value])) == 1
    events = EventParser(chosen).parse(value, RecordPlace("events", 0, 0), ingest_time_ms=INGEST_MS)
    if is_accepted:
        assert isinstance(events, list)
        core.advance(END_OF_TIME)
        keys, _, times = core.take_examples()
        shown = [(event.key, event.time_ms) for event in events if isinstance(event, Impression)]
        assert list(zip(keys, times, strict=True)) == shown


def test_the_key_and_time_of_a_record_serve_where_its_line_id_has_none() -> None:
    example = MESSAGES.Example.FromString(IMPRESSION)
    example.line_id.ClearField("request_key")
    example.line_id.ClearField("event_time_ms")
    core = NativeJoiner(SETTINGS)
    batch = make_batch([example.SerializeToString()], keys=[b"other"], times_ms=np.array([START_MS + 5]))
    assert core.join(batch) == 1
    assert core.take_largest_time() == START_MS + 5
    assert core.take_largest_time() is None


def test_columns_of_another_length_raise() -> None:
    with pytest.raises(ConfigError, match="differ in number from 1 records"):
        NativeJoiner(SETTINGS).join(make_batch([IMPRESSION], keys=[]))


def test_an_open_impression_with_ten_features_takes_less_than_400_bytes() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    count = 100_000
    values = [
        make_impression(number, number.to_bytes(16, "little"), 7, START_MS + number, features=10)
        for number in range(count)
    ]
    batch = make_batch(values)
    del values
    core, before = NativeJoiner(JoinSettings(window_ms=10**9)), resident()
    assert core.join(batch) == count
    assert core.open_impressions == count
    assert max(resident() - before, core.memory_bytes) < 400 * count


def test_a_taken_slice_of_rows_leaves_the_rest() -> None:
    core = NativeJoiner(JoinSettings(window_ms=10))
    core.join(make_batch([make_impression(number, b"key", number, START_MS) for number in range(10)]))
    core.advance(END_OF_TIME)
    sizes = []
    while core.pending_rows:
        sizes.append(len(core.take_examples(0, 300)[0]))
    assert sum(sizes) == 10
    assert len(sizes) > 2


def test_a_snapshot_needs_a_new_core_and_an_undamaged_file(tmp_path: Path) -> None:
    core = NativeJoiner(SETTINGS)
    core.join(make_batch([IMPRESSION]))
    core.save(tmp_path / "core.bin")
    with pytest.raises(ConfigError, match="has state, expected a new one"):
        core.restore(tmp_path / "core.bin")
    (tmp_path / "core.bin").write_bytes((tmp_path / "core.bin").read_bytes()[:-2])
    with pytest.raises(SnapshotCorrupt, match=r"core.bin' is corrupt: .*; use an older snapshot"):
        NativeJoiner(SETTINGS).restore(tmp_path / "core.bin")


def test_spills_on_a_full_disk_keep_no_file_open(tmp_path: Path) -> None:
    core = NativeJoiner(JoinSettings(window_ms=1000), tmp_path / "spill")
    before = len(os.listdir("/proc/self/fd"))
    for hour in range(5):
        core.add(Impression(START_MS + hour * 3_600_000, b"key", hour))
        with file_limit(1), pytest.raises(OSError, match="File too large"):
            core.spill(0)
        core.close_oldest(1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list((tmp_path / "spill").iterdir())
