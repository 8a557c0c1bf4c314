"""``MLP``: towers of dense layers, with batch norm and activations."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.layers import activations
from monolith.layers._arguments import check_dims
from monolith.layers.activations import ActivationLike
from monolith.layers.configured import Configured
from monolith.layers.dense import Dense
from monolith.layers.feature_insight import feature_insight
from monolith.layers.initializers import InitializerLike
from monolith.layers.normalization import BatchNorm
from monolith.layers.regularizers import RegularizerLike

__all__ = ["MLP", "MLPOptions"]

# keras' default, which the towers of the original were trained with.
_BATCH_NORM_EPSILON = 1e-3


class MLPOptions(TypedDict, total=False):
    """The keyword arguments of :class:`MLP` that layers with towers inside pass on."""

    kernel_regularizer: RegularizerLike
    use_weight_norm: bool
    use_learnable_weight_norm: bool
    use_bias: bool
    bias_regularizer: RegularizerLike
    enable_batch_normalization: bool
    batch_normalization_momentum: float
    batch_normalization_renorm: bool
    batch_normalization_renorm_clipping: Mapping[str, float] | None
    batch_normalization_renorm_momentum: float


class MLP(Configured):
    """A stack: [batch norm on the input] then, per width, dense → [batch norm, not after the last] → [activation].

    Shapes: x (..., in), or tensors (..., in_i) with Σ in_i = in, which no ``torch.cat`` has to join; y
    (..., output_dims[-1]).

    Args:
        output_dims: Widths of the layers.
        activations: None is relu on all but the last layer. One value is used on all but the last. A list has one
            entry per layer, None for no activation.
        initializers: First values of the kernels: None is Glorot uniform; one value for all, or a list.
        kernel_regularizer: Penalty on each kernel.
        use_weight_norm: Whether kernels are normalised per column; see :class:`monolith.layers.Dense`.
        use_learnable_weight_norm: Whether the lengths of the columns are trained. Without ``use_weight_norm`` it has no
            effect.
        use_bias: Whether the dense layers have biases; they start as zeros.
        bias_regularizer: Penalty on each bias.
        enable_batch_normalization: Whether there is batch norm.
        batch_normalization_momentum: How much of its moving statistics survives a step.
        batch_normalization_renorm: Whether it is batch renormalisation.
        batch_normalization_renorm_clipping: Its bounds ``rmin``, ``rmax``, ``dmax``.
        batch_normalization_renorm_momentum: How much of its renormalisation statistics survives a step.
        input_dim: Width of the input; None takes it from the first call.

    >>> tower = MLP([64, 32, 1])
    >>> tower(torch.zeros(8, 20)).shape
    torch.Size([8, 1])
    >>> tower([torch.zeros(8, 16), torch.zeros(8, 4)]).shape
    torch.Size([8, 1])
    """

    def __init__(
        self,
        output_dims: Sequence[int],
        activations: ActivationLike | Sequence[ActivationLike] = None,
        initializers: InitializerLike | Sequence[InitializerLike] = None,
        *,
        kernel_regularizer: RegularizerLike = None,
        use_weight_norm: bool = True,
        use_learnable_weight_norm: bool = True,
        use_bias: bool = True,
        bias_regularizer: RegularizerLike = None,
        enable_batch_normalization: bool = False,
        batch_normalization_momentum: float = 0.99,
        batch_normalization_renorm: bool = False,
        batch_normalization_renorm_clipping: Mapping[str, float] | None = None,
        batch_normalization_renorm_momentum: float = 0.99,
        input_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.output_dims = check_dims("MLP.output_dims", output_dims)
        depth = len(self.output_dims)
        chosen = activations_of_layers("MLP.activations", activations, depth)
        first_values = values_of_layers("MLP.initializers", initializers, depth)

        options = MLPOptions(
            kernel_regularizer=kernel_regularizer,
            use_weight_norm=use_weight_norm,
            use_learnable_weight_norm=use_learnable_weight_norm,
            use_bias=use_bias,
            bias_regularizer=bias_regularizer,
            batch_normalization_momentum=batch_normalization_momentum,
            batch_normalization_renorm=batch_normalization_renorm,
            batch_normalization_renorm_clipping=batch_normalization_renorm_clipping,
            batch_normalization_renorm_momentum=batch_normalization_renorm_momentum,
        )
        self.stack = nn.ModuleList([tower_batch_norm(options)] if enable_batch_normalization else [])
        for index, units in enumerate(self.output_dims):
            previous = input_dim if index == 0 else self.output_dims[index - 1]
            self.stack.append(tower_dense(units, first_values[index], options, previous))
            if enable_batch_normalization and index + 1 < depth:
                self.stack.append(tower_batch_norm(options))
            activation = chosen[index]
            if activation is not None:
                self.stack.append(activation)

    @property
    def dense_layers(self) -> list[Dense]:
        """The dense layers, first to last."""
        return [layer for layer in self.stack if isinstance(layer, Dense)]

    def forward(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        """Compute y."""
        first, *others = self.stack
        y: Tensor = first(x if isinstance(x, Tensor) or isinstance(first, Dense) else torch.cat(list(x), dim=-1))
        for layer in others:
            y = layer(y)
        return y

    def feature_insight(self, x: Tensor, segment_sizes: Sequence[int], aggregate: bool = True) -> Tensor:
        """Return how much each segment of the input adds to the first dense layer; see :func:`feature_insight`.

        >>> tower = MLP([2], initializers="ones")
        >>> _ = tower(torch.ones(1, 3))
        >>> tower.feature_insight(torch.ones(1, 3), [1, 2]).round().tolist()
        [[2.0, 8.0]]
        """
        return feature_insight(x, self.dense_layers[0].effective_kernel(), segment_sizes, aggregate=aggregate)


def tower_batch_norm(options: MLPOptions) -> BatchNorm:
    """Return a batch norm as towers have it."""
    return BatchNorm(
        momentum=options.get("batch_normalization_momentum", 0.99),
        epsilon=_BATCH_NORM_EPSILON,
        pool_positions=True,
        renorm=options.get("batch_normalization_renorm", False),
        renorm_clipping=options.get("batch_normalization_renorm_clipping"),
        renorm_momentum=options.get("batch_normalization_renorm_momentum", 0.99),
    )


def tower_dense(units: int, initializer: InitializerLike, options: MLPOptions, input_dim: int | None = None) -> Dense:
    """Return a dense layer as towers have it, without activation."""
    use_norm = options.get("use_weight_norm", True)
    return Dense(
        units,
        use_bias=options.get("use_bias", True),
        kernel_initializer=initializer,
        kernel_regularizer=options.get("kernel_regularizer"),
        bias_regularizer=options.get("bias_regularizer"),
        allow_kernel_norm=use_norm,
        kernel_norm_trainable=use_norm and options.get("use_learnable_weight_norm", True),
        input_dim=input_dim,
    )


def values_of_layers(label: str, value: Any, depth: int) -> list[Any]:
    """Return one entry per layer from one value for all or a list that must have the right length."""
    if not isinstance(value, list | tuple):
        return [copy.deepcopy(value) for _ in range(depth)]
    if len(value) != depth:
        raise ConfigError(f"{label} has {len(value)} entries for {depth} layers; give one per layer, or one for all")
    return list(value)


def activations_of_layers(
    label: str, value: ActivationLike | Sequence[ActivationLike], depth: int
) -> list[nn.Module | None]:
    """Return one activation per layer: a list as given; None or one value on all layers but the last."""
    if isinstance(value, list | tuple):
        return [activations.get(entry, label) for entry in values_of_layers(label, value, depth)]
    hidden: Any = "relu" if value is None else value
    # One more than is used, so that a wrong name is refused by a tower of one layer too.
    return [*[activations.get(copy.deepcopy(hidden), label) for _ in range(depth)][:-1], None]
