"""``EventParser``: records of the input topics become events or dead letters.

A record is an Example, an Instance, an ExampleBatch (one event per row), or JSON. JSON begins with ``{``, a byte that
begins no valid message of these kinds, so one topic may mix JSON with one kind of message. The kind of an event is in
the record: ``LineId.event_kind``, or ``kind`` of JSON.

A record is accepted or refused as a whole: a batch with one broken row gives no event. The producer may repair and
send the whole record again, because the joiner drops duplicates. Parsing has no state except counters.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from monolith.core.errors import ConfigError, DataError
from monolith.data.records.convert import batch_to_examples, instance_to_example
from monolith.data.records.messages import parse_message
from monolith.stream.events import Action, Impression
from monolith.stream.line_id import ACTION, IMPRESSION, MESSAGES
from monolith.stream.settings import MAX_CODE, JoinSettings
from monolith.stream.watermark import is_from_future

__all__ = ["DeadLetter", "DeadReason", "EventParser", "InputRecord", "RecordPlace"]

DeadReason: TypeAlias = Literal[
    "not_parsed",
    "no_key",
    "no_item",
    "no_time",
    "no_action",
    "key_too_long",
    "from_future",
    "too_large",
    "bad_kind",
    "core_error",
]
"""Reason for which a record cannot be used."""

InputRecord: TypeAlias = Literal["example", "instance", "example_batch"]
"""Message kind of an input topic."""

MAX_KEY_BYTES = 256
_MAX_ITEM = (1 << 64) - 1
_MAX_TIME_MS = 1 << 62  # beyond it, sums with windows leave int64
_JSON_KINDS = {"impression": IMPRESSION, "action": ACTION}


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Place of a record in the input."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that cannot be used, for the topic ``<topic>.dead``."""

    place: RecordPlace
    reason: DeadReason
    detail: str
    """Explanation for logs; not part of the dead record."""
    value: bytes
    """The original value; the dead record has at most ``MOST_RECORD_BYTES`` of it."""

    @property
    def key(self) -> bytes:
        """The key of the dead record: JSON with reason, topic, partition and offset."""
        fields = {
            "reason": self.reason,
            "topic": self.place.topic,
            "partition": self.place.partition,
            "offset": self.place.offset,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


class _Refused(Exception):
    def __init__(self, reason: DeadReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class EventParser:
    """Parses records of one topic.

    Args:
        settings: ``future_ms`` and ``max_record_bytes`` count.
        record: Message kind of the topic. JSON records are accepted beside it.

    Attributes:
        mismatches: Number of records whose LineId and record header differ in key or time. LineId wins.
        dead_letters: Number of dead letters by reason.

    >>> parser = EventParser(JoinSettings())
    >>> parser.parse(b'{"kind":"action","key":"r1","item":7,"actions":[1],"time_ms":5}', RecordPlace("actions", 0, 0))
    [Action(time_ms=5, key=b'r1', item=7, code=1)]
    """

    def __init__(self, settings: JoinSettings, record: InputRecord = "example") -> None:
        readers: dict[InputRecord, Callable[[bytes], list[Any]]] = {
            "example": lambda value: [parse_message(MESSAGES.Example, value)],
            "instance": lambda value: [instance_to_example(parse_message(MESSAGES.Instance, value))],
            "example_batch": lambda value: batch_to_examples(parse_message(MESSAGES.ExampleBatch, value)),
        }
        if record not in readers:
            raise ConfigError(f"record is {record!r}, expected one of {', '.join(get_args(InputRecord))}")
        self._settings = settings
        self._read = readers[record]
        self.mismatches = 0
        self.dead_letters: Counter[DeadReason] = Counter()

    def parse(
        self,
        value: bytes,
        place: RecordPlace,
        *,
        key: bytes = b"",
        time_ms: int | None = None,
        ingest_time_ms: int | None = None,
    ) -> list[Impression | Action] | DeadLetter:
        """Return the events of a record, or its dead letter.

        Args:
            value: The value of the record.
            place: The place of the record, for the dead letter.
            key: The key of the record: the request key if LineId has none.
            time_ms: The time of the record: the event time if LineId has none.
            ingest_time_ms: Append time of the record; None skips the check for events from the future.
        """
        try:
            self._check_size(value)
            is_json = value.startswith(b"{")
            rows = [_read_json(value)] if is_json else self._read(value)
            return [event for row in rows for event in self._read_row(row, key, time_ms, ingest_time_ms)]
        except _Refused as refused:
            return self._bury(place, refused.reason, str(refused), value)
        except DataError as error:
            return self._bury(place, "not_parsed", str(error), value)

    def _check_size(self, content: bytes) -> None:
        most_bytes = self._settings.intake.max_record_bytes
        if len(content) > most_bytes:
            raise _Refused("too_large", f"{len(content)} bytes, expected at most {most_bytes}")

    def _bury(self, place: RecordPlace, reason: DeadReason, detail: str, value: bytes) -> DeadLetter:
        self.dead_letters[reason] += 1
        return DeadLetter(place=place, reason=reason, detail=detail, value=value)

    def _read_row(
        self, example: Any, record_key: bytes, record_time_ms: int | None, ingest_time_ms: int | None
    ) -> list[Impression | Action]:
        line_id = example.line_id
        kind = line_id.event_kind
        if kind not in (IMPRESSION, ACTION):
            raise _Refused("bad_kind", f"event_kind is {kind}, expected 0 (impression) or 1 (action)")
        key = line_id.request_key or record_key
        if not key:
            raise _Refused("no_key", "request_key is absent, and the record has no key")
        if len(key) > MAX_KEY_BYTES:
            raise _Refused("key_too_long", f"request_key has {len(key)} bytes, expected at most {MAX_KEY_BYTES}")
        if not line_id.HasField("item_id"):
            raise _Refused("no_item", "item_id is absent")
        time_ms = self._read_time(line_id, record_time_ms, ingest_time_ms)
        is_other_key = bool(record_key) and record_key != key
        self.mismatches += is_other_key or (record_time_ms is not None and record_time_ms != time_ms)
        if kind == ACTION:
            return [Action(time_ms, key, line_id.item_id, code) for code in _read_codes(line_id)]
        if line_id.actions or example.label:
            raise _Refused("bad_kind", "an impression has actions or labels; set event_kind, or send it unlabelled")
        payload = example.SerializeToString()
        self._check_size(payload)  # an Example may be larger than its JSON
        return [Impression(time_ms, key, line_id.item_id, payload, line_id.event_id, ingest_time_ms or 0)]

    def _read_time(self, line_id: Any, record_time_ms: int | None, ingest_time_ms: int | None) -> int:
        if line_id.HasField("event_time_ms"):
            time_ms: int = line_id.event_time_ms
        elif line_id.HasField("req_time"):
            time_ms = line_id.req_time * 1000
        elif record_time_ms is not None:
            time_ms = record_time_ms
        else:
            raise _Refused("no_time", "event_time_ms and req_time are absent, and the record has no time")
        if not -_MAX_TIME_MS <= time_ms <= _MAX_TIME_MS:
            raise _Refused("from_future" if time_ms > 0 else "no_time", f"event time is {time_ms} ms, out of range")
        if ingest_time_ms is not None and is_from_future(time_ms, ingest_time_ms, self._settings.intake.future_ms):
            raise _Refused("from_future", f"event time is {time_ms} ms, ingest time {ingest_time_ms} ms")
        return time_ms


def _read_codes(line_id: Any) -> list[int]:
    if not line_id.actions:
        raise _Refused("no_action", "actions is empty, expected at least one code")
    codes = sorted(set(line_id.actions))
    if codes[0] < 0:
        raise _Refused("no_action", f"action code is {codes[0]}, expected 0 to {MAX_CODE}")
    return codes


# --- JSON -------------------------------------------------------------------------------------------------------------


def _read_json(value: bytes) -> Any:
    """Return a JSON record as an Example. Absent fields stay absent, so that all records share their checks."""
    try:
        record = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _Refused("not_parsed", f"invalid JSON: {error}") from None
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _JSON_KINDS:
        raise _Refused("bad_kind", f"kind is {kind!r}, expected 'impression' or 'action'")
    example: Any = MESSAGES.Example()
    line_id: Any = example.line_id
    line_id.event_kind = _JSON_KINDS[kind]
    if "key" in record:
        line_id.request_key = _read_key(record["key"])
    for name, field, low, high, reason in _JSON_NUMBERS:
        if name in record:
            setattr(line_id, field, _read_whole(record[name], name, low, high, reason))
    codes = record.get("actions", [])
    if not isinstance(codes, list):
        raise _Refused("not_parsed", f"actions is {codes!r}, expected a list of codes")
    line_id.actions.extend(_read_whole(code, "action code", 0, MAX_CODE, "no_action") for code in codes)
    features = record.get("features", {})
    if not isinstance(features, Mapping):
        raise _Refused("not_parsed", f"features is {features!r}, expected an object of lists")
    for name, values in features.items():
        _fill_feature(example.named_feature.add(), name, values)
    return example


_JSON_NUMBERS: tuple[tuple[str, str, int, int, DeadReason], ...] = (
    ("item", "item_id", 0, _MAX_ITEM, "no_item"),
    ("time_ms", "event_time_ms", -(1 << 63), (1 << 63) - 1, "no_time"),
    ("id", "event_id", 0, _MAX_ITEM, "not_parsed"),
    ("uid", "uid", 0, _MAX_ITEM, "not_parsed"),
)


def _read_key(key: object) -> bytes:
    if not isinstance(key, str):
        raise _Refused("no_key", f"key is {key!r}, expected text")
    if not key.startswith("base64:"):
        return key.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(key.removeprefix("base64:"), validate=True)
    except ValueError as error:  # binascii.Error, or a text that is not ASCII
        raise _Refused("no_key", f"key is {key!r}, expected valid base64: {error}") from None


def _read_whole(number: object, name: str, low: int, high: int, reason: DeadReason) -> int:
    if type(number) is not int or not low <= number <= high:
        raise _Refused(reason, f"{name} is {number!r}, expected a whole number from {low} to {high}")
    return number


def _fill_feature(named: Any, name: str, values: Any) -> None:
    """Write the name and values of a JSON feature.

    Whole numbers become an int64_list, other numbers a float_list, texts a bytes_list. ``{"fid_v2_list": [...]}``
    names the list, for ids.
    """
    arm = None
    if isinstance(values, dict) and len(values) == 1:
        ((arm, values),) = values.items()
    values = values if isinstance(values, list) else [values]
    if arm is None:
        arm = _choose_list(values)
    try:
        if not arm.endswith("_list"):
            raise ValueError(arm)
        named.name = name
        getattr(named.feature, arm).value.extend(
            value.encode() if isinstance(value, str) else value for value in values
        )
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise _Refused("not_parsed", f"feature {name!r} is {values!r}, expected numbers or texts: {error}") from None


def _choose_list(values: list[Any]) -> str:
    if all(isinstance(value, str) for value in values):
        return "bytes_list"
    return "int64_list" if all(type(value) is int for value in values) else "float_list"
