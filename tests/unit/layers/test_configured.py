"""Every layer can be described before it is built, and rebuilt from its own description."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
from torch import nn

from monolith import layers
from monolith.core.errors import ConfigError
from monolith.layers.configured import Configured

# Arguments of layers without a default.
REQUIRED: dict[str, dict[str, Any]] = {
    "AGRUCell": {"units": 3},
    "AllInt": {"cmp_dim": 2},
    "AutoInt": {"layer_num": 2},
    "CDot": {"project_dim": 2, "compress_units": [3]},
    "CIN": {"hidden_units": [2]},
    "DCN": {"layer_num": 2},
    "DIEN": {"num_units": 2},
    "DIN": {"hidden_units": [3, 1]},
    "DMR_U2I": {"cmp_dim": 2},
    "Dense": {"units": 4},
    "GradNorm": {"loss_names": ["ctr", "cvr"]},
    "IRazor": {"nas_space": [0, 1, 4]},
    "LHUCTower": {"output_dims": [3, 2]},
    "MLP": {"output_dims": [3, 2]},
    "MMoE": {"num_tasks": 2, "expert_output_dims": [3], "num_experts": 2, "use_bias": False},
    "MixedEmbedOpComb": {
        "slot_names": ["user"],
        "embedding_size_choices_list": [[0, 2]],
        "warmup_steps": 1,
        "pretraining_steps": 1,
    },
    "PLE": {"num_tasks": 2, "level_output_dims": [[2], [2]]},
    "SNR": {"num_out_subnet": 2, "out_subnet_dim": 2},
    "SeNet": {"num_feature": 3, "cmp_dim": 2},
}
NAMES = sorted(
    name
    for name in layers.__all__
    if inspect.isclass(value := getattr(layers, name)) and issubclass(value, nn.Module) and name != "BaseLayer"
)


def required(name: str) -> dict[str, Any]:
    return REQUIRED.get(getattr(layers, name).__name__, {})


@pytest.mark.parametrize("name", NAMES)
def test_params_and_config_lead_to_the_same_layer(name: str) -> None:
    cls = getattr(layers, name)
    params = cls.params().set(**required(name))
    first = params.copy().instantiate()
    assert type(first) is cls
    config = first.get_config()
    assert config.items() >= required(name).items()
    second = cls.from_config(config)
    assert second.get_config() == config
    assert repr(second) == repr(first)
    assert params.instantiate().get_config() == config


def test_typed_options_and_positional_arguments_are_part_of_the_config() -> None:
    tasks = layers.MMoE(2, [3], num_experts=2, use_bias=False)
    config = tasks.get_config()
    assert (config["num_tasks"], config["use_bias"], config["gate_type"]) == (2, False, "softmax")
    assert "use_weight_norm" not in config


def test_the_config_survives_copies_and_pickle() -> None:
    tower = layers.MLP([3, 1], input_dim=2)
    for twin in (copy.deepcopy(tower), pickle.loads(pickle.dumps(tower))):
        assert twin.get_config() == tower.get_config()


def test_a_layer_made_from_a_config_shares_no_module_with_the_first() -> None:
    activation = layers.activations.PReLU()
    first = layers.Dense(2, activation, input_dim=3)
    second = layers.Dense.from_config(first.get_config())
    assert first.activation is activation
    assert second.activation is not activation


def test_a_wrong_name_is_refused_by_params() -> None:
    with pytest.raises(AttributeError, match="did you mean"):
        layers.Dense.params().set(kernel_initialiser="zeros")


class Listed(Configured):
    def __init__(self, *sizes: int, **options: int) -> None:
        super().__init__()


def test_arguments_without_names_have_no_config() -> None:
    assert Listed(a=1).get_config() == {"a": 1}
    with pytest.raises(ConfigError, match=r"Listed was made with \(1, 2\) for \*sizes; give arguments by name"):
        Listed(1, 2).get_config()
