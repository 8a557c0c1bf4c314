"""Runs a dense part that is a ``torch.export`` package: what ONNX cannot express. The only way serving meets torch.

A package is torch's own file, with the names of inputs and outputs beside it. It is loaded with torch's reader, so load
only packages of people you trust. torch is imported when the first one is opened.
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
"""File in the package: ``inputs`` and ``outputs``, the names in the program's order."""
WEIGHT_PREFIX = "model."
"""What stands before the names of the model's weights in the package."""


class TorchSession:
    """One dense program with one set of weights. Immutable and thread safe: ``with_weights`` makes another.

    Args:
        path: The package.
        program: What the manifest says of it.
        threads: Threads that one call may use, where torch was not in use before; torch has one number for all.

    Raises:
        ConfigError: torch is not installed.
        ManifestInvalid: The file is no program that it can run.
    """

    def __init__(self, path: str | os.PathLike[str], program: DenseProgram, *, threads: int = 1) -> None:
        self.program = program
        self._path = Path(path)
        self._torch = _torch(self._path, threads)
        self._changed: dict[str, Any] = {}
        """Weights that are not those of the file, by the names they have there."""
        try:
            names: dict[str, Any] = {NAMES_FILE: ""}
            self._loaded = self._torch.export.load(self._path, extra_files=names)
            order = json.loads(names[NAMES_FILE])
            self._inputs, self._outputs = list(order["inputs"]), list(order["outputs"])
            self._module = self._loaded.module()
        except Exception as error:  # torch and zipfile have a dozen classes for it
            raise ManifestInvalid(f"'{self._path}' is no program that can be run: {error}") from error

    def run(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Compute all outputs, and return some of them."""
        torch = self._torch
        with torch.inference_mode():
            given = [torch.from_numpy(_writable(inputs[name])) for name in self._inputs]
            found = dict(zip(self._outputs, self._module(given), strict=True))
            return {name: found[name].numpy() for name in outputs}

    def with_weights(self, weights: Mapping[str, NDArray[Any]]) -> TorchSession:
        """Return the same program with other weights, named as in a checkpoint.

        Weights that the program does not use are ignored, and all others stay as they are.

        Raises:
            DimensionMismatch: A weight has another shape.
        """
        changed = dict(self._changed)
        for name, value in weights.items():
            expected = self.program.weights.get(name)
            if expected is None:
                continue
            if tuple(value.shape) != expected.shape or str(value.dtype) != expected.dtype:
                raise DimensionMismatch(
                    f"weight {name!r} has shape {value.shape} and type {value.dtype}, the served program has "
                    f"{expected.shape} and {expected.dtype}; export the changed model as a new version"
                )
            changed[WEIGHT_PREFIX + name] = self._torch.from_numpy(_writable(value))
        made = copy.copy(self)
        made._changed = changed
        made._module = self._loaded.module()
        made._module.load_state_dict(changed, strict=False, assign=True)  # in place it would change this one too
        return made


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy where torch would warn that it could be written to."""
    return np.require(array, requirements=["C", "W"])


def _torch(path: Path, threads: int) -> Any:
    is_first = "torch" not in sys.modules
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"'{path}' is a torch.export package, and torch is not here ({error}): pip install 'monolith[train]', or "
            "export the model with --program onnx"
        ) from error
    if is_first:
        torch.set_num_threads(threads)
    return torch
