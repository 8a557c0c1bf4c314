"""Dense optimizers by name: torch's own and those of ``monolith.layers``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from monolith.core.errors import ConfigError
from monolith.layers import Adamom, DenseRmsProp, Shampoo, split_by_optimizer

__all__ = ["DENSE_OPTIMIZERS", "make_optimizers"]

Factory = Callable[..., torch.optim.Optimizer]


def _momentum(parameters: Any, lr: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, **{"momentum": 0.9, **options})


def _adagrad(parameters: Iterable[nn.Parameter], lr: float, **options: Any) -> torch.optim.Optimizer:
    """Torch's rule, also for weights that take their shape from the first batch; torch needs the shapes earlier."""
    weights = list(parameters)
    shaped = [each for each in weights if not isinstance(each, UninitializedParameter)]
    made = torch.optim.Adagrad(shaped or [nn.Parameter(torch.zeros(0))], lr=lr, **options)
    if len(shaped) < len(weights):
        if not shaped:
            made.state.clear()
        made.param_groups[0]["params"] = weights
        made.register_step_pre_hook(_start_sums)
    return made


def _start_sums(optimizer: torch.optim.Optimizer, *_arguments: object) -> None:
    """Give each weight without a state that of a new ``torch.optim.Adagrad``."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if not isinstance(weight, UninitializedParameter) and not optimizer.state.get(weight):
                device = weight.device if group.get("fused") else torch.device("cpu")
                optimizer.state[weight] = {
                    "step": torch.zeros((), dtype=torch.get_default_dtype(), device=device),
                    "sum": torch.full_like(weight, group["initial_accumulator_value"]),
                }


def _fused(make: Factory) -> Factory:
    """Torch's one-pass form of a rule, unless the caller asks for another of its forms."""
    return lambda parameters, lr, **options: make(parameters, lr=lr, **{"fused": "foreach" not in options, **options})


def _own(make: Factory) -> Factory:
    """An optimizer of ours calls the rate by its long name."""
    return lambda parameters, lr, **options: make(parameters, learning_rate=lr, **options)


DENSE_OPTIMIZERS: Mapping[str, Factory] = {
    "adagrad": _adagrad,
    "adam": _fused(torch.optim.Adam),
    "adamom": _own(Adamom),
    "adamw": _fused(torch.optim.AdamW),
    "momentum": _momentum,
    "rmsprop": _own(DenseRmsProp),
    "rmsprop_v2": _own(lambda parameters, **options: DenseRmsProp(parameters, use_v2=True, **options)),
    "sgd": torch.optim.SGD,
    "shampoo": _own(Shampoo),
}
"""Factory by optimizer name; takes (parameters, lr=, further options)."""


def make_optimizers(
    model: nn.Module, name: str, learning_rate: float, options: Mapping[str, Any]
) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers of a model's weights: the named one, and those that layers ask for themselves.

    Raises:
        ConfigError: There is no optimizer of that name, or it does not take these options.
    """
    if name not in DENSE_OPTIMIZERS:
        raise ConfigError(f"dense_optimizer is {name!r}; use one of {', '.join(DENSE_OPTIMIZERS)}")
    made: dict[str, torch.optim.Optimizer] = {}
    for number, (factory, parameters) in enumerate(split_by_optimizer(model)):
        if not parameters:
            continue
        if factory is not None:
            made[f"layer_{number}"] = factory(parameters)
            continue
        try:
            made["dense"] = DENSE_OPTIMIZERS[name](parameters, lr=learning_rate, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"dense_optimizer {name!r} refuses {dict(options)}: {error}") from error
    return made
