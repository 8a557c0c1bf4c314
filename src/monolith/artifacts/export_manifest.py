"""Manifest of an export: signatures, tables, dense program, and every file with size and checksum.

The manifest is sealed and written last. It holds the declaration of the model's inputs, so that a server needs neither
the user's code nor torch. Plain values.
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
    "ASSIGNMENTS",
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
    "SharedTables",
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
"""Path of warm-up requests, as in TensorFlow Serving."""

SERVING_DEFAULT = "serving_default"
RECORD_INPUTS: Mapping[str, str] = {
    "instances": "instance",
    "examples": "example",
    "example_batch": "example_batch",
    "tf_examples": "tf_example",
}
"""Inputs of a scoring signature: name to message type. A request has exactly one of them."""

ASSIGNMENTS = ("raw_assign", "hashtable_assign")
"""Kinds of signatures that change rows."""

SubModel: TypeAlias = Literal["standalone", "entry", "ps", "dense"]

_FORMAT = "monolith.export"
_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Type and shape of one input or output."""

    dtype: str
    """``string``, or the name of a numpy type: float32, int64, int32, bool."""
    shape: tuple[int, ...]
    """Sizes; -1 for a free size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One way to call a model."""

    kind: Literal["score", "lookup", "raw_lookup", "raw_assign", "hashtable_assign", "dense"]
    """``score`` takes one of ``RECORD_INPUTS`` per request; other kinds take all their inputs."""
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTable:
    """One table of the model, in this export or in another sub-model."""

    name: str
    dim: int
    rows: int
    """Rows in this folder; 0 if another sub-model or a checkpoint has them."""
    compressors: tuple[tuple[int, str], ...]
    """Width and kind of each run of columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseProgram:
    """Dense part: an ONNX program with a separate weights file, or a torch package."""

    kind: Literal["onnx", "torch"] = "onnx"
    """``torch``: a ``torch.export`` package, for servers with torch."""
    inputs: Mapping[str, TensorInfo]
    """``layout/<tensor>``, ``dense/<feature>``, or a batch attribute such as ``event_time_s``."""
    outputs: Mapping[str, TensorInfo]
    """Heads and extra outputs."""
    weights: Mapping[str, TensorInfo]
    """Weights in the file, by their names in a checkpoint."""
    quantized: tuple[str, ...] = ()
    """Names of quantized weights."""
    quantize_bits: int | None = None
    bytes: int = 0
    """Size of program and weights."""
    full_bytes: int = 0
    """Size without quantization."""
    max_abs_error: float = 0.0
    """Largest difference from torch on the sample batches, with equal weights."""
    quantization_error: float = 0.0
    """Largest difference of an output due to quantization, on the same batches."""
    weight_error: float = 0.0
    """Largest error of a quantized weight."""
    checked_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTables:
    """Tables of a checkpoint that an export uses instead of copies. Servers convert them while they load."""

    path: str
    """Folder of the snapshot, relative to the folder of the export."""
    generation: int
    """Generation of the snapshot; another one means that the checkpoint was replaced."""
    skip_zero_rows: bool = False
    full_precision: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest:
    """Content of an export's manifest."""

    name: str
    """Name of the model."""
    version: int
    sub_model: SubModel
    shard: tuple[int, int] | None = None
    """``ps``: (index, count). ``entry``: (0, count of its ps sub-models)."""
    tables_version: int | None = None
    """``entry`` of a dense-only export: version of its ps sub-models; None means its own version."""
    global_step: int
    exported_at_s: float
    package_version: str
    signatures: Mapping[str, Signature]
    declaration: Mapping[str, Any] | None = None
    """``monolith.features.Declaration`` in JSON form."""
    heads: tuple[str, ...] = ()
    tables: tuple[ServedTable, ...] = ()
    """Tables sorted by name."""
    has_tables: bool = False
    """Whether this sub-model serves rows."""
    shared_tables: SharedTables | None = None
    """Where the rows are, if not in this folder."""
    dense: DenseProgram | None = None
    """None if another sub-model has the dense part, or the model has none."""
    has_torch_program: bool = False
    files: tuple[FileRecord, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all files without the manifest."""
        return sum(file.bytes for file in self.files)

    @property
    def warmup(self) -> bool:
        """Whether the export has warm-up requests."""
        return any(file.name == WARMUP for file in self.files)


def write_export_manifest(folder: Path, manifest: ExportManifest) -> None:
    """Write and sync the manifest of ``folder``."""
    body = {"format": _FORMAT, "format_version": _VERSION, **dataclasses.asdict(manifest)}
    write_synced(folder / MANIFEST, seal(body))


def read_export_manifest(folder: str | os.PathLike[str]) -> ExportManifest:
    """Return the manifest of the export in ``folder``.

    Raises:
        ArtifactError: The folder has no export.
        ManifestInvalid: The manifest is corrupt.
        VersionConflict: Another release wrote the manifest.
    """
    path = Path(folder) / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(
            f"'{folder}' has no {MANIFEST}, expected an export; create one with monolith export"
        ) from None
    try:
        body = unseal(content)
    except ValueError as error:
        raise ManifestInvalid(f"'{path}' is corrupt: {error}") from error
    yield_gil()
    if body.pop("format", None) != _FORMAT:
        raise ManifestInvalid(f"'{path}' has another format, expected the manifest of an export")
    version = body.pop("format_version", None)
    if version != _VERSION:
        raise VersionConflict(
            f"version of '{path}' is {version}, expected {_VERSION}; export the model again, or use the release that "
            "wrote it"
        )
    try:
        return _decode(body)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ManifestInvalid(f"'{path}' is incomplete: {error}") from error


def _decode(body: dict[str, Any]) -> ExportManifest:
    dense = body.pop("dense")
    shared = body.pop("shared_tables", None)
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
            "shared_tables": None if shared is None else SharedTables(**shared),
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
