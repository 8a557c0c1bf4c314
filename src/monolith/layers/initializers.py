"""First values of dense weights, by name or by object.

An initializer is any callable that fills a tensor in place, so the functions of ``torch.nn.init`` serve as well.
Kernels are stored as (in, out), which determines fan-in and fan-out. Random initializers draw from torch's global
generator, so ``torch.manual_seed`` repeats them. Rows of embedding tables have other initializers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_choice, check_number

__all__ = [
    "Constant",
    "Identity",
    "Initializer",
    "InitializerLike",
    "Orthogonal",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "get",
]

Initializer: TypeAlias = Callable[[Tensor], object]
"""Fills a tensor in place; its return value is ignored."""
InitializerLike: TypeAlias = str | Initializer | None
"""A name such as ``"glorot_uniform"``, a callable, or None for the layer's own default."""

# The standard deviation of a unit normal cut at ±2; dividing by it restores the wanted spread.
_TRUNCATED_SPREAD = 0.87962566103423978


@dataclass(frozen=True, slots=True)
class Constant:
    """The same number everywhere, or the given values where a sequence or tensor of the right shape is given.

    >>> weight = torch.empty(2, 2)
    >>> Constant([[3, 0], [4, 2]])(weight)
    >>> weight.tolist()
    [[3.0, 0.0], [4.0, 2.0]]
    """

    value: float | Sequence[object] | Tensor
    """That number, or those values."""

    def __call__(self, tensor: Tensor) -> None:
        """Fill ``tensor``."""
        values = torch.as_tensor(self.value, dtype=tensor.dtype, device=tensor.device)
        if values.dim() > 0 and values.shape != tensor.shape:
            raise ConfigError(
                f"Constant.value has shape {tuple(values.shape)}, the weight {tuple(tensor.shape)}; "
                "give one number or values of that shape"
            )
        with torch.no_grad():
            tensor.copy_(values.expand_as(tensor))


@dataclass(frozen=True, slots=True)
class RandomUniform:
    """Uniform in [minval, maxval)."""

    minval: float = -0.05
    """Smallest value."""
    maxval: float = 0.05
    """Bound above all values."""

    def __post_init__(self) -> None:
        check_number("RandomUniform.minval", self.minval)
        check_number("RandomUniform.maxval", self.maxval, at_least=self.minval)

    def __call__(self, tensor: Tensor) -> None:
        """Fill ``tensor``."""
        nn.init.uniform_(tensor, self.minval, self.maxval)


@dataclass(frozen=True, slots=True)
class RandomNormal:
    """Normal with the given mean and standard deviation."""

    mean: float = 0.0
    """Centre."""
    stddev: float = 0.05
    """Spread."""

    def __post_init__(self) -> None:
        check_number("RandomNormal.mean", self.mean)
        check_number("RandomNormal.stddev", self.stddev, at_least=0.0)

    def __call__(self, tensor: Tensor) -> None:
        """Fill ``tensor``."""
        nn.init.normal_(tensor, self.mean, self.stddev)


@dataclass(frozen=True, slots=True)
class TruncatedNormal:
    """Normal, with values beyond two standard deviations drawn again."""

    mean: float = 0.0
    """Centre."""
    stddev: float = 0.05
    """Spread before the cut."""

    def __post_init__(self) -> None:
        check_number("TruncatedNormal.mean", self.mean)
        check_number("TruncatedNormal.stddev", self.stddev, above=0.0)

    def __call__(self, tensor: Tensor) -> None:
        """Fill ``tensor``."""
        reach = 2 * self.stddev
        nn.init.trunc_normal_(tensor, self.mean, self.stddev, self.mean - reach, self.mean + reach)


@dataclass(frozen=True, slots=True)
class VarianceScaling:
    """Variance scale / n, where n is the fan in, the fan out or their average.

    Glorot is (1, "fan_avg"), He is (2, "fan_in"), LeCun is (1, "fan_in").
    """

    scale: float = 1.0
    """Numerator of the variance."""
    mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in"
    """The meaning of n."""
    distribution: Literal["truncated_normal", "uniform", "normal"] = "truncated_normal"
    """Shape of the draw."""

    def __post_init__(self) -> None:
        check_number("VarianceScaling.scale", self.scale, above=0.0)
        check_choice("VarianceScaling.mode", self.mode, ("fan_in", "fan_out", "fan_avg"))
        check_choice("VarianceScaling.distribution", self.distribution, ("truncated_normal", "uniform", "normal"))

    def __call__(self, tensor: Tensor) -> None:
        """Fill ``tensor``."""
        fan_in, fan_out = _fans(tensor)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, fan)
        if self.distribution == "uniform":
            reach = math.sqrt(3 * variance)
            nn.init.uniform_(tensor, -reach, reach)
        elif self.distribution == "normal":
            nn.init.normal_(tensor, 0.0, math.sqrt(variance))
        else:
            TruncatedNormal(0.0, math.sqrt(variance) / _TRUNCATED_SPREAD)(tensor)


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """A (semi-)orthogonal matrix; axes before the last are taken together."""

    gain: float = 1.0
    """Factor on the matrix."""

    def __call__(self, tensor: Tensor) -> None:
        """Fill ``tensor``."""
        if tensor.dim() < 2:
            raise ConfigError(f"Orthogonal cannot fill shape {tuple(tensor.shape)}; it needs at least two axes")
        dtype = torch.promote_types(tensor.dtype, torch.float32)  # torch decomposes no half precision
        rows = torch.empty(tensor.numel() // tensor.shape[-1], tensor.shape[-1], dtype=dtype)
        nn.init.orthogonal_(rows, self.gain)
        with torch.no_grad():
            tensor.copy_(rows.reshape(tensor.shape))


@dataclass(frozen=True, slots=True)
class Identity:
    """Ones on the diagonal of a matrix."""

    gain: float = 1.0
    """Factor on the matrix."""

    def __call__(self, tensor: Tensor) -> None:
        """Fill ``tensor``."""
        if tensor.dim() != 2:
            raise ConfigError(f"Identity cannot fill shape {tuple(tensor.shape)}; it fills matrices only")
        with torch.no_grad():
            nn.init.eye_(tensor).mul_(self.gain)


def _fans(tensor: Tensor) -> tuple[float, float]:
    if tensor.dim() == 0:
        return 1.0, 1.0
    if tensor.dim() == 1:
        return float(tensor.shape[0]), float(tensor.shape[0])
    field = math.prod(tensor.shape[:-2])
    return float(tensor.shape[-2] * field), float(tensor.shape[-1] * field)


_BY_NAME: Mapping[str, Initializer] = {
    "zeros": Constant(0.0),
    "ones": Constant(1.0),
    "glorot_uniform": VarianceScaling(1.0, "fan_avg", "uniform"),
    "glorot_normal": VarianceScaling(1.0, "fan_avg", "truncated_normal"),
    "he_uniform": VarianceScaling(2.0, "fan_in", "uniform"),
    "he_normal": VarianceScaling(2.0, "fan_in", "truncated_normal"),
    "lecun_uniform": VarianceScaling(1.0, "fan_in", "uniform"),
    "lecun_normal": VarianceScaling(1.0, "fan_in", "truncated_normal"),
    "random_uniform": RandomUniform(),
    "uniform": RandomUniform(),
    "random_normal": RandomNormal(),
    "normal": RandomNormal(),
    "truncated_normal": TruncatedNormal(),
    "orthogonal": Orthogonal(),
    "identity": Identity(),
}


def get(initializer: InitializerLike, default: str = "glorot_uniform", label: str = "initializer") -> Initializer:
    """Return the initializer meant by a name, a callable, or None (``default``).

    Raises:
        ConfigError: The name is unknown, or the value is neither a name nor a callable.

    >>> get("he_normal") == VarianceScaling(2.0, "fan_in", "truncated_normal")
    True
    """
    chosen = default if initializer is None else initializer
    if isinstance(chosen, str):
        found = _BY_NAME.get(chosen.lower())
        if found is None:
            near = difflib.get_close_matches(chosen.lower(), _BY_NAME, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(_BY_NAME)}"
            raise ConfigError(f"{label} is {chosen!r}; {remedy}")
        return found
    if isinstance(chosen, type):
        chosen = chosen()
    if not callable(chosen):
        raise ConfigError(f"{label} is {chosen!r}; give a name such as 'glorot_uniform' or a callable on a tensor")
    return chosen
