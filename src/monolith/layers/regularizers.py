"""Penalties on weights, by name or by object: any callable from a tensor to a scalar.

:func:`monolith.layers.layer_losses` returns the penalties of a layer; the caller adds them to the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number

__all__ = ["L1", "L1L2", "L2", "Regularizer", "RegularizerLike", "get"]

Regularizer: TypeAlias = Callable[[Tensor], Tensor]
"""From a weight to a scalar."""
RegularizerLike: TypeAlias = str | Regularizer | None
"""``"l1"``, ``"l2"``, ``"l1_l2"``, a callable, or None for no penalty."""


@dataclass(frozen=True, slots=True)
class L1L2:
    """l1 · Σ|w| + l2 · Σw².

    >>> import torch
    >>> L1L2(l1=1.0, l2=0.5)(torch.tensor([1.0, -2.0])).item()
    5.5
    """

    l1: float = 0.01
    """Factor of the absolute values."""
    l2: float = 0.01
    """Factor of the squares."""

    def __post_init__(self) -> None:
        check_number("L1L2.l1", self.l1, at_least=0.0)
        check_number("L1L2.l2", self.l2, at_least=0.0)

    def __call__(self, weight: Tensor) -> Tensor:
        """Return the penalty on ``weight``."""
        return self.l1 * weight.abs().sum() + self.l2 * weight.square().sum()


@dataclass(frozen=True, slots=True)
class L1:
    """l1 · Σ|w|."""

    l1: float = 0.01
    """Factor of the absolute values."""

    def __post_init__(self) -> None:
        check_number("L1.l1", self.l1, at_least=0.0)

    def __call__(self, weight: Tensor) -> Tensor:
        """Return the penalty on ``weight``."""
        return self.l1 * weight.abs().sum()


@dataclass(frozen=True, slots=True)
class L2:
    """l2 · Σw²."""

    l2: float = 0.01
    """Factor of the squares."""

    def __post_init__(self) -> None:
        check_number("L2.l2", self.l2, at_least=0.0)

    def __call__(self, weight: Tensor) -> Tensor:
        """Return the penalty on ``weight``."""
        return self.l2 * weight.square().sum()


def get(regularizer: RegularizerLike, label: str = "regularizer") -> Regularizer | None:
    """Return the penalty meant by a name or a callable; None stays None.

    Raises:
        ConfigError: The name is unknown, or the value is neither a name nor a callable.
    """
    if regularizer is None:
        return None
    if isinstance(regularizer, str):
        known: dict[str, Regularizer] = {"l1": L1(), "l2": L2(), "l1_l2": L1L2()}
        if regularizer.lower() not in known:
            raise ConfigError(f"{label} is {regularizer!r}; give 'l1', 'l2', 'l1_l2' or an object such as L2(0.001)")
        return known[regularizer.lower()]
    if isinstance(regularizer, type):
        regularizer = regularizer()
    if not callable(regularizer):
        raise ConfigError(f"{label} is {regularizer!r}; give a name such as 'l2' or a callable on a tensor")
    return regularizer
