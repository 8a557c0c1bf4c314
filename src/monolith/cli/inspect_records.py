"""``monolith inspect records``: detects the format of a file, counts its records, and shows the first ones."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from monolith.core.errors import ConfigError, RecordCorrupt

if TYPE_CHECKING:
    from monolith._native import Records
    from monolith.data.record_filter import RecordFilter
    from monolith.data.records.detect import Detection
    from monolith.data.records.framing import Framing
    from monolith.data.records.reader import RecordReader

__all__ = ["EXAMPLE", "records"]

EXAMPLE = "Example: monolith inspect records part-0.pb.zst --limit 2"

Report: TypeAlias = dict[str, Any]

_FLAGS = ("sort_id", "kafka_dump", "kafka_dump_prefix", "lagrangex_header")
_MOST_SHOWN_LINES = 40


def records(
    path: Annotated[str, typer.Argument(metavar="FILE", help="A file, or a URL that fsspec can open.")],
    framing: Annotated[
        str | None,
        typer.Option(
            metavar="FLAGS", help="Framing instead of the detected one: sort_id,kafka_dump,... or none, tfrecord, bare."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Number of records to show.")] = 3,
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT|@FILE", help="TransformConfig in protobuf text format: show and count the records it keeps."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Detect the codec, framing and message type of a file, count its records, and show the first ones."""
    from monolith.core import storage
    from monolith.data.records.detect import detect
    from monolith.data.records.framing import Framing

    wanted = None if framing is None else Framing.parse(framing)
    if not storage.is_file(path):
        raise ConfigError(f"path is {path!r}, expected a file; for a folder, name one of its files")
    found = detect(path)
    keep = None if transform is None else _filter(transform, found.record, path)
    report = _explanation(path, storage.file_bytes(path), found)
    chosen = wanted or found.framing
    damage = _read(report, path, chosen, found, limit, keep) if chosen is not None else None
    _show(report, as_json)
    if damage is not None:
        raise damage


def _filter(text: str, record: str | None, path: str) -> RecordFilter:
    from monolith.cli.filter import read_transform
    from monolith.data.record_filter import RecordFilter

    if record is None:
        raise ConfigError(
            f"format of {path!r} is unknown, so a transform cannot read its records; leave --transform out"
        )
    return RecordFilter(record, read_transform(text))


# --- the report ---


def _explanation(path: str, size: int, found: Detection) -> Report:
    return {
        "path": path,
        "bytes": size,
        "compression": found.compression,
        "text": found.text,
        "framing": _framing_report(found.framing),
        "record": found.record,
        "confidence": found.confidence,
        "evidence": list(found.evidence),
        "alternatives": [repr(each) for each in found.alternatives],
    }


def _framing_report(framing: Framing | None) -> Report | None:
    if framing is None:
        return None
    return {"call": repr(framing), "kind": framing.kind, **{name: getattr(framing, name) for name in _FLAGS}}


def _read(
    report: Report, path: str, framing: Framing, found: Detection, limit: int, keep: RecordFilter | None
) -> RecordCorrupt | None:
    """Count the records with ``framing`` and keep the first ones; return the error of a corrupt file, if any."""
    from monolith.data.records.reader import RecordReader

    counts: Report = {"framing": repr(framing), "records": 0, "payload_bytes": 0, "smallest": None, "largest": None}
    if keep is not None:
        counts["kept"] = 0
    report.update(read=counts, first=[], damage=None)
    with RecordReader(path, framing=framing, compression=found.compression) as reader, _progress(reader) as moved:
        try:
            while (chunk := reader.read()) is not None:
                sizes = _sizes(chunk)
                first = report["first"]
                for index in range(len(chunk) if keep is not None else min(limit - len(first), len(chunk))):
                    content = chunk[index] if keep is None else keep(chunk[index])
                    if content is None:
                        continue
                    if keep is not None:
                        counts["kept"] += 1
                    if len(first) < limit:
                        number = counts["records"] + index
                        first.append(_record_report(chunk, index, number, content, report["record"]))
                counts["records"] += len(sizes)
                counts["payload_bytes"] += sum(sizes)
                counts["smallest"] = min([*sizes, counts["smallest"] if counts["smallest"] is not None else sizes[0]])
                counts["largest"] = max([*sizes, counts["largest"] or 0])
                moved()
        except RecordCorrupt as error:
            remedy = found.remedy(framing, reader.codec)
            report["damage"] = f"{error}; {remedy}" if remedy else str(error)
            return RecordCorrupt(report["damage"])
    return None


def _sizes(chunk: Records) -> list[int]:
    return [len(chunk[index]) for index in range(len(chunk))]


def _record_report(chunk: Records, index: int, number: int, content: bytes, record: str | None) -> Report:
    return {
        "record": number,
        "offset": int(chunk.offsets[index]),
        "bytes": len(chunk[index]),
        "source_key": int(chunk.source_keys[index]),
        "content": describe(content, record),
    }


def describe(payload: bytes, record: str | None) -> str:
    """Return a record as text; its fields by number if the message type is unknown."""
    if record is not None:
        try:
            messages = importlib.import_module("monolith.data.records.messages")
            formatter = importlib.import_module("monolith.data.records.formatter")
            message = messages.parse_message(messages.record_class(record), payload)
            return str(formatter.format_record(message, "json", readable=True))
        except ImportError:
            pass  # the message classes need protobuf, which may not be installed
        except RecordCorrupt as error:
            return f"{error}\n{_field_summary(payload)}"
    return _field_summary(payload)


def _field_summary(payload: bytes) -> str:
    """Return the fields of a message by number, with their counts and bytes."""
    totals: dict[int, tuple[int, int]] = {}
    try:
        for number, size in _fields(payload):
            count, total = totals.get(number, (0, 0))
            totals[number] = (count + 1, total + size)
    except (ValueError, IndexError):
        return f"no message: {payload[:32].hex(' ')}{' ...' if len(payload) > 32 else ''}"
    return "\n".join(f"field {number}: {count} x, {total} bytes" for number, (count, total) in sorted(totals.items()))


def _fields(payload: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(payload):
        begin = at
        key, at = _varint(payload, at)
        kind = key & 7
        if kind == 0:
            _, at = _varint(payload, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _varint(payload, at)
            at += size
        else:
            raise ValueError(kind)
        if at > len(payload) or key >> 3 == 0:
            raise ValueError(key)
        yield key >> 3, at - begin


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(value)


# --- output ---


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report))
        return
    for line in _lines(report):
        typer.echo(line)


def _lines(report: Report) -> Iterator[str]:
    yield f"{report['path']}: {_what(report)}"
    yield f"  compression  {report['compression']}"
    if report["framing"] is not None:
        yield f"  framing      {report['framing']['call']} ({report['confidence']})"
        yield from (f"               or {other}, with the same records" for other in report["alternatives"])
    yield f"  record       {report['record'] or 'not known'}"
    yield f"  why          {'; '.join(report['evidence'])}"
    if "read" not in report:
        return
    counts = report["read"]
    if report["framing"] is None or counts["framing"] != report["framing"]["call"]:
        yield f"  read with    {counts['framing']}, as asked"
    spread = f", {counts['smallest']:,} to {counts['largest']:,} each" if counts["records"] else ""
    until = " before the damage" if report["damage"] else ""
    yield f"  records      {counts['records']:,}{until}, {counts['payload_bytes']:,} bytes{spread}"
    if "kept" in counts:
        yield f"  kept         {counts['kept']:,} by the transform"
    for each in report["first"]:
        source = f", data source {each['source_key']}" if each["source_key"] else ""
        yield f"record {each['record']} at byte {each['offset']}, {each['bytes']} bytes{source}"
        lines = each["content"].splitlines()
        yield from (f"  {line}" for line in lines[:_MOST_SHOWN_LINES])
        if len(lines) > _MOST_SHOWN_LINES:
            yield f"  ... and {len(lines) - _MOST_SHOWN_LINES} more lines (--json has all)"


def _what(report: Report) -> str:
    size = f"{report['bytes']:,} bytes"
    if report["text"] is not None:
        forms = {"json": "JSON", "pbtxt": "a text proto", "dump": "a dump of keys", "other": "text"}
        what = forms[report["text"]]
        of_what = f" of one {report['record']}" if report["record"] else ""
        return f"{what}{of_what}, {size}; no framed records"
    if report["framing"] is None:
        return f"nothing known, {size}"
    return f"{report['record'] or 'unknown'} records, {size}"


@contextlib.contextmanager
def _progress(reader: RecordReader) -> Iterator[Callable[[], None]]:
    """Yield a callback that moves a progress bar on a terminal; elsewhere it does nothing."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("counting"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=reader.file_bytes)
        yield lambda: bar.update(task, completed=reader.bytes_read())
