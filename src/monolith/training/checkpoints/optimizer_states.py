"""States of dense optimizers by the names of the weights, so that they find their weights in a changed model too.

Torch itself numbers the weights in order; a layer put in front would then get another one's momentum.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from monolith.training.checkpoints.dense_weights import Aliases
from monolith.training.checkpoints.growth import Growth
from monolith.training.checkpoints.trees import decode_tree, encode_tree

__all__ = ["decode", "encode"]

logger = logging.getLogger(__name__)


def encode(
    label: str, optimizer: torch.optim.Optimizer, model: nn.Module, tensors: MutableMapping[str, Tensor]
) -> dict[str, Any]:
    """Return the JSON form of an optimizer and put copies of its tensors into ``tensors``."""
    names = _names_of(optimizer, model)
    groups = [
        {
            "weights": [names[id(weight)] for weight in group["params"]],
            "options": encode_tree(_options(group), f"{label}/group{number}", tensors),
        }
        for number, group in enumerate(optimizer.param_groups)
    ]
    return {
        "class": type(optimizer).__name__,
        "defaults": encode_tree(optimizer.defaults, f"{label}/defaults", tensors),
        "groups": groups,
        "state": {
            names[id(weight)]: encode_tree(dict(optimizer.state[weight]), f"{label}/state/{names[id(weight)]}", tensors)
            for weight in _weights_of(optimizer)
            if optimizer.state.get(weight)
        },
    }


def decode(
    label: str,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    saved: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
    aliases: Aliases,
    growth: Mapping[str, Growth] | None = None,
) -> None:
    """Put an optimizer into the state that ``encode`` saw.

    A weight that the checkpoint does not know starts fresh, as does an optimizer of another class. Options (learning
    rate and so on) that were configured otherwise since stay as configured now; the rest are as they were. The state of
    a weight with ``growth`` is padded as the weight is, with the numbers that a new state has.
    """
    if saved is None or saved["class"] != type(optimizer).__name__:
        was = "none of that name" if saved is None else saved["class"]
        logger.warning("optimizer starts fresh name=%s now=%s saved=%s", label, type(optimizer).__name__, was)
        return
    names = _names_of(optimizer, model)
    owners = {name: number for number, group in enumerate(saved["groups"]) for name in group["weights"]}
    defaults = decode_tree(saved["defaults"], tensors)
    for group in optimizer.param_groups:
        source = None
        for weight in group["params"]:
            name = aliases.saved_name(names[id(weight)])
            if name not in owners:
                logger.warning("weight without saved optimizer state name=%s optimizer=%s", name, label)
                continue
            source = owners[name] if source is None else source
            own_growth = (growth or {}).get(names[id(weight)])
            _restore_weight(optimizer, weight, group, saved["state"].get(name), tensors, own_growth)
        if source is not None:
            options = decode_tree(saved["groups"][source]["options"], tensors)
            _restore_options(label, group, options, defaults, optimizer.defaults)


def _restore_weight(
    optimizer: torch.optim.Optimizer,
    weight: Tensor,
    group: dict[str, Any],
    tree: Any,
    tensors: Mapping[str, Tensor],
    growth: Growth | None,
) -> None:
    if tree is None:
        optimizer.state.pop(weight, None)
        return
    # Torch's optimizers count steps on the host, unless the step itself runs on the device.
    counts_on_device = group.get("capturable") or group.get("fused")
    values = decode_tree(tree, tensors)
    if growth is not None and not _pad_state(values, growth, weight, optimizer.state.get(weight, {})):
        logger.warning("optimizer state of a padded weight starts fresh shape=%s", tuple(weight.shape))
        return
    optimizer.state[weight] = {
        key: _placed(value, torch.device("cpu") if key == "step" and not counts_on_device else weight.device)
        for key, value in values.items()
    }


def _pad_state(values: dict[str, Any], growth: Growth, weight: Tensor, fresh: Mapping[str, Any]) -> bool:
    """Pad the state of a padded weight in place; return False if a part of it is not shaped like the weight."""
    if not all(_is_scalar(value) or getattr(value, "shape", None) == growth.saved_shape for value in values.values()):
        return False
    for key, value in values.items():
        if _is_scalar(value):
            continue
        initial = fresh.get(key)
        if not isinstance(initial, Tensor) or initial.shape != weight.shape:
            initial = torch.zeros(weight.shape, dtype=value.dtype)
        values[key] = growth.pad(value, initial)
    return True


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, Tensor) and value.dim() == 0)


def _placed(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {key: _placed(each, device) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_placed(each, device) for each in value)
    return value


def _restore_options(
    label: str,
    group: dict[str, Any],
    saved: Mapping[str, Any],
    saved_defaults: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> None:
    for key, value in saved.items():
        if key in defaults and not _is_same(saved_defaults.get(key), defaults[key]):
            logger.warning(
                "optimizer option changed name=%s option=%s saved=%s now=%s", label, key, value, group.get(key)
            )
        else:
            group[key] = value.clone() if isinstance(value, Tensor) else value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one.cpu(), other.cpu())
    return bool(one == other)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _weights_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _names_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[int, str]:
    """Return the name of each weight; a weight that the model does not have is named by its index."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    for number, weight in enumerate(_weights_of(optimizer)):
        names.setdefault(id(weight), f"#{number}")
    return names
