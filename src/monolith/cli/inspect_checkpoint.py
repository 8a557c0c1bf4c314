"""``monolith inspect checkpoint``: shows the checkpoints of a run, or one of them. Reads manifests only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from monolith.cli._display import checking_bar, size_text, time_text
from monolith.core.errors import CheckpointMissing, ManifestInvalid

if TYPE_CHECKING:
    from monolith.artifacts import SavedCheckpoint

__all__ = ["EXAMPLE", "checkpoint"]

EXAMPLE = (
    "Example: monolith inspect checkpoint runs/movies --verify    One of them: runs/movies/checkpoints/step-000000100"
)

Report: TypeAlias = dict[str, Any]


def checkpoint(
    path: Annotated[Path, typer.Argument(help="Model folder of a run, its checkpoints folder, or one checkpoint.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and check every checksum.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the checkpoints of a run: step, time, size, tables, files, and the ones that retention keeps."""
    found = _find(path)
    if not found:
        raise CheckpointMissing(
            f"'{path}' contains no checkpoint; give a model folder, or a checkpoint such as step-000000100"
        )
    report: Report = {"path": str(path), "is_verified": verify, "checkpoints": [_report(saved) for saved in found]}
    if verify:
        for saved, each in zip(found, report["checkpoints"], strict=True):
            each["damage"] = _damage(saved)
    if as_json:
        typer.echo(json.dumps(report))
    elif sys.stdout.isatty():
        _show_rich(report)
    else:
        _show_plain(report)
    damaged = [each["damage"] for each in report["checkpoints"] if each.get("damage")]
    if damaged:
        raise ManifestInvalid(
            damaged[0] if len(damaged) == 1 else f"{len(damaged)} checkpoints are corrupt; {damaged[0]}"
        )


# --- the report ---


def _find(path: Path) -> list[SavedCheckpoint]:
    """Return the checkpoints that ``path`` names, each kind in the order of their saves."""
    from monolith.artifacts import CheckpointFolder, SavedCheckpoint, read_manifest
    from monolith.artifacts.checkpoint_manifest import MANIFEST

    if (path / MANIFEST).is_file():
        return [SavedCheckpoint(path, read_manifest(path))]
    folders = [CheckpointFolder(path / name) for name in ("", "checkpoints", "dense_only")]
    for folder in folders:
        folder.newest()  # raises, with the reason, if the newest checkpoint cannot be read
    return [saved for folder in folders for saved in folder.saved()]


def _report(saved: SavedCheckpoint) -> Report:
    from monolith.artifacts import CheckpointFolder

    manifest = saved.manifest
    return {
        "path": str(saved.path),
        "step": manifest.step,
        "kind": manifest.kind,
        "saved_at_s": manifest.saved_at_s,
        "reason": manifest.reason,
        "number": manifest.number,
        "is_spared": manifest.is_spared,
        "is_exempt": saved.name in CheckpointFolder(saved.path.parent).exempted(),
        "package_version": manifest.package_version,
        "bytes": manifest.bytes,
        "tables": dict(manifest.tables),
        "files": [{"name": file.name, "bytes": file.bytes, "crc32c": file.crc32c} for file in manifest.files],
    }


def _damage(saved: SavedCheckpoint) -> str | None:
    from monolith.artifacts import verify_files

    try:
        with checking_bar() as progress:
            verify_files(saved.path, saved.manifest, progress=progress)
    except ManifestInvalid as error:
        return str(error)
    return None


# --- output ---


def _headline(report: Report) -> str:
    count = len(report["checkpoints"])
    damaged = sum(bool(each.get("damage")) for each in report["checkpoints"])
    verified = ""
    if report["is_verified"]:
        verified = f", {damaged} damaged" if damaged else ", all checksums match"
    return f"{report['path']}: {count} checkpoint{'' if count == 1 else 's'}{verified}"


def _stays(each: Report) -> str:
    return "exempt" if each["is_exempt"] else "spared" if each["is_spared"] else ""


def _show_plain(report: Report) -> None:
    typer.echo(_headline(report))
    for each in report["checkpoints"]:
        notes = ", ".join(filter(None, (each["kind"], _stays(each), "DAMAGED" if each.get("damage") else "")))
        typer.echo(f"step {each['step']} ({notes})")
        typer.echo(f"  saved   {time_text(each['saved_at_s'])}, {each['reason']}, release {each['package_version']}")
        typer.echo(f"  size    {size_text(each['bytes'])}, {len(each['files'])} files")
        for name, rows in each["tables"].items():
            typer.echo(f"  table   {name}  {rows:,} rows")
        if len(report["checkpoints"]) == 1:
            for file in each["files"]:
                typer.echo(f"  file    {file['name']}  {size_text(file['bytes'])}, crc32c {file['crc32c']:08x}")


def _show_rich(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    grid = Grid(title=_headline(report), title_justify="left", title_style="")
    for heading in ("step", "kind", "saved", "reason", "size", "rows", "stays", "checked"):
        grid.add_column(heading, justify="right" if heading in ("step", "size", "rows") else "left")
    for each in report["checkpoints"]:
        checked = ("damaged" if each["damage"] else "whole") if report["is_verified"] else ""
        rows = f"{sum(each['tables'].values()):,}"
        figures = (str(each["step"]), each["kind"], time_text(each["saved_at_s"]), each["reason"])
        grid.add_row(*figures, size_text(each["bytes"]), rows, _stays(each), checked)
    console.print(grid)
    if len(report["checkpoints"]) == 1:
        for name, rows_of_table in report["checkpoints"][0]["tables"].items():
            console.print(f"table {name}: {rows_of_table:,} rows", markup=False, highlight=False)
