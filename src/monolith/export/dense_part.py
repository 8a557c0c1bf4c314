"""Write the dense part of a model: trace, convert, optionally quantize, and compare with torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export.passes import move_to_device_pass

from monolith.artifacts.export_manifest import DenseProgram, TensorInfo
from monolith.artifacts.program_session import ProgramSession
from monolith.artifacts.torch_session import NAMES_FILE, WEIGHT_PREFIX, TorchSession
from monolith.core.durable_files import write_synced
from monolith.core.errors import ConfigError
from monolith.export.onnx_program import OnnxProgram, convert
from monolith.export.options import ExportOptions
from monolith.export.sample_inputs import SAMPLE_SIZES, sample_inputs
from monolith.export.tracing import TracedModel, input_names, trace
from monolith.features import Model

__all__ = ["DensePart"]

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    inputs: Arrays
    outputs: Arrays
    """Outputs of torch."""


class DensePart:
    """Dense part of a model, with the weights at construction. Used by one thread.

    Raises:
        ConfigError: ``forward`` cannot be exported.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.name = type(model).__name__
        traced = TracedModel(model)
        names = input_names(model.declaration)
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                device = next((each.device for each in model.parameters()), torch.device("cpu"))
                samples = sample_inputs(model.declaration)
                tensors = [[torch.from_numpy(each[name]).to(device) for name in names] for each in samples]
                self.torch_program = trace(traced, tensors[0])
                results = [traced(each) for each in tensors]
        finally:
            model.train(was_training)
        self.heads = tuple(traced.names.heads)
        outputs = traced.names.outputs
        self._samples = [
            _Sample(inputs, {name: _array(name, value) for name, value in zip(outputs, values, strict=True)})
            for inputs, values in zip(samples, results, strict=True)
        ]
        self._inputs = names
        self._weights = list(model.state_dict())
        self.outputs = _infos([sample.outputs for sample in self._samples])

    @cached_property
    def _onnx(self) -> OnnxProgram:
        return convert(self.torch_program, self._inputs, list(self.outputs), self._weights)

    def write(self, program: Path, weights: Path, options: ExportOptions) -> DenseProgram:
        """Write program and weights, and compare the outputs with torch.

        Raises:
            ConfigError: ONNX cannot express the program, or is not installed; or the outputs differ from torch by more
                than the tolerance.
        """
        described = self._describe(self._onnx)
        self._onnx.write(program, weights)
        full_bytes = _bytes(program, weights)
        exact = self._outputs(program, described)
        error = self._check(exact, options)
        described = replace(
            described,
            bytes=full_bytes,
            full_bytes=full_bytes,
            max_abs_error=error,
            checked_rows=sum(SAMPLE_SIZES),
        )
        if options.quantize_bits is None:
            return described
        return self._write_quantized(program, weights, options.quantize_bits, described, exact)

    def _write_quantized(
        self, program: Path, weights: Path, bits: int, described: DenseProgram, exact: Sequence[Arrays]
    ) -> DenseProgram:
        smaller, furthest = self._onnx.with_bits(bits)
        smaller.write(program, weights)
        described = replace(described, quantize_bits=bits, quantized=smaller.quantized, weight_error=furthest)
        return replace(
            described,
            bytes=_bytes(program, weights),
            quantization_error=_difference(exact, self._outputs(program, described)),
        )

    def write_single(self, path: Path, options: ExportOptions) -> DenseProgram:
        """Write the program as one ONNX file that includes its weights; raises like ``write``."""
        described = self.write(path.with_suffix(".program"), path.with_suffix(".weights"), options)
        bits = options.quantize_bits
        write_synced(path, (self._onnx if bits is None else self._onnx.with_bits(bits)[0]).to_bytes())
        for suffix in (".program", ".weights"):
            path.with_suffix(suffix).unlink()
        return replace(described, bytes=path.stat().st_size)

    def write_torch(self, path: Path, options: ExportOptions) -> DenseProgram:
        """Write the ``torch.export`` package, and compare the outputs with the model.

        Raises:
            ConfigError: The outputs differ by more than the tolerance.
        """
        names = json.dumps({"inputs": self._inputs, "outputs": list(self.outputs)})
        torch.export.save(move_to_device_pass(self.torch_program, "cpu"), path, extra_files={NAMES_FILE: names})
        with path.open("rb") as file:
            os.fsync(file.fileno())
        names_of = {WEIGHT_PREFIX + name: name for name in self._weights}
        stored = {names_of[name]: value for name, value in self.torch_program.state_dict.items() if name in names_of}
        described = DenseProgram(
            kind="torch",
            inputs=_infos([sample.inputs for sample in self._samples]),
            outputs=self.outputs,
            weights={
                name: TensorInfo(dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape))
                for name, value in stored.items()
            },
            bytes=_bytes(path),
            full_bytes=_bytes(path),
            checked_rows=sum(SAMPLE_SIZES),
        )
        session = TorchSession(path, described)
        found = [session.run(sample.inputs, list(self.outputs)) for sample in self._samples]
        return replace(described, max_abs_error=self._check(found, options))

    def _check(self, found: Sequence[Arrays], options: ExportOptions) -> float:
        error = _difference([sample.outputs for sample in self._samples], found)
        if not error <= options.tolerance:
            raise ConfigError(
                f"the exported program of {self.name} differs from torch by {error:.3g} on sample batches, expected at "
                f"most the tolerance {options.tolerance:g}; check the model, or raise the tolerance"
            )
        return error

    def _describe(self, onnx: OnnxProgram) -> DenseProgram:
        return DenseProgram(
            inputs=onnx.inputs,
            outputs=self.outputs,
            weights={
                name: TensorInfo(dtype=str(array.dtype), shape=tuple(array.shape))
                for name, array in onnx.weights.items()
            },
        )

    def _outputs(self, program: Path, described: DenseProgram) -> list[Arrays]:
        session = ProgramSession(program, described)
        return [session.run(sample.inputs, list(described.outputs)) for sample in self._samples]


def _array(name: str, value: torch.Tensor) -> NDArray[Any]:
    """Return an output as an array."""
    try:
        array: NDArray[Any] = value.detach().cpu().numpy()
    except TypeError as error:  # a type such as bfloat16
        raise ConfigError(
            f"output {name!r} has type {str(value.dtype).removeprefix('torch.')}, expected one of NumPy; convert it in "
            "forward, such as by float()"
        ) from error
    return array


def _infos(samples: Sequence[Arrays]) -> dict[str, TensorInfo]:
    """Return types and shapes; a size that differs between samples is the batch size, -1."""
    found = {}
    for name, first in samples[0].items():
        sizes = zip(*(each[name].shape for each in samples), strict=True)
        shape = tuple(several[0] if len(set(several)) == 1 else -1 for several in sizes)
        found[name] = TensorInfo(dtype=str(first.dtype), shape=shape)
    return found


def _difference(wanted: Sequence[Arrays], found: Sequence[Arrays]) -> float:
    """Return the largest difference of an output: absolute up to 1, relative above."""
    largest = 0.0
    for one, other in zip(wanted, found, strict=True):
        for name, value in one.items():
            if value.shape != other[name].shape:
                raise ConfigError(
                    f"shape of exported output {name!r} is {other[name].shape}, expected {value.shape} as in torch"
                )
            if not value.size:
                continue
            with np.errstate(invalid="ignore"):
                gap = np.abs(value.astype(np.float64) - other[name]) / np.maximum(1, np.abs(value))
            both = np.isnan(value) & np.isnan(other[name]) | (value == other[name])
            gap = np.where(both, 0, np.where(np.isnan(gap), np.inf, gap))
            largest = max(largest, float(gap.max()))
    return largest


def _bytes(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths)
