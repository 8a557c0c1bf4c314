from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.onnx._internal._lazy_import import onnxscript_apis

from monolith.export.onnx_program import convert, read_operators_once


class Powers(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x**2, x**3, x.abs() ** y


def test_squares_are_products_and_other_powers_stay() -> None:
    import onnx
    import onnxruntime

    x, y = torch.tensor([[1.5, -2.0], [0.1, 1e-20]]), torch.tensor([[2.0, 2.0], [0.5, 1.0]])
    made = convert(torch.export.export(Powers(), (x, y)), ["x", "y"], ["square", "cube", "power"], [])
    content = made.to_bytes()
    found = [node.op_type for node in onnx.load_from_string(content).graph.node]
    assert (found.count("Mul"), found.count("Pow")) == (1, 2)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    said = session.run(["square", "cube", "power"], {"x": x.numpy(), "y": y.numpy()})
    for ours, theirs in zip(said, Powers()(x, y), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(said[0], (x * x).numpy())


def test_torch_reads_the_operators_of_onnx_once_per_process() -> None:
    read_operators_once()
    operators = onnxscript_apis.get_torchlib_ops()
    read_operators_once()
    assert len(operators) > 100
    assert onnxscript_apis.get_torchlib_ops() is operators
