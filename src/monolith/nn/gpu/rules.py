"""The update rules of GPU tables, as constants for ``rules.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monolith.core.errors import ConfigError
from monolith.embedding.optimizers import Optimizer

__all__ = ["Rule", "rule_of"]

_WORDS = {
    "sgd": (0, 0),
    "moving_average": (0, 0),
    "batch_softmax": (0, 2),
    "group_adagrad": (0, 1),
    "adagrad": (1, 0),
    "momentum": (1, 0),
    "rmsprop": (1, 0),
    "rmspropv2": (1, 0),
    "dynamic_wd_adagrad": (1, 2),
    "adadelta": (2, 0),
    "ftrl": (2, 0),
    "group_ftrl": (2, 0),
    "adam": (2, 2),
    "amsgrad": (3, 2),
}
"""State words per column and per row, by kind of optimizer."""

_KINDS_WITH_PASSES = frozenset({"group_adagrad", "group_ftrl"})


@dataclass(frozen=True, slots=True)
class Rule:
    """An update rule of ``rules.cuh``."""

    states: int
    """Words of state per column."""
    extra: int
    """Words of state per row."""
    has_passes: bool
    """Whether the rule looks at a whole row."""
    constants: dict[str, object]
    """Macros that choose the rule and its settings."""


def rule_of(optimizer: Optimizer) -> Rule:
    """Return the rule of an optimizer.

    A ``DelayCompensated`` optimizer has the rule of its base: modules give no older values, without which it changes
    nothing.

    Raises:
        ConfigError: GPU tables lack the rule.
    """
    base = optimizer.base
    words = _WORDS.get(base.kind)
    if words is None:
        raise ConfigError(
            f"optimizer is {type(base).__name__}, expected a built-in optimizer on a GPU; use device='cpu'"
        )
    constants: dict[str, object] = {f"RULE_{base.kind.upper()}": 1}
    constants |= {f"SETTING_{name.upper()}": _number(value) for name, value in base.settings().items()}
    return Rule(*words, base.kind in _KINDS_WITH_PASSES, constants)


def _number(value: float) -> str:
    """Return a float32 as a literal of C with all its bits."""
    return f"{float(np.float32(value)).hex()}f"
