"""Run a dense part that is a ``torch.export`` package, for operators outside ONNX.

torch's reader loads the package, so load only packages that you trust. This is the only module of serving that imports
torch, with the first package.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.artifacts.export_manifest import DenseProgram
from monolith.core.errors import ConfigError, DimensionMismatch, ManifestInvalid

__all__ = ["NAMES_FILE", "WEIGHT_PREFIX", "TorchSession"]

NAMES_FILE = "monolith_names.json"
"""File in the package: names of ``inputs`` and ``outputs`` in the program's order."""
WEIGHT_PREFIX = "model."
"""Prefix of the model's weights in the package."""


class TorchSession:
    """A dense program with one set of weights. Immutable and thread safe; ``with_weights`` returns a new session.

    Args:
        path: The package.
        program: Description in the manifest.
        threads: Threads per call. torch has one global number, so only the first import of torch sets it.

    Raises:
        ConfigError: torch is not installed.
        ManifestInvalid: The file is invalid.
    """

    def __init__(self, path: str | os.PathLike[str], program: DenseProgram, *, threads: int = 1) -> None:
        self.program = program
        self._path = Path(path)
        self._torch = _torch(self._path, threads)
        self._changed: dict[str, Any] = {}
        """Replaced weights by their names in the file."""
        try:
            names: dict[str, Any] = {NAMES_FILE: ""}
            self._loaded = self._torch.export.load(self._path, extra_files=names)
            order = json.loads(names[NAMES_FILE])
            self._inputs, self._outputs = list(order["inputs"]), list(order["outputs"])
            self._module = self._loaded.module()
        except Exception as error:  # torch and zipfile raise many classes
            raise ManifestInvalid(f"'{self._path}' is invalid, expected a torch.export package: {error}") from error

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Compute all outputs; return the named ones."""
        torch = self._torch
        with torch.inference_mode():
            given = [torch.from_numpy(_writable(inputs[name])) for name in self._inputs]
            found = dict(zip(self._outputs, self._module(given), strict=True))
            return {name: found[name].numpy() for name in outputs}

    def with_weights(self, weights: Mapping[str, NDArray[Any]]) -> TorchSession:
        """Return a session with replaced weights, named as in a checkpoint.

        Unknown weights are ignored. Weights without a replacement stay.

        Raises:
            DimensionMismatch: A weight has another shape or type.
        """
        changed = dict(self._changed)
        for name, value in weights.items():
            expected = self.program.weights.get(name)
            if expected is None:
                continue
            if tuple(value.shape) != expected.shape or str(value.dtype) != expected.dtype:
                raise DimensionMismatch(
                    f"weight {name!r} has shape {value.shape} and type {value.dtype}, expected {expected.shape} and "
                    f"{expected.dtype} as in the served program; export the changed model as a new version"
                )
            changed[WEIGHT_PREFIX + name] = self._torch.from_numpy(_writable(value))
        made = copy.copy(self)
        made._changed = changed
        made._module = self._loaded.module()
        made._module.load_state_dict(
            changed, strict=False, assign=True
        )  # without assign, this session would change too
        return made


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or a copy if it is read-only: torch warns about read-only arrays."""
    return np.require(array, requirements=["C", "W"])


def _torch(path: Path, threads: int) -> Any:
    is_first = "torch" not in sys.modules
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"torch is missing ({error}), expected for the torch.export package '{path}': pip install "
            "'monolith[train]', or export the model with --program onnx"
        ) from error
    if is_first:
        torch.set_num_threads(threads)
    return torch
