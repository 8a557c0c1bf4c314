"""Runs the dense part of an export. The only module that imports onnxruntime; torch is not needed."""

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
    """One dense program with one set of weights. Immutable and thread safe: ``with_weights`` makes another.

    Args:
        path: The ONNX file; its weights lie beside it.
        program: What the manifest says of it.
        threads: Threads that one call may use.

    Raises:
        ConfigError: onnxruntime is not installed.
        ManifestInvalid: The file is no program that it can run.
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
        """Stored form of the weights that are not those of the file, by the names they have there."""
        self._session = self._open()

    def _open(self) -> Any:
        runtime = _onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        # Weights of 8 bits become floats once, when the session is made, not in every call.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # A thread that waits for the next call must not burn a core meanwhile.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._changed:
            values = [runtime.OrtValue.ortvalue_from_numpy(each) for each in self._changed.values()]
            options.add_external_initializers(list(self._changed), values)
        try:
            return runtime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a dozen classes of its own
            raise ManifestInvalid(f"'{self._path}' is no program that can be run: {error}") from error

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Compute some of the outputs; inputs that they do not need are ignored."""
        given = {name: inputs[name] for name in self.program.inputs}
        return dict(zip(outputs, self._session.run(list(outputs), given), strict=True))

    def with_weights(self, weights: Mapping[str, NDArray[Any]]) -> ProgramSession:
        """Return the same program with other weights, named as in a checkpoint.

        Weights that the program does not use are ignored, and all others stay as they are.

        Raises:
            DimensionMismatch: A weight has another shape.
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
                f"weight {name!r} has shape {value.shape} and type {value.dtype}, the served program has "
                f"{expected.shape} and {expected.dtype}; export the changed model as a new version"
            )
        if name in self.program.quantized and self.program.quantize_bits is not None:
            return quantized(name, value, self.program.quantize_bits)
        return {name: value}


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"serving the dense part needs onnxruntime ({error}): pip install 'monolith[serve]'"
        ) from error
    return onnxruntime
