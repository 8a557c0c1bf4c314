"""The dense part of a training, weights and optimizer states, as bytes for another worker."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from monolith.training.checkpoints import optimizer_states
from monolith.training.checkpoints.dense_weights import Aliases
from monolith.training.checkpoints.tensor_files import pack_tensors, unpack_tensors

__all__ = ["load_dense", "pack_dense"]

_WEIGHT = "weight/"


def pack_dense(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> bytes:
    """Return the weights, running statistics and optimizer states."""
    weights = {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}
    tensors = {
        f"{_WEIGHT}{name}": each.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, each in weights.items()
    }
    states = {
        label: optimizer_states.encode(label, optimizer, model, tensors) for label, optimizer in optimizers.items()
    }
    return json.dumps(states).encode() + b"\n" + pack_tensors(tensors)


def load_dense(packed: bytes, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Load the bytes that ``pack_dense`` returned into the same model."""
    header, _, rest = packed.partition(b"\n")
    tensors = unpack_tensors(rest)
    weights = {name.removeprefix(_WEIGHT): each for name, each in tensors.items() if name.startswith(_WEIGHT)}
    model.load_state_dict(weights, strict=False)  # only tensors are sent
    same = Aliases(None, (), ())
    for label, state in json.loads(header).items():
        optimizer_states.decode(label, optimizers[label], model, state, tensors, same)
