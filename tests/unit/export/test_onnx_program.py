from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.onnx._internal._lazy_import import onnxscript_apis

from monolith.core.errors import ConfigError
from monolith.export.onnx_program import OnnxProgram, convert, read_operators_once


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


class Traced(torch.nn.Module):
    """Has the weights of its model under ``model``, as the dense part of an export has."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


def converted(model: torch.nn.Module, outputs: list[str], rows: int = 3) -> tuple[OnnxProgram, Tensor]:
    """Return the program of a model with the input ``x``, and the input."""
    torch.manual_seed(1)
    x = torch.randn(rows, 4)
    sizes = ({0: torch.export.Dim("batch", min=1)},)
    program = torch.export.export(Traced(model.eval()), (x,), dynamic_shapes=sizes)
    return convert(program, ["x"], outputs, list(model.state_dict())), x


def results(made: OnnxProgram, outputs: list[str], x: Tensor) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(made.to_bytes(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(outputs, {"x": x.numpy()})
    return found


class Normalized(torch.nn.Module):
    """Names weights like the values that torch computes: ``mean``, ``mul``, ``val_0``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.arange(4.0))
        self.mul = torch.nn.Parameter(torch.full((4,), 3.0))
        self.val_0 = torch.nn.Parameter(torch.full((4,), 0.5))
        self.top = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        apart = (x - self.mean - x.mean(dim=1, keepdim=True)) * self.mul + self.val_0
        return torch.sigmoid(self.top(apart * 2)), apart * 5


def test_weights_and_outputs_may_have_the_names_of_values_inside() -> None:
    model, outputs = Normalized(), ["linear", "mul_1"]
    made, x = converted(model, outputs)
    assert made.weights.keys() == model.state_dict().keys()
    np.testing.assert_array_equal(made.weights["mean"], np.arange(4.0))
    with torch.no_grad():
        for ours, theirs in zip(results(made, outputs, x), model(x), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


class Echo(torch.nn.Module):
    """Returns its input, one tensor twice, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.top = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        score = self.top(x)
        return score, x, score, x, self.top.weight


def test_an_output_may_be_an_input_or_another_output_or_a_weight() -> None:
    model, outputs = Echo(), ["score", "vector", "again", "copy", "weights"]
    made, x = converted(model, outputs)
    assert list(made.outputs) == outputs
    assert list(made.inputs) == ["x"]
    with torch.no_grad():
        for ours, theirs in zip(results(made, outputs, x), model(x), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_an_output_with_the_name_of_an_input_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"output is 'x'.*an input of the dense part; rename"):
        converted(torch.nn.Linear(4, 1), ["x"])


class Branches(torch.nn.Module):
    """Reads its weights inside of a branch only."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.top = torch.nn.Linear(4, 512), torch.nn.Linear(512, 1)

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(
            x.sum() > 0, lambda rows: self.top(self.low(rows)), lambda rows: self.top(self.low(rows)) * 2, (x,)
        )
        return chosen


@pytest.mark.parametrize(("bits", "tolerance"), [(None, 1e-5), (16, 1e-2), (8, 5e-2)])
def test_branches_read_the_weights(bits: int | None, tolerance: float) -> None:
    model = Branches()
    made, x = converted(model, ["score"])
    if bits is not None:
        made, _ = made.with_bits(bits)
        assert "low.weight" in made.quantized
    for each in (x.abs(), -x.abs()):
        with torch.no_grad():
            np.testing.assert_allclose(results(made, ["score"], each)[0], model(each).numpy(), atol=tolerance)
