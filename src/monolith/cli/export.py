"""``monolith export``: writes a trained model as files that a server loads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith.cli._display import size_text
from monolith.core.errors import CheckpointMissing, ConfigError

if TYPE_CHECKING:
    from monolith.artifacts.export_manifest import DenseProgram
    from monolith.export import ExportOptions
    from monolith.training.estimator import Estimator

__all__ = ["register"]

_EXAMPLE = "Example: monolith export runs/clicks served/clicks --quantize-bits 8    Only the dense part: --format onnx"


def register(app: typer.Typer) -> None:
    """Add ``export`` to the program."""
    app.command("export", epilog=_EXAMPLE)(export)


def export(
    source: Annotated[str, typer.Argument(help="Model folder of a run (path or URL), or one of its checkpoints.")],
    out: Annotated[
        str,
        typer.Argument(help="Folder or URL for the versions of the model; with --format onnx, the file to write."),
    ],
    format_name: Annotated[str, typer.Option("--format", help="monolith, or onnx for only the dense part.")] = (
        "monolith"
    ),
    quantize_bits: Annotated[
        int | None, typer.Option(help="8 or 16: store the matrices of the dense part with fewer bits.")
    ] = None,
    model_version: Annotated[int | None, typer.Option(help="Version number; default: the time in unix seconds.")] = (
        None
    ),
    warmup: Annotated[
        Path | None, typer.Option(help="TFRecords of PredictionLog for warm-up; default: generated requests.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing version.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the model; default: its class.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Model class, as in train; default: the one saved in the model folder.")
    ] = None,
    task_options: Annotated[str | None, typer.Option(help="Keyword arguments of the model, as JSON.")] = None,
    layout: Annotated[str, typer.Option(help="standalone, or distributed: entry, ps_<i>, dense_<i>.")] = "standalone",
    shards: Annotated[int, typer.Option(help="Distributed: number of ps parts of the tables.")] = 1,
    remote_dense: Annotated[
        bool, typer.Option("--remote-dense", help="Distributed: put the dense part into dense_0.")
    ] = False,
    dense_only: Annotated[
        bool, typer.Option("--dense-only", help="Distributed: export the dense part, keep the tables exported before.")
    ] = False,
    share_tables: Annotated[
        bool,
        typer.Option(
            "--share-tables", help="Refer to the tables of the checkpoint instead of copying them; it is then kept."
        ),
    ] = False,
    full_precision: Annotated[
        bool, typer.Option("--full-precision", help="Store float32 where the model declares half precision.")
    ] = False,
    skip_zero_rows: Annotated[bool, typer.Option("--skip-zero-rows", help="Skip rows of zeros.")] = False,
    program: Annotated[
        str,
        typer.Option(help="Program that servers run: onnx, or torch if ONNX lacks an operator (servers need torch)."),
    ] = "onnx",
    torch_program: Annotated[
        bool, typer.Option("--torch-program", help="Write a torch.export package beside the ONNX program.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(help="Largest accepted difference of program and torch on sample batches.")
    ] = 1e-4,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Export a trained model for serving. The model class is read from the model folder."""
    from monolith.export.options import ExportOptions, check_format

    check_format(format_name)
    options = ExportOptions(
        layout=layout,  # type: ignore[arg-type]
        shards=shards,
        has_remote_dense=remote_dense,
        is_dense_only=dense_only,
        shares_tables=share_tables,
        quantize_bits=quantize_bits,
        full_precision=full_precision,
        skip_zero_rows=skip_zero_rows,
        program=program,  # type: ignore[arg-type]
        with_torch_program=torch_program,
        tolerance=tolerance,
    )
    with ExitStack() as ahead:
        if format_name == "monolith" and not (dense_only or share_tables):
            ahead.enter_context(_write_ahead(source, out, options))
        estimator, checkpoint = _open(source, task, task_options, name)
        if format_name == "onnx":
            program_file = Path(out)
            described = _write_onnx(estimator, checkpoint, program_file, options, overwrite)
            _show_program(program_file, described, as_json)
            return
        path = estimator.export(
            out, model_version, warmup=warmup, checkpoint=checkpoint, overwrite=overwrite, options=options
        )
    _show(path, as_json)


@contextmanager
def _write_ahead(source: str, out: str, options: ExportOptions) -> Iterator[None]:
    """Write the shards of a large checkpoint before torch is imported: the sum of both would need more memory."""
    from monolith.artifacts.checkpoint_folder import CheckpointFolder
    from monolith.artifacts.checkpoint_manifest import MANIFEST
    from monolith.artifacts.remote_folder import fetch_bundle, local_path, open_folder
    from monolith.core.errors import MonolithError
    from monolith.export.shard_writer import write_ahead

    place, target = open_folder(source), local_path(out)
    tables = None
    with suppress(MonolithError):  # the export itself reports a damaged checkpoint
        if (place / MANIFEST).is_file():
            fetch_bundle(place)
            tables = place / "tables"
        elif not (place / "restore_ckpt").exists():
            root = place if place.name == "checkpoints" else place / "checkpoints"
            newest = CheckpointFolder(root).newest()
            tables = None if newest is None else newest.path / "tables"
    if tables is None or not tables.is_dir():
        yield
        return
    target.mkdir(parents=True, exist_ok=True)
    shards = options.shards if options.layout == "distributed" else 1
    with write_ahead(
        tables, target, shards, skip_zero_rows=options.skip_zero_rows, full_precision=options.full_precision
    ):
        yield


def _open(given: str, task: str | None, task_options: str | None, name: str | None) -> tuple[Estimator, Path | None]:
    """Return the estimator of a run, and the checkpoint if the path or URL is one."""
    from monolith.artifacts.checkpoint_manifest import MANIFEST
    from monolith.artifacts.remote_folder import open_folder
    from monolith.cli._job import load_job
    from monolith.training.config.job import JobConfig
    from monolith.training.runner import Job

    source = open_folder(given)
    if not source.is_dir():
        raise CheckpointMissing(
            f"source is {given!r}, expected a model folder or one of its checkpoints; check the path"
        )
    is_checkpoint = (source / MANIFEST).is_file()
    model_dir = source.absolute().parent.parent if is_checkpoint else source
    if not is_checkpoint and source.name == "checkpoints":
        model_dir = source.absolute().parent
    flags: dict[str, Any] = {"model_dir": str(model_dir)}
    if task is not None:
        flags["task"] = task
    if task_options is not None:
        flags["task_options"] = _options(task_options)
    if name is not None:
        flags["deep_insight_name"] = name
    job = Job(load_job(flags, None, JobConfig).config)
    return job.estimator, source if is_checkpoint else None


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"--task-options is {text!r}, expected JSON ({error}); write an object such as '{{\"dim\": 8}}'"
        ) from error
    if not isinstance(options, dict):
        raise ConfigError(f"--task-options is {text!r}, expected a JSON object; write one such as '{{\"dim\": 8}}'")
    return options


def _write_onnx(
    estimator: Estimator, checkpoint: Path | None, out: Path, options: ExportOptions, overwrite: bool
) -> DenseProgram:
    from monolith.export import export_onnx

    estimator.load(checkpoint)
    return export_onnx(estimator.model, out, options=options, overwrite=overwrite)


def _show(path: Path, as_json: bool) -> None:
    from monolith.artifacts.export_manifest import read_export_manifest
    from monolith.artifacts.remote_folder import artifact_url, is_staged

    manifest = read_export_manifest(path)
    place = artifact_url(path) if is_staged(path) else str(path)
    if as_json:
        report = {
            "path": place,
            "name": manifest.name,
            "version": manifest.version,
            "global_step": manifest.global_step,
            "bytes": manifest.bytes,
            "tables": {table.name: table.rows for table in manifest.tables},
            "dense": None if manifest.dense is None else _dense_report(manifest.dense),
        }
        typer.echo(json.dumps(report))
        return
    typer.echo(
        f"{place}: {manifest.name} version {manifest.version}, step {manifest.global_step}, {size_text(manifest.bytes)}"
    )
    if manifest.dense is not None:
        typer.echo(_sentence(manifest.dense))


def _show_program(path: Path, program: DenseProgram, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"path": str(path), "bytes": program.bytes, "dense": _dense_report(program)}))
        return
    typer.echo(f"{path}: {size_text(program.bytes)}, inputs {', '.join(program.inputs)}")
    typer.echo(_sentence(program))


def _dense_report(program: DenseProgram) -> dict[str, Any]:
    return {
        "bytes": program.bytes,
        "full_bytes": program.full_bytes,
        "quantize_bits": program.quantize_bits,
        "max_abs_error": program.max_abs_error,
        "quantization_error": program.quantization_error,
        "weight_error": program.weight_error,
    }


def _sentence(program: DenseProgram) -> str:
    text = f"dense part: at most {program.max_abs_error:.3g} from torch"
    if program.quantize_bits is not None:
        text += (
            f"; {program.quantize_bits} bits: {size_text(program.bytes)} instead of {size_text(program.full_bytes)}, "
            f"outputs at most {program.quantization_error:.3g} off, weights {program.weight_error:.3g}"
        )
    return text
