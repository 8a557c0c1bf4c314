"""``join_stream``: the joiner as a part of an Apache Flink job, with the rules of ``KeyRules``.

Flink owns the state, the timers, the watermark and the restart: its checkpoints give each row exactly once to a
transactional sink. One request key is one Flink key. Needs the extra ``flink``; only this module imports PyFlink.

Flink's watermark W states that no event with a time up to W follows. The watermark of the rules is W + 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pyflink.common import Duration, Types, WatermarkStrategy  # type: ignore[import-not-found]
from pyflink.common.watermark_strategy import TimestampAssigner  # type: ignore[import-not-found]
from pyflink.datastream import (  # type: ignore[import-not-found]
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
)
from pyflink.datastream.state import ValueStateDescriptor  # type: ignore[import-not-found]

from monolith.stream.assembly import RowAssembler
from monolith.stream.events import Action, Impression, Row
from monolith.stream.key_rules import KeyRules, KeyState
from monolith.stream.parsing import DeadLetter, EventParser, InputRecord, RecordPlace
from monolith.stream.settings import JoinSettings

__all__ = ["DEAD_LETTERS", "join_stream"]

DEAD_LETTERS = OutputTag("dead-letters", Types.PICKLED_BYTE_ARRAY())
"""Side output of ``join_stream``: pairs of bytes, the key of a dead record and its original value."""

_NO_WATERMARK = -(1 << 63)


def join_stream(
    records: DataStream, settings: JoinSettings, *, record: InputRecord = "example", topic: str = "events"
) -> tuple[DataStream, DataStream]:
    """Join impressions with actions.

    Args:
        records: Values of the input records, as bytes; impressions and actions in one stream (``union``).
        settings: The rules. Flink bounds the state by its backend, so limits of memory and disk have no effect.
        record: Message kind of the records. JSON records are accepted beside it.
        topic: Name of the input in dead letters. Their partition is the subtask, and their offset counts its records.

    Returns:
        Serialized Examples with labels, and dead letters as pairs of key and value, both for sinks.
    """
    parsed = records.process(_Parse(settings, record, topic), Types.PICKLED_BYTE_ARRAY()).name("parse events")
    watermarks = (
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(settings.intake.out_of_order_ms))
        .with_timestamp_assigner(_EventTime())
        .with_idleness(Duration.of_millis(settings.intake.idle_ms))
    )
    rows = (
        parsed.assign_timestamps_and_watermarks(watermarks)
        .key_by(_key_of, Types.PICKLED_BYTE_ARRAY())
        .process(_Join(settings), Types.PICKLED_BYTE_ARRAY())
        .name("join")
    )
    return rows, parsed.get_side_output(DEAD_LETTERS)


def _key_of(event: Impression | Action) -> bytes:
    return event.key


class _EventTime(TimestampAssigner):  # type: ignore[misc]
    def extract_timestamp(self, value: Impression | Action, record_timestamp: int) -> int:
        return value.time_ms


class _Parse(ProcessFunction):  # type: ignore[misc]
    """Parses records into events; refused records go to the side output."""

    def __init__(self, settings: JoinSettings, record: InputRecord, topic: str) -> None:
        self._settings = settings
        self._record: InputRecord = record
        self._topic = topic

    def open(self, runtime_context: RuntimeContext) -> None:
        self._parser = EventParser(self._settings, self._record)
        self._subtask = runtime_context.get_index_of_this_subtask()
        self._count = 0

    def process_element(self, value: bytes, ctx: ProcessFunction.Context) -> Iterator[Any]:
        place = RecordPlace(self._topic, self._subtask, self._count)
        self._count += 1
        events = self._parser.parse(bytes(value), place, ingest_time_ms=time.time_ns() // 1_000_000)
        if isinstance(events, DeadLetter):
            yield DEAD_LETTERS, (events.key, events.value)
        else:
            yield from events


class _Join(KeyedProcessFunction):  # type: ignore[misc]
    """Applies the rules to the state of one key. Its timer stands at the next watermark that changes the state."""

    def __init__(self, settings: JoinSettings) -> None:
        self._settings = settings

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rules = KeyRules(self._settings)
        self._assembler = RowAssembler()
        self._state = runtime_context.get_state(ValueStateDescriptor("key", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Impression | Action, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        flink_ms = ctx.timer_service().current_watermark()
        watermark_ms = None if flink_ms == _NO_WATERMARK else flink_ms + 1
        state, rows = self._rules.step(self._state.value(), value, watermark_ms)
        self._store(state, ctx)
        return self._assemble(rows)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        state: KeyState | None = self._state.value()
        if state is None:
            return iter(())
        rows = self._rules.advance(state, timestamp + 1)
        self._store(state if state.items else None, ctx)
        return self._assemble(rows)

    def _store(self, state: KeyState | None, ctx: Any) -> None:
        if state is None:
            self._state.clear()
            return
        self._state.update(state)
        due_ms = min(self._rules.next_due(item_state) for item_state in state.items.values())
        ctx.timer_service().register_event_time_timer(due_ms - 1)

    def _assemble(self, rows: list[Row]) -> Iterator[bytes]:
        return iter([self._assembler.assemble(row).value for row in rows])
