"""``monolith inspect``: shows the content of a file or folder. One subcommand per kind of artifact.

Each subcommand builds a report, a plain dictionary, and prints it: as a table on a terminal, as lines elsewhere, as
JSON on request. This module contains ``inspect table``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from monolith.cli import (
    inspect_checkpoint,
    inspect_delta,
    inspect_export,
    inspect_log,
    inspect_machine,
    inspect_records,
)
from monolith.cli._display import checking_bar, json_text, size_text, time_text
from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.embedding import Table
    from monolith.embedding.entry import Entry
    from monolith.embedding.images import SavedImage
    from monolith.embedding.snapshot import SavedTable

__all__ = ["register"]

Report: TypeAlias = dict[str, Any]

_EXAMPLE = "Example: monolith inspect table user.table --verify"


def register(app: typer.Typer) -> None:
    """Add ``inspect`` and its kinds to the program."""
    kinds = typer.Typer(no_args_is_help=True, epilog=_EXAMPLE, help="Show the content of tables, checkpoints or data.")
    kinds.callback()(_kinds)
    kinds.command("table", epilog=_EXAMPLE + "    Why an id is present or absent: --explain 42")(table)
    kinds.command("checkpoint", epilog=inspect_checkpoint.EXAMPLE)(inspect_checkpoint.checkpoint)
    kinds.command("export", epilog=inspect_export.EXAMPLE)(inspect_export.export)
    kinds.command("records", epilog=inspect_records.EXAMPLE)(inspect_records.records)
    kinds.command("delta", epilog=inspect_delta.EXAMPLE)(inspect_delta.delta)
    kinds.command("log", epilog=inspect_log.EXAMPLE)(inspect_log.log)
    kinds.command("machine", epilog=inspect_machine.EXAMPLE)(inspect_machine.machine)
    app.add_typer(kinds, name="inspect")


def _kinds() -> None:
    """Show the content of tables, checkpoints, exports, delta logs, event logs or record files."""


def table(
    path: Annotated[
        Path, typer.Argument(help="Folder written by Table.save or MultiTable.save, an export, or a checkpoint.")
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and check every checksum.")] = False,
    explain: Annotated[
        str | None, typer.Option(metavar="ID", help="Explain why this id is present or absent, and show its row.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the tables of a snapshot or an export: rows, slices, files, newest event, admission."""
    from monolith.embedding.images import holds_images

    fid = None if explain is None else _parse_id(explain)
    inner = path / "tables"
    if (inner / "manifest.json").is_file():  # an export or a checkpoint
        path = inner
    read = _image_reports if holds_images(path) else _snapshot_reports
    tables, explanations = read(path, verify, fid)
    report: Report = {
        "path": str(path),
        "bytes": sum(each["bytes"] for each in tables),
        "is_verified": verify,
        "tables": tables,
    }
    if fid is not None:
        report["explain"] = explanations
    if as_json:
        typer.echo(json_text(report))
    elif sys.stdout.isatty():
        _show_rich(report)
    else:
        _show_plain(report)


# --- the report ---


def _parse_id(text: str) -> int:
    try:
        number = int(text, 0)
    except ValueError:
        raise ConfigError(f"--explain is {text!r}, expected an id: a whole number, decimal or 0x...") from None
    if not -(2**63) <= number < 2**64:
        raise ConfigError(f"--explain is {text!r}, expected an id of 64 bits")
    return number - 2**64 if number >= 2**63 else number


def _snapshot_reports(path: Path, verify: bool, fid: int | None) -> tuple[list[Report], list[Report]]:
    """Return the reports of a snapshot's tables, and the explanations of an id."""
    from monolith.embedding import inspection, snapshot

    if verify:
        with checking_bar() as progress:
            saved = inspection.verify(path, progress)
    else:
        saved = snapshot.read_manifest(path)
    limit = "a snapshot does not contain rows that were removed or had expired before it was taken"
    explanations = [] if fid is None else [_explain(inspection.load_row(each, fid), fid, limit) for each in saved]
    return [_snapshot_report(each) for each in saved], explanations


def _image_reports(path: Path, verify: bool, fid: int | None) -> tuple[list[Report], list[Report]]:
    """Return the reports of an export's tables, and the explanations of an id."""
    from monolith.embedding import inspection
    from monolith.embedding.images import read_images

    saved = read_images(path)
    if verify:
        with checking_bar() as progress:
            inspection.verify_images(saved, progress)
    tables = [each.load() for each in saved]  # memory-mapped: reads very little
    limit = "an export contains only the rows that existed when it was written"
    explanations = [] if fid is None else [_explain(table, fid, limit) for table in tables]
    return [_image_report(*each) for each in zip(saved, tables, strict=True)], explanations


def _snapshot_report(saved: SavedTable) -> Report:
    return _table_report(
        saved.spec,
        saved.slices,
        name=saved.name,
        kind="serving" if saved.is_serving else "training",
        rows=saved.rows,
        bytes=saved.bytes,
        newest_event_s=saved.max_time_s,
        filter_bytes=saved.filter_bytes,
        files=[{"name": Path(part.path).name, "bytes": part.bytes, "rows": part.rows} for part in saved.parts],
    )


def _image_report(saved: SavedImage, table: Table) -> Report:
    spec = json.loads(saved.spec.to_json())
    return _table_report(
        spec,
        spec["slices"],
        name=saved.spec.name,
        kind="serving",
        rows=saved.rows,
        bytes=saved.bytes,
        newest_event_s=table.max_time_s,
        filter_bytes=0,
        files=[{"name": saved.path.name, "bytes": saved.bytes, "rows": saved.rows}],
    )


def _table_report(spec: Report | None, slices: list[Report], **known: Any) -> Report:
    pieces = slices if spec is None else spec["slices"]
    spec = spec or {}
    return {
        **known,
        "dim": sum(int(each["dim"]) for each in slices),
        "slices": [_slice_report(each) for each in pieces],
        "admission": {
            **spec["admission"],
            "occurrence_threshold": spec.get("occurrence_threshold", 0),
            "slot_thresholds": spec["slot_thresholds"],
        }
        if spec
        else None,
        "expire_days": spec.get("expire_days"),
        "slot_expire_days": spec.get("slot_expire_days"),
    }


def _slice_report(piece: Report) -> Report:
    optimizer = piece["optimizer"]
    return {
        "dim": piece["dim"],
        "optimizer": {"kind": optimizer} if isinstance(optimizer, str) else optimizer,
        "initializer": piece.get("initializer"),
        "compressor": piece.get("compressor"),
    }


def _explain(table: Table, fid: int, limit: str) -> Report:
    entry = table.entry(fid)
    text = table.explain(fid)
    if entry is None:
        text += f"; {limit}"
    return {"table": table.spec.name, "text": text, "entry": None if entry is None else _entry_report(entry)}


def _entry_report(entry: Entry) -> Report:
    return {
        "id": entry.id,
        "time_s": entry.time_s,
        "values": entry.values.tolist(),
        "state": [{name: numbers.tolist() for name, numbers in piece.items()} for piece in entry.state],
    }


# --- output ---


def _part(part: Report | None) -> str:
    """Return a part of a spec as a class call: ``adagrad(learning_rate=0.05)``."""
    if part is None:
        return "not saved"
    settings = [f"{name}={_part(value) if isinstance(value, dict) else value}" for name, value in part.items()]
    inner = [setting for setting in settings if not setting.startswith("kind=")]
    return f"{part['kind']}({', '.join(inner)})"


def _slots(by_slot: dict[str, int], most: int) -> str:
    shown = [f"slot {slot}: {value}" for slot, value in list(by_slot.items())[:most]]
    return ", ".join(shown) + (f" and {len(by_slot) - most} more" if len(by_slot) > most else "")


def _admission(report: Report, most: int) -> str:
    admission = report["admission"]
    if admission is None:
        return "not saved"
    threshold, by_slot = admission["occurrence_threshold"], admission["slot_thresholds"]
    if (not by_slot and not threshold) or admission["kind"] == "no_filter":
        return "all ids"
    shown = [f"threshold {threshold}"] if threshold else []
    shown += [_slots(by_slot, most)] if by_slot else []
    return f"{admission['kind']} ({', '.join(shown)})"


def _expiry(report: Report) -> str:
    if report["expire_days"] is None:
        return "not saved"
    slots = _slots(report["slot_expire_days"], 100)
    return f"{report['expire_days']} days" + (f", {slots}" if slots else "")


def _headline(report: Report) -> str:
    count = len(report["tables"])
    verified = ", all checksums match" if report["is_verified"] else ""
    return f"{report['path']}: {count} table{'' if count == 1 else 's'}, {size_text(report['bytes'])}{verified}"


def _values(numbers: list[float]) -> str:
    return "[" + ", ".join(f"{number:.6g}" for number in numbers) + "]"


def _explanation_lines(report: Report) -> Iterator[str]:
    for each in report.get("explain", []):
        yield f"{each['table']}: {each['text']}"
        entry = each["entry"]
        if entry is None:
            continue
        yield f"  values  {_values(entry['values'])}"
        for number, piece in enumerate(entry["state"]):
            for name, numbers in piece.items():
                yield f"  slice {number} {name}  {_values(numbers)}"


def _show_plain(report: Report) -> None:
    typer.echo(_headline(report))
    for each in report["tables"]:
        typer.echo(f"table {each['name']} ({each['kind']})")
        typer.echo(f"  rows       {each['rows']:,}, dim {each['dim']}, {size_text(each['bytes'])}")
        for number, piece in enumerate(each["slices"]):
            parts = ", ".join(_part(piece[name]) for name in ("optimizer", "initializer", "compressor"))
            typer.echo(f"  slice {number}    dim {piece['dim']}: {parts}")
        typer.echo(f"  newest     {time_text(each['newest_event_s'])}")
        typer.echo(f"  admission  {_admission(each, 100)}, filter {size_text(each['filter_bytes'])}")
        typer.echo(f"  expiry     {_expiry(each)}")
        for file in each["files"]:
            typer.echo(f"  file       {file['name']}  {size_text(file['bytes'])}, {file['rows']:,} rows")
    for line in _explanation_lines(report):
        typer.echo(line)


def _show_rich(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    grid = Grid(title=_headline(report), title_justify="left", title_style="")
    for heading in ("table", "rows", "slices", "size", "files", "newest event", "admission"):
        is_number = heading in ("rows", "size", "files")
        grid.add_column(heading, justify="right" if is_number else "left", no_wrap=heading != "admission")
    for each in report["tables"]:
        name = each["name"] + (" (serving)" if each["kind"] == "serving" else "")
        slices = "\n".join(f"{piece['dim']} {piece['optimizer']['kind']}" for piece in each["slices"])
        newest = time_text(each["newest_event_s"]).replace(" ", "\n", 1)
        cells = (f"{each['rows']:,}", slices, size_text(each["bytes"]), str(len(each["files"])), newest)
        grid.add_row(name, *cells, _admission(each, 3))
    console.print(grid)
    for line in _explanation_lines(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
