"""The manifest of an export: what a served model is, what it can be asked, and every file with size and checksum.

It is written last, sealed, and holds the declaration of the model's inputs, so that neither the user's code nor torch
is needed to serve. What a declaration means, nothing here knows.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from monolith.artifacts.checkpoint_manifest import MANIFEST, FileRecord
from monolith.core.durable_files import seal, unseal, write_synced
from monolith.core.errors import ArtifactError, ManifestInvalid, VersionConflict
from monolith.core.throttle import yield_gil

__all__ = [
    "PROGRAM",
    "RECORD_INPUTS",
    "SERVING_DEFAULT",
    "TABLES",
    "TORCH_PROGRAM",
    "WARMUP",
    "WEIGHTS",
    "DenseProgram",
    "ExportManifest",
    "ServedTable",
    "Signature",
    "SubModel",
    "TensorInfo",
    "read_export_manifest",
    "write_export_manifest",
]

PROGRAM = "dense/program.onnx"
WEIGHTS = "dense/weights.safetensors"
TORCH_PROGRAM = "dense/program.pt2"
TABLES = "tables"
WARMUP = "assets.extra/tf_serving_warmup_requests"
"""Where a TensorFlow Serving model has its warm-up requests too."""

SERVING_DEFAULT = "serving_default"
RECORD_INPUTS: Mapping[str, str] = {
    "instances": "instance",
    "examples": "example",
    "example_batch": "example_batch",
    "tf_examples": "tf_example",
}
"""Inputs of a scoring signature, exactly one of which a request gives: the name, and which message its strings are."""

SubModel: TypeAlias = Literal["standalone", "entry", "ps", "dense"]

_FORMAT = "monolith.export"
_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Type and shape of one input or output."""

    dtype: str
    """``string``, or as NumPy calls it: float32, int64, int32, bool."""
    shape: tuple[int, ...]
    """-1 where the size is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a model can be asked under one name."""

    kind: Literal["score", "lookup", "raw_lookup", "raw_assign", "hashtable_assign", "dense"]
    """``score``: records to outputs, one of ``RECORD_INPUTS`` each time; the others take all their inputs."""
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTable:
    """One table; in a sub-model without tables, one that it asks others for."""

    name: str
    dim: int
    rows: int
    """Rows in this export; 0 where they lie elsewhere."""
    compressors: tuple[tuple[int, str], ...]
    """Width and kind of each run of columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseProgram:
    """The dense part: an ONNX program whose large tensors lie in a file of weights beside it, or a torch package."""

    kind: Literal["onnx", "torch"] = "onnx"
    """``torch``: a ``torch.export`` package, which only a server with torch can run."""
    inputs: Mapping[str, TensorInfo]
    """``layout/<tensor>``, ``dense/<feature>``, or the name of an attribute of a batch such as ``event_time_s``."""
    outputs: Mapping[str, TensorInfo]
    """Heads and extra outputs."""
    weights: Mapping[str, TensorInfo]
    """The model's weights that the program reads from the file, by the names that a checkpoint gives them."""
    quantized: tuple[str, ...] = ()
    """Those of them that are stored with fewer bits."""
    quantize_bits: int | None = None
    bytes: int = 0
    """Of program and weights."""
    full_bytes: int = 0
    """What they would be without quantization."""
    max_abs_error: float = 0.0
    """Largest difference from torch, with the same weights, over the sample batches of the check."""
    quantization_error: float = 0.0
    """Largest difference of an output that quantization made, over the same batches."""
    weight_error: float = 0.0
    """Largest difference of a weight from what was trained: no weight is further off."""
    checked_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """What an export is and which files it has."""

    name: str
    """Of the model."""
    version: int
    sub_model: SubModel
    shard: tuple[int, int] | None = None
    """Of a ``ps``: its number, and how many there are. Of an ``entry``: (0, how many it asks)."""
    tables_version: int | None = None
    """Of an ``entry`` that was exported without tables: the version of the ``ps`` to ask; None = its own."""
    global_step: int
    exported_at_s: float
    package_version: str
    signatures: Mapping[str, Signature]
    declaration: Mapping[str, Any] | None = None
    """Features, slices, layouts and dense inputs, in the JSON form of ``monolith.features.Declaration``."""
    heads: tuple[str, ...] = ()
    tables: tuple[ServedTable, ...] = ()
    """By name."""
    has_tables: bool = False
    """Whether the rows are in this folder."""
    dense: DenseProgram | None = None
    """None: the dense part is in another sub-model, or there is none."""
    has_torch_program: bool = False
    files: tuple[FileRecord, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all files; the manifest itself is not among them."""
        return sum(file.bytes for file in self.files)

    @property
    def warmup(self) -> bool:
        """Whether it carries requests for warming up."""
        return any(file.name == WARMUP for file in self.files)


def write_export_manifest(folder: Path, manifest: ExportManifest) -> None:
    """Write the manifest of the files in ``folder`` and wait until the disk has it."""
    body = {"format": _FORMAT, "format_version": _VERSION, **dataclasses.asdict(manifest)}
    write_synced(folder / MANIFEST, seal(body))


def read_export_manifest(folder: str | os.PathLike[str]) -> ExportManifest:
    """Return the manifest of the export in ``folder``.

    Raises:
        ArtifactError: There is no export in it.
        ManifestInvalid: The manifest was altered.
        VersionConflict: It is of a release that this one does not know.
    """
    path = Path(folder) / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(
            f"'{folder}' holds no export: there is no {MANIFEST} in it; make one with monolith export"
        ) from None
    try:
        body = unseal(content)
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' cannot be believed: {error}") from error
    yield_gil()
    if body.pop("format", None) != _FORMAT:
        raise ManifestInvalid(f"'{path}' is not the manifest of an export")
    version = body.pop("format_version", None)
    if version != _VERSION:
        raise VersionConflict(
            f"'{path}' has version {version}, this release reads {_VERSION}; export the model again, or serve it with "
            "the release that wrote it"
        )
    try:
        return _decoded(body)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ManifestInvalid(f"'{path}' lacks what an export has: {error}") from error


def _decoded(body: dict[str, Any]) -> ExportManifest:
    dense = body.pop("dense")
    shard = body.pop("shard")
    return ExportManifest(
        **{
            **body,
            "shard": None if shard is None else (shard[0], shard[1]),
            "heads": tuple(body["heads"]),
            "signatures": {name: _signature(each) for name, each in body["signatures"].items()},
            "tables": tuple(
                ServedTable(**{**each, "compressors": tuple((dim, kind) for dim, kind in each["compressors"])})
                for each in body["tables"]
            ),
            "dense": None if dense is None else _program(dense),
            "files": tuple(FileRecord(**file) for file in body["files"]),
        }
    )


def _signature(body: Mapping[str, Any]) -> Signature:
    return Signature(kind=body["kind"], inputs=_tensors(body["inputs"]), outputs=_tensors(body["outputs"]))


def _program(body: Mapping[str, Any]) -> DenseProgram:
    return DenseProgram(
        **{
            **body,
            "inputs": _tensors(body["inputs"]),
            "outputs": _tensors(body["outputs"]),
            "weights": _tensors(body["weights"]),
            "quantized": tuple(body["quantized"]),
        }
    )


def _tensors(body: Mapping[str, Mapping[str, Any]]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(dtype=each["dtype"], shape=_shape(each["shape"])) for name, each in body.items()}


def _shape(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)
