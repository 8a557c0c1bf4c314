from __future__ import annotations

import math

import pytest
import torch

from monolith.core.errors import ConfigError
from monolith.layers import activations


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exponential", [math.exp(-2), 1.0, math.exp(1.5)]),
        ("gelu", [-2 * 0.5 * math.erfc(2 / math.sqrt(2)), 0.0, 1.5 * 0.5 * (1 + math.erf(1.5 / math.sqrt(2)))]),
        ("hard_sigmoid", [0.1, 0.5, 0.8]),
        ("hardsigmoid", [0.1, 0.5, 0.8]),
        ("linear", [-2.0, 0.0, 1.5]),
        ("selu", [1.05070098 * 1.67326324 * (math.exp(-2) - 1), 0.0, 1.05070098 * 1.5]),
        ("sigmoid", [1 / (1 + math.exp(2)), 0.5, 1 / (1 + math.exp(-1.5))]),
        ("sigmoid2", [2 / (1 + math.exp(2)), 1.0, 2 / (1 + math.exp(-1.5))]),
        ("softplus", [math.log1p(math.exp(-2)), math.log(2), math.log1p(math.exp(1.5))]),
        ("softsign", [-2 / 3, 0.0, 0.6]),
        ("swish", [-2 / (1 + math.exp(2)), 0.0, 1.5 / (1 + math.exp(-1.5))]),
        ("tanh", [math.tanh(-2), 0.0, math.tanh(1.5)]),
        ("leakyrelu", [-0.6, 0.0, 1.5]),
        ("relu", [0.0, 0.0, 1.5]),
        ("elu", [math.exp(-2) - 1, 0.0, 1.5]),
        ("softmax", [math.exp(x) / (math.exp(-2) + 1 + math.exp(1.5)) for x in (-2, 0, 1.5)]),
        ("thresholdedrelu", [0.0, 0.0, 1.5]),
        ("prelu", [0.0, 0.0, 1.5]),
    ],
)
def test_a_name_gives_its_formula_in_any_case(name: str, expected: list[float]) -> None:
    x = torch.tensor([[-2.0, 0.0, 1.5]])
    for spelling in (name, name.upper()):
        activation = activations.get(spelling)
        assert activation is not None
        torch.testing.assert_close(activation(x), torch.tensor([expected]))


def test_prelu_has_a_slope_per_element_and_none_for_the_batch() -> None:
    prelu = activations.PReLU()
    prelu(torch.zeros(5, 2, 3))
    assert prelu.alpha.shape == (2, 3)


def test_prelu_shares_axes_so_that_lengths_may_vary() -> None:
    prelu = activations.PReLU(shared_axes=[1])
    prelu(torch.zeros(5, 2, 3))
    assert prelu.alpha.shape == (1, 3)
    assert prelu(torch.zeros(5, 7, 3)).shape == (5, 7, 3)


def test_get_takes_all_forms() -> None:
    assert activations.get(None) is None
    assert isinstance(activations.get(activations.Tanh), activations.Tanh)
    instance = activations.LeakyReLU(0.1)
    assert activations.get(instance) is instance
    assert isinstance(activations.get(torch.nn.Tanh), torch.nn.Tanh)
    wrapped = activations.get(torch.cos)
    assert wrapped is not None
    assert wrapped(torch.zeros(1)).item() == 1.0


@pytest.mark.parametrize("name", sorted(activations._BY_NAME))
def test_serialize_and_back(name: str) -> None:
    text = activations.serialize(name)
    again = activations.deserialize(text)
    assert type(again) is type(activations.get(name))
    assert activations.serialize(again) == text


def test_settings_survive_serialize() -> None:
    again = activations.deserialize(activations.serialize(activations.ReLU(6.0)))
    assert isinstance(again, activations.ReLU)
    assert again.max_value == 6.0
    assert activations.serialize(None) is None
    assert activations.deserialize(None) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rellu", "'rellu'; did you mean 'relu'"),
        ("zzz", "known names: exponential"),
        ({"name": "elu", "beta": 1}, "'elu' has no setting 'beta'; known: alpha"),
        ({"alpha": 1}, "give a dict with a 'name'"),
        (3, "activation is 3; give a name"),
    ],
)
def test_unknown_activations_are_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        activations.get(given)  # type: ignore[arg-type]


def test_a_function_cannot_be_serialized() -> None:
    with pytest.raises(ConfigError, match="only named activations can"):
        activations.serialize(torch.cos)


def test_broken_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        activations.deserialize('{"name": ')
