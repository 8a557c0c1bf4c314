"""Normalisation of activations: layer norm and batch norm (with renormalisation).

The balance of several losses' gradients, which the original also calls a norm, is in :mod:`monolith.layers.grad_norm`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_last_dim, check_number
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = ["BatchNorm", "LayerNorm"]


class LayerNorm(Layer):
    """y = gamma ∘ (x − mean) / sqrt(var + 1e-6) + beta, mean and biased variance over the last axis.

    Shapes: x and y (..., k), gamma and beta (k,).

    Args:
        initializer: First values of gamma; None is ones. Beta starts as zeros.
        regularizer: Penalty on gamma and beta.

    >>> LayerNorm()(torch.tensor([[5.0, 5.0, 5.0]])).tolist()
    [[0.0, 0.0, 0.0]]
    """

    epsilon = 1e-6
    gamma: Tensor
    beta: Tensor

    def __init__(self, initializer: InitializerLike = None, regularizer: RegularizerLike = None) -> None:
        super().__init__()
        self.declare("gamma", "ones" if initializer is None else initializer, regularizer)
        self.declare("beta", "zeros", regularizer)

    def measure(self, x: Tensor) -> None:
        """Take the last axis."""
        self.shape("gamma", x.shape[-1])
        self.shape("beta", x.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Compute y."""
        check_last_dim(
            "the input of LayerNorm", x.shape[-1], self.gamma.shape[0], "feed the width the layer was built with"
        )
        return F.layer_norm(x, (x.shape[-1],), self.gamma, self.beta, self.epsilon)


class BatchNorm(Layer):
    """y = gamma ∘ (x − mean) / sqrt(var + epsilon) + beta, statistics over the batch.

    Training uses the biased moments of the batch, and moves the kept ones: moving ← momentum · moving +
    (1 − momentum) · batch. Evaluation uses the kept ones, with the variance at least 0. A batch without examples has no
    moments, and leaves the kept ones as they are.

    Shapes: x and y (B, ...); every parameter and statistic has the shape of x without the batch, or of its last axis
    with ``pool_positions``.

    Args:
        momentum: How much of the kept statistics survives a step.
        center: Whether there is a beta.
        scale: Whether there is a gamma.
        moving_mean_initializer: First value of the kept mean.
        moving_variance_initializer: First value of the kept variance.
        beta_initializer: First value of beta.
        gamma_initializer: First value of gamma.
        regularizer: Penalty on gamma and beta.
        training_use_global_dist: Whether training normalises with a mixture of kept and batch moments.
        global_dist_momentum: Share of the kept moments in that mixture.
        stop_grad_of_var_mean: Whether no gradient flows through the batch moments.
        epsilon: Added to the variance.
        pool_positions: Whether moments are over all axes but the last, instead of over the batch only.
        renorm: Whether training corrects the batch's moments towards kept ones (batch renormalisation).
        renorm_clipping: Bounds of the correction: ``rmin``, ``rmax`` of the factor, ``dmax`` of the shift.
        renorm_momentum: How much of the kept statistics of the correction survives a step.

    >>> norm = BatchNorm()
    >>> norm(torch.tensor([[1.0], [3.0]])).round().tolist()
    [[-1.0], [1.0]]
    >>> round(norm.moving_mean.item(), 4)
    0.02
    """

    gamma: Tensor
    beta: Tensor
    moving_mean: Tensor
    moving_variance: Tensor
    renorm_mean: Tensor
    renorm_stddev: Tensor

    def __init__(
        self,
        momentum: float = 0.99,
        center: bool = True,
        scale: bool = True,
        *,
        moving_mean_initializer: InitializerLike = "zeros",
        moving_variance_initializer: InitializerLike = "ones",
        beta_initializer: InitializerLike = "zeros",
        gamma_initializer: InitializerLike = "ones",
        regularizer: RegularizerLike = None,
        training_use_global_dist: bool = False,
        global_dist_momentum: float = 1.0,
        stop_grad_of_var_mean: bool = False,
        epsilon: float = 1e-6,
        pool_positions: bool = False,
        renorm: bool = False,
        renorm_clipping: Mapping[str, float] | None = None,
        renorm_momentum: float = 0.99,
    ) -> None:
        super().__init__()
        self.momentum = check_number("BatchNorm.momentum", momentum, at_least=0.0, at_most=1.0)
        self.global_dist_momentum = check_number(
            "BatchNorm.global_dist_momentum", global_dist_momentum, at_least=0.0, at_most=1.0
        )
        self.epsilon = check_number("BatchNorm.epsilon", epsilon, above=0.0)
        self.renorm_momentum = check_number("BatchNorm.renorm_momentum", renorm_momentum, at_least=0.0, at_most=1.0)
        if renorm and training_use_global_dist:
            raise ConfigError("BatchNorm.renorm and training_use_global_dist are both True; choose one of them")
        self.clipping = _check_clipping(renorm, renorm_clipping)
        self.training_use_global_dist = training_use_global_dist
        self.stop_grad_of_var_mean = stop_grad_of_var_mean
        self.pool_positions = pool_positions
        self.renorm = renorm
        self.center = center
        self.scale = scale
        if scale:
            self.declare("gamma", gamma_initializer, regularizer)
        if center:
            self.declare("beta", beta_initializer, regularizer)
        self.declare("moving_mean", moving_mean_initializer, trainable=False)
        self.declare("moving_variance", moving_variance_initializer, trainable=False)
        if renorm:
            self.declare("renorm_mean", "zeros", trainable=False)
            self.declare("renorm_stddev", "ones", trainable=False)

    def measure(self, x: Tensor) -> None:
        """Take all axes but the batch, or the last one only."""
        if x.dim() < 2:
            raise ConfigError(f"the input of BatchNorm has shape {tuple(x.shape)}; give (B, k) or more axes")
        size = x.shape[-1:] if self.pool_positions else x.shape[1:]
        for name in self._initializers:
            self.shape(name, *size)

    def forward(self, x: Tensor) -> Tensor:
        """Compute y; in training, move the kept statistics."""
        if self.training:
            return self._finish(self._normalized_in_training(x))
        return self._finish(self._normalize(x, self.moving_mean, self.moving_variance.clamp_min(0.0)))

    def _normalize(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return (x - mean) * torch.rsqrt(variance + self.epsilon)

    def _normalized_in_training(self, x: Tensor) -> Tensor:
        if x.numel() == 0:  # its moments are NaN, and would stay in the kept ones
            return self._normalize(x, self.moving_mean, self.moving_variance.clamp_min(0.0))
        x = x.to(torch.promote_types(x.dtype, self.moving_mean.dtype))
        axes = tuple(range(x.dim() - 1)) if self.pool_positions else (0,)
        mean = x.mean(dim=axes)
        variance = x.var(dim=axes, correction=0)
        if self.stop_grad_of_var_mean:
            mean, variance = mean.detach(), variance.detach()
        if self.renorm:
            return self._renormalize(x, mean, variance)
        normal_mean, normal_variance = mean, variance
        if self.training_use_global_dist:
            kept = self.global_dist_momentum
            normal_mean = kept * self.moving_mean + (1 - kept) * mean
            normal_variance = kept * self.moving_variance + (1 - kept) * variance
        normalized = self._normalize(x, normal_mean, normal_variance)
        self._keep(mean, variance)
        return normalized

    def _renormalize(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        with torch.no_grad():
            stddev = torch.sqrt(variance + self.epsilon)
            factor = stddev / self.renorm_stddev
            shift = (mean - self.renorm_mean) / self.renorm_stddev
            if "rmin" in self.clipping or "rmax" in self.clipping:
                factor = factor.clamp(self.clipping.get("rmin"), self.clipping.get("rmax"))
            if "dmax" in self.clipping:
                shift = shift.clamp(-self.clipping["dmax"], self.clipping["dmax"])
        normalized = self._normalize(x, mean, variance) * factor + shift
        with torch.no_grad():
            self.renorm_mean.lerp_(mean.to(self.renorm_mean.dtype), 1 - self.renorm_momentum)
            self.renorm_stddev.lerp_(stddev.to(self.renorm_stddev.dtype), 1 - self.renorm_momentum)
            self._keep(self.renorm_mean, (self.renorm_stddev.square() - self.epsilon).clamp_min(0.0))
        return normalized

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        self.moving_mean.lerp_(mean.detach().to(self.moving_mean.dtype), 1 - self.momentum)
        self.moving_variance.lerp_(variance.detach().to(self.moving_variance.dtype), 1 - self.momentum)

    def _finish(self, normalized: Tensor) -> Tensor:
        if self.scale:
            normalized = normalized * self.gamma
        return normalized + self.beta if self.center else normalized


def _check_clipping(renorm: bool, clipping: Mapping[str, float] | None) -> dict[str, float]:
    if clipping is None:
        return {}
    if not renorm:
        raise ConfigError(f"renorm_clipping is {dict(clipping)!r} without renorm; set renorm=True or leave it out")
    for key, value in clipping.items():
        if key not in ("rmin", "rmax", "dmax"):
            raise ConfigError(f"renorm_clipping has the unknown key {key!r}; known keys: rmin, rmax, dmax")
        check_number(f"renorm_clipping[{key!r}]", value, at_least=0.0)
    return dict(clipping)
