"""Checks of arguments and shapes for constructors and forwards. Each error names the argument, value and remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from monolith.core.errors import ConfigError

__all__: list[str] = []


def check_whole(label: str, value: object, *, at_least: int = 1) -> int:
    """Return ``value`` if it is an ``int`` of at least ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(f"{label} is {value!r}; give a whole number of at least {at_least}")
    return value


def check_number(
    label: str, value: object, *, at_least: float = -math.inf, above: float = -math.inf, at_most: float = math.inf
) -> float:
    """Return ``value`` as a float if it is finite and within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{label} is {value!r}; give a finite number")
    if value < at_least:
        raise ConfigError(f"{label} is {value!r}; give a number of at least {at_least:g}")
    if value <= above:
        raise ConfigError(f"{label} is {value!r}; give a number above {above:g}")
    if value > at_most:
        raise ConfigError(f"{label} is {value!r}; give a number of at most {at_most:g}")
    return float(value)


def check_dims(label: str, dims: object) -> list[int]:
    """Return ``dims`` as a list of positive whole numbers, at least one."""
    if isinstance(dims, str) or not isinstance(dims, Sequence) or not dims:
        raise ConfigError(f"{label} is {dims!r}; give a list of at least one layer width, such as [64, 32, 1]")
    return [check_whole(f"{label}[{position}]", dim) for position, dim in enumerate(dims)]


def check_choice(label: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise name the nearest one."""
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(map(repr, known))}"
    raise ConfigError(f"{label} is {value!r}; {remedy}")


def check_rank(label: str, tensor: Tensor, ranks: int | tuple[int, ...], form: str) -> None:
    """Refuse a tensor whose number of axes is not in ``ranks``; ``form`` is the expected shape, such as (B, n, k)."""
    allowed = (ranks,) if isinstance(ranks, int) else ranks
    if tensor.dim() not in allowed:
        raise ConfigError(f"{label} has shape {tuple(tensor.shape)}; give {form}")


def check_last_dim(label: str, dim: int, size: int, remedy: str) -> None:
    """Refuse a tensor whose last axis is ``dim`` instead of ``size`` long."""
    if dim != size:
        raise ConfigError(f"{label} has last dim {dim}, expected {size}; {remedy}")
