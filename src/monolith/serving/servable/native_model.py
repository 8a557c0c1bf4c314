"""``NativeModel``: the form of a servable that the native request path scores, without Python.

A native model shares the tables of its servable, and has a session of ONNX Runtime with the same weights. The servable
holds ``exclusive`` while it changes rows or weights, and calls ``show`` before it releases the lock; so a native batch
reads one cut. ``make_native_model`` raises ``NotNative`` for a model that only Python can score.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.artifacts.export_manifest import RECORD_INPUTS, DenseProgram, ExportManifest, TensorInfo
from monolith.artifacts.program_session import ProgramSession
from monolith.core.errors import ConfigError
from monolith.data import BatchParser, Schema
from monolith.embedding import MultiTable
from monolith.features import Declaration

__all__ = ["NativeModel", "NotNative", "find_onnx_library", "make_native_model"]

_ONNX_TYPES = {
    np.dtype(np.float32): 1,
    np.dtype(np.uint8): 2,
    np.dtype(np.int8): 3,
    np.dtype(np.int32): 6,
    np.dtype(np.int64): 7,
    np.dtype(np.bool_): 9,
    np.dtype(np.float16): 10,
    np.dtype(np.float64): 11,
}
_LAYOUT, _DENSE = "layout/", "dense/"
_FIELDS = {
    "label": "float32",
    "label_mask": "bool",
    "weight": "float32",
    "sample_rate": "float32",
    "event_time_s": "int64",
    "uid": "int64",
}


class NotNative(ConfigError):
    """The native request path cannot score a model."""


def find_onnx_library() -> str:
    """Return the path of ONNX Runtime's library; importing the package is not necessary.

    Raises:
        NotNative: The package is not installed, or has no library.
    """
    found = importlib.util.find_spec("onnxruntime")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    libraries = sorted(path for folder in folders for path in Path(folder, "capi").glob("libonnxruntime.so*"))
    if not libraries:
        raise NotNative("onnxruntime has no shared library, expected one in its wheel: pip install 'monolith[serve]'")
    return str(libraries[0])


class NativeModel:
    """Native side of one servable.

    Args:
        served: The model of the native request path.
        tables: Names of the tables, in the order of the layouts.
        outputs: Names of the outputs of the program.
        library: Path of ONNX Runtime's library.

    Attributes:
        session: Session with the weights to show; None before the first ``show``. Change it inside ``exclusive``.
    """

    def __init__(
        self, served: _native.ServedModel, tables: Sequence[str], outputs: Sequence[str], library: str
    ) -> None:
        self.served = served
        self.session: _native.OnnxSession | None = None
        self._outputs = outputs
        self._tables = tables
        self._library = library

    def open_session(self, program: ProgramSession) -> _native.OnnxSession:
        """Return a session with the weights of a program. Takes as long as loading the program.

        Raises:
            ConfigError: ONNX Runtime refuses the program or a weight.
        """
        weights = [(name, *_onnx_tensor(name, array)) for name, array in program.replaced_weights.items()]
        return _native.OnnxSession(self._library, str(program.path), weights)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep native batches out."""
        self.served.lock()
        try:
            yield
        finally:
            self.served.unlock()

    def show(self, tables: MultiTable, is_whole: bool) -> None:
        """Show rows and the weights of ``session``; the caller holds ``exclusive``.

        Args:
            tables: Tables of the servable.
            is_whole: Whether the rows are those of one cut.
        """
        assert self.session is not None  # the caller has set it
        self.served.show([tables[name]._native for name in self._tables], self.session, is_whole)

    def score(self, records: Sequence[bytes], input_name: str) -> dict[str, NDArray[np.float32]]:
        """Return the flat values of all outputs of the program, by name."""
        places = list(range(len(self._outputs)))
        _, values = self.served.score(_native.Records(records), input_name, places)
        return dict(zip(self._outputs, values, strict=True))


def make_native_model(
    manifest: ExportManifest, declaration: Declaration, library: str, named: tuple[str, int]
) -> NativeModel:
    """Return the native model of an export; it shows no rows yet.

    Args:
        manifest: Manifest of the export.
        declaration: Features and layouts of the model.
        library: Path of ONNX Runtime's library.
        named: Name and version in responses.

    Raises:
        NotNative: The export has a part that only Python can score.
    """
    program, schema = manifest.dense, declaration.schema()
    if program is None or manifest.sub_model != "standalone":
        raise NotNative(f"sub-model is {manifest.sub_model!r}, expected a whole model")
    if program.kind != "onnx":
        raise NotNative(f"dense program is of kind {program.kind!r}, expected 'onnx'")
    outputs = [(name, _tail(name, info)) for name, info in program.outputs.items()]
    served = _native.ServedModel(
        *named,
        declaration.kernel(),
        [BatchParser(kind, schema).natives for kind in RECORD_INPUTS.values()],  # type: ignore[arg-type]
        _id_places(declaration, schema),
        [tensor.width for tensor in declaration.tensors()],
        _inputs(program, declaration, schema),
        outputs,
        _signatures(manifest, [name for name, _ in outputs]),
    )
    return NativeModel(served, declaration.tables, [name for name, _ in outputs], library)


def _id_places(declaration: Declaration, schema: Schema) -> list[int]:
    places = {each.name: place for place, each in enumerate(schema.sparse_features)}
    return [places[declaration.features[name].input] for name in declaration.feature_names]


def _inputs(
    program: DenseProgram, declaration: Declaration, schema: Schema
) -> list[tuple[str, str, int, Sequence[int]]]:
    layouts = {f"{_LAYOUT}{each.name}": (place, each.shape) for place, each in enumerate(declaration.tensors())}
    dense = {f"{_DENSE}{each.name}": (place, each) for place, each in enumerate(schema.dense_features)}
    inputs: list[tuple[str, str, int, Sequence[int]]] = []
    for name, info in program.inputs.items():
        if name in layouts:
            place, shape = layouts[name]
            inputs.append((name, "layout", place, shape))
            dtype = "float32"
        elif name in dense:
            place, feature = dense[name]
            inputs.append((name, "dense", place, (feature.width,)))
            dtype = feature.dtype
        elif name in _FIELDS:
            inputs.append((name, name, 0, (schema.labels,) if name.startswith("label") else ()))
            dtype = _FIELDS[name]
        else:
            raise NotNative(f"input of the dense program is {name!r}, expected a layout, a feature or a field")
        if info.dtype != dtype:
            raise NotNative(f"type of input {name!r} is {info.dtype}, expected {dtype}")
    return inputs


def _tail(name: str, info: TensorInfo) -> tuple[int, ...]:
    if info.dtype != "float32" or not info.shape or any(size < 0 for size in info.shape[1:]):
        raise NotNative(f"output {name!r} is {info.dtype} of shape {list(info.shape)}, expected float32 of known sizes")
    return tuple(info.shape[1:])


def _signatures(manifest: ExportManifest, outputs: Sequence[str]) -> dict[str, tuple[Sequence[int], str]]:
    signatures: dict[str, tuple[Sequence[int], str]] = {}
    for name, each in manifest.signatures.items():
        if each.kind == "score" and all(output in outputs for output in each.outputs):
            signatures[name] = [outputs.index(output) for output in each.outputs], _only_input(each.inputs)
    return signatures


def _only_input(declared: Mapping[str, Any]) -> str:
    records = [name for name in declared if name in RECORD_INPUTS]
    return records[0] if len(records) == 1 else ""


def _onnx_tensor(name: str, array: NDArray[Any]) -> tuple[int, Sequence[int], bytes]:
    kind = _ONNX_TYPES.get(array.dtype)
    if kind is None:
        raise NotNative(f"type of weight {name!r} is {array.dtype}, expected a type of ONNX")
    return kind, array.shape, np.ascontiguousarray(array).tobytes()
