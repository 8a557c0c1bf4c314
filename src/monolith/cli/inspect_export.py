"""``monolith inspect export``: shows the versions in a folder, or one of them. Reads manifests only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from monolith.cli._display import checking_bar, size_text, time_text
from monolith.core.errors import ArtifactError, ManifestInvalid

if TYPE_CHECKING:
    from monolith.artifacts.export_manifest import ExportManifest, TensorInfo

__all__ = ["EXAMPLE", "export"]

EXAMPLE = "Example: monolith inspect export served/clicks --verify    One version: served/clicks/1700000000"

Report: TypeAlias = dict[str, Any]


def export(
    path: Annotated[Path, typer.Argument(help="Folder with the versions of a model, or one version.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and check every checksum.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show exports: step, size, tables, signatures, and the error of the dense program."""
    found = _find(path)
    if not found:
        raise ArtifactError(f"'{path}' contains no export; give a folder that monolith export wrote")
    report: Report = {"path": str(path), "is_verified": verify, "exports": []}
    for folder in found:
        report["exports"].append(_report(folder, verify))
    if as_json:
        typer.echo(json.dumps(report))
    else:
        for each in report["exports"]:
            _show(each, is_only=len(found) == 1)
    damaged = [each["damage"] for each in report["exports"] if each.get("damage")]
    if damaged:
        raise ManifestInvalid(damaged[0] if len(damaged) == 1 else f"{len(damaged)} are corrupt; {damaged[0]}")


def _find(path: Path) -> list[Path]:
    from monolith.artifacts.checkpoint_manifest import MANIFEST
    from monolith.artifacts.export_folder import ExportFolder

    if (path / MANIFEST).is_file():
        return [path]
    folder = ExportFolder(path)
    return [folder.path_of(version, sub) for sub in ("", *folder.sub_models()) for version in folder.versions(sub)]


def _report(folder: Path, verify: bool) -> Report:
    from monolith.artifacts import verify_files
    from monolith.artifacts.export_manifest import read_export_manifest

    manifest = read_export_manifest(folder)
    report = _describe(folder, manifest)
    if verify:
        try:
            with checking_bar() as progress:
                verify_files(folder, manifest, progress=progress)
        except ManifestInvalid as error:
            report["damage"] = str(error)
    return report


def _describe(folder: Path, manifest: ExportManifest) -> Report:
    dense = manifest.dense
    return {
        "path": str(folder),
        "name": manifest.name,
        "version": manifest.version,
        "sub_model": manifest.sub_model,
        "shard": manifest.shard,
        "global_step": manifest.global_step,
        "exported_at_s": manifest.exported_at_s,
        "package_version": manifest.package_version,
        "bytes": manifest.bytes,
        "heads": list(manifest.heads),
        "tables": [
            {"name": table.name, "rows": table.rows, "dim": table.dim, "compressors": list(table.compressors)}
            for table in manifest.tables
        ],
        "signatures": {
            name: {"inputs": _tensors(each.inputs), "outputs": _tensors(each.outputs)}
            for name, each in manifest.signatures.items()
        },
        "dense": None
        if dense is None
        else {
            "inputs": _tensors(dense.inputs),
            "outputs": _tensors(dense.outputs),
            "weights": len(dense.weights),
            "bytes": dense.bytes,
            "full_bytes": dense.full_bytes,
            "quantize_bits": dense.quantize_bits,
            "max_abs_error": dense.max_abs_error,
            "quantization_error": dense.quantization_error,
            "weight_error": dense.weight_error,
        },
        "files": [{"name": file.name, "bytes": file.bytes, "crc32c": file.crc32c} for file in manifest.files],
    }


def _tensors(tensors: Any) -> Report:
    return {name: _text(info) for name, info in tensors.items()}


def _text(info: TensorInfo) -> str:
    return f"{info.dtype}[{', '.join('?' if size < 0 else str(size) for size in info.shape)}]"


def _show(report: Report, is_only: bool) -> None:
    damage = "  DAMAGED" if report.get("damage") else ""
    part = report["sub_model"] if report["shard"] is None else f"{report['sub_model']}, shard {report['shard']}"
    typer.echo(f"{report['path']}: {report['name']} version {report['version']} ({part}){damage}")
    typer.echo(f"  exported   {time_text(report['exported_at_s'])}, step {report['global_step']}")
    typer.echo(f"  size       {size_text(report['bytes'])}, {len(report['files'])} files")
    for table in report["tables"]:
        form = ", ".join(f"{dim} {kind}" for dim, kind in table["compressors"])
        typer.echo(f"  table      {table['name']}  {table['rows']:,} rows of {form}")
    dense = report["dense"]
    if dense is not None:
        bits = "" if dense["quantize_bits"] is None else f", {dense['quantize_bits']} bits"
        off = f"at most {dense['max_abs_error']:.3g} from torch"
        if dense["quantize_bits"] is not None:
            off += f", {dense['quantization_error']:.3g} by quantization"
        typer.echo(f"  dense      {size_text(dense['bytes'])}{bits}, {dense['weights']} weights, {off}")
    if not is_only:
        return
    for name, each in report["signatures"].items():
        inputs = ", ".join(f"{key} {text}" for key, text in each["inputs"].items())
        outputs = ", ".join(f"{key} {text}" for key, text in each["outputs"].items())
        typer.echo(f"  signature  {name}: {inputs} -> {outputs}")
    for file in report["files"]:
        typer.echo(f"  file       {file['name']}  {size_text(file['bytes'])}, crc32c {file['crc32c']:08x}")
