"""Imports that the first export of a process needs, for interpreters that are forked."""

from __future__ import annotations

import contextlib
import importlib

from monolith.export.onnx_program import read_operators_once

__all__: list[str] = []

for _name in (
    "monolith.export.exporter",
    "networkx",
    "sympy.tensor.tensor",
    "torch._export.non_strict_utils",
    "torch._export.serde.serialize",
    "torch._inductor.remote_cache",
    "torch.onnx._internal.exporter._core",
):
    with contextlib.suppress(ImportError):  # private modules of torch: their names may change
        importlib.import_module(_name)
read_operators_once()
importlib.import_module("torch.onnx._internal._lazy_import").onnxscript_apis.get_torchlib_ops()
