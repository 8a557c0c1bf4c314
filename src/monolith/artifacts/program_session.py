"""Run the dense part of an export with onnxruntime. Only this module imports onnxruntime; it needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.artifacts.export_manifest import DenseProgram
from monolith.artifacts.export_tensors import quantized
from monolith.core.errors import ConfigError, DimensionMismatch, ManifestInvalid

__all__ = ["ProgramSession"]

_ERRORS_ONLY = 3


class ProgramSession:
    """A dense program with one set of weights. Immutable and thread safe; ``with_weights`` returns a new session.

    Args:
        path: ONNX file; the weights file lies in the same folder.
        program: Description in the manifest.
        threads: Threads per call.

    Raises:
        ConfigError: onnxruntime is not installed.
        ManifestInvalid: The file is invalid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        program: DenseProgram,
        *,
        threads: int = 1,
        _changed: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.program = program
        self._path = Path(path)
        self._threads = threads
        self._changed = dict(_changed or {})
        """Stored form of the replaced weights, by their names in the file."""
        self._session = self._open()

    def _open(self) -> Any:
        runtime = _onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        # Decode 8-bit weights once, at session creation.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # An idle thread must not spin.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._changed:
            values = [runtime.OrtValue.ortvalue_from_numpy(each) for each in self._changed.values()]
            options.add_external_initializers(list(self._changed), values)
        try:
            return runtime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises many classes
            raise ManifestInvalid(f"'{self._path}' is invalid, expected an ONNX program: {error}") from error

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Compute the named outputs; unused inputs are ignored."""
        given = {name: inputs[name] for name in self.program.inputs}
        return dict(zip(outputs, self._session.run(list(outputs), given), strict=True))

    @property
    def path(self) -> Path:
        """ONNX file."""
        return self._path

    @property
    def replaced_weights(self) -> Mapping[str, NDArray[Any]]:
        """Stored form of the weights that replace those of the file, by their names in it."""
        return self._changed

    def with_weights(self, weights: Mapping[str, NDArray[Any]]) -> ProgramSession:
        """Return a session with replaced weights, named as in a checkpoint.

        Unknown weights are ignored. Weights without a replacement stay.

        Raises:
            DimensionMismatch: A weight has another shape or type.
        """
        changed = dict(self._changed)
        for name, value in weights.items():
            if name in self.program.weights:
                changed |= self._stored(name, np.ascontiguousarray(value))
        return ProgramSession(self._path, self.program, threads=self._threads, _changed=changed)

    def _stored(self, name: str, value: NDArray[Any]) -> dict[str, NDArray[Any]]:
        expected = self.program.weights[name]
        if tuple(value.shape) != expected.shape or str(value.dtype) != expected.dtype:
            raise DimensionMismatch(
                f"weight {name!r} has shape {value.shape} and type {value.dtype}, expected {expected.shape} and "
                f"{expected.dtype} as in the served program; export the changed model as a new version"
            )
        if name in self.program.quantized and self.program.quantize_bits is not None:
            return quantized(name, value, self.program.quantize_bits)
        return {name: value}


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"onnxruntime is missing ({error}), expected for the dense part: pip install 'monolith[serve]'"
        ) from error
    return onnxruntime
