"""The dense layer, with weight normalisation, and how its kernel's rows would be split over stores.

:mod:`monolith.layers.mlp` stacks dense layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from monolith.core.errors import ConfigError
from monolith.layers import activations
from monolith.layers._arguments import check_last_dim, check_number, check_whole
from monolith.layers.activations import ActivationLike
from monolith.layers.initializers import InitializerLike
from monolith.layers.kernel_norm import column_norms, normalized_kernel
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = ["Dense", "OptimizerFactory", "RowPartitioner"]

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimizer of some parameters, such as ``functools.partial(torch.optim.SGD, lr=0.1)``."""


@dataclass(frozen=True, slots=True)
class RowPartitioner:
    """Splits the rows of a kernel into at most ``max_shards`` nearly equal parts of at most ``max_shard_bytes``.

    The number of parts has priority: where ``max_shards`` are too few, the parts are larger.

    >>> RowPartitioner(max_shard_bytes=131072, max_shards=5)(rows=294, row_bytes=4096)
    [59, 59, 59, 59, 58]
    """

    max_shard_bytes: int
    """Bytes that a part should not pass."""
    max_shards: int | None = None
    """Most parts; None for no limit."""

    def __post_init__(self) -> None:
        check_whole("RowPartitioner.max_shard_bytes", self.max_shard_bytes)
        if self.max_shards is not None:
            check_whole("RowPartitioner.max_shards", self.max_shards)

    def __call__(self, rows: int, row_bytes: int) -> list[int]:
        """Return the number of rows of each part."""
        rows_per_shard = max(1, self.max_shard_bytes // max(1, row_bytes))
        shards = -(-rows // rows_per_shard)
        if self.max_shards is not None:
            shards = min(shards, self.max_shards)
        base, extra = divmod(rows, max(1, shards))
        return [base + (index < extra) for index in range(shards)]


class Dense(Layer):
    """y = act(x · W' + b) on the last axis. Several tensors are taken as if ``torch.cat`` had joined them to x.

    Without ``allow_kernel_norm`` W' = W. With it each column has length 1: W' = W · rsqrt(max(Σ_rows W², 1e-6)); with
    ``kernel_norm_trainable`` too, each column is multiplied by a trainable length that starts as the length of the
    initial column, so that at first W' = W.

    Shapes: x (..., in), or tensors (..., in_i) with Σ in_i = in; kernel (in, units), bias (units,), y (..., units).

    Args:
        units: Width of the output. None: the owner of this layer sets ``units`` before the first call.
        activation: Activation of the output; None for none.
        use_bias: Whether there is a b.
        kernel_initializer: First values of W.
        bias_initializer: First values of b.
        kernel_regularizer: Penalty on W, read by :func:`monolith.layers.layer_losses`.
        bias_regularizer: Penalty on b.
        allow_kernel_norm: Whether W' is normalised.
        kernel_norm_trainable: Whether the length of a column is trained.
        partitioner: How :meth:`partitions` splits the kernel's rows. The kernel stays one tensor.
        inactive_relu_monitor: Whether the buffer ``inactive_relu`` follows, per unit, how many rows of a training
            batch have output 0.
        inactive_relu_monitor_decay: Share of the newest batch in that average.
        optimizer: Makes the optimizer of this layer's parameters, in place of the model's dense optimizer; see
            :func:`monolith.layers.optimizers.split_by_optimizer`.
        input_dim: Width of the input; None takes it from the first call.

    >>> Dense(4, "relu")(torch.zeros(2, 3)).shape
    torch.Size([2, 4])
    >>> Dense(4)([torch.zeros(2, 3), torch.zeros(2, 5)]).shape
    torch.Size([2, 4])
    """

    kernel: Tensor
    bias: Tensor
    kernel_scale: Tensor
    inactive_relu: Tensor

    def __init__(
        self,
        units: int | None,
        activation: ActivationLike = None,
        *,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = "glorot_uniform",
        bias_initializer: InitializerLike = "zeros",
        kernel_regularizer: RegularizerLike = None,
        bias_regularizer: RegularizerLike = None,
        allow_kernel_norm: bool = False,
        kernel_norm_trainable: bool = False,
        partitioner: RowPartitioner | None = None,
        inactive_relu_monitor: bool = False,
        inactive_relu_monitor_decay: float = 0.1,
        optimizer: OptimizerFactory | None = None,
        input_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.units = None if units is None else check_whole("Dense.units", units)
        if kernel_norm_trainable and not allow_kernel_norm:
            raise ConfigError("Dense.kernel_norm_trainable is True without allow_kernel_norm; set both or neither")
        self.activation = activations.get(activation, "Dense.activation")
        self.use_bias = use_bias
        self.allow_kernel_norm = allow_kernel_norm
        self.kernel_norm_trainable = kernel_norm_trainable
        self.partitioner = partitioner
        self.monitor_decay = check_number(
            "Dense.inactive_relu_monitor_decay", inactive_relu_monitor_decay, above=0.0, at_most=1.0
        )
        self.optimizer = optimizer
        self.declare("kernel", kernel_initializer, kernel_regularizer, label="Dense.kernel")
        if use_bias:
            self.declare("bias", bias_initializer, bias_regularizer, label="Dense.bias")
        if kernel_norm_trainable:
            self.declare("kernel_scale", "ones")
        self.inactive_relu_monitor = inactive_relu_monitor
        if inactive_relu_monitor:
            self.declare("inactive_relu", "zeros", trainable=False)
        if input_dim is not None:
            self._build_for(check_whole("Dense.input_dim", input_dim))
            self.settle()

    def _build_for(self, input_dim: int) -> None:
        if self.units is None:
            raise ConfigError("Dense.units is None; set it before the first call")
        self.shape("kernel", input_dim, self.units)
        if self.use_bias:
            self.shape("bias", self.units)
        if self.inactive_relu_monitor:
            self.shape("inactive_relu", self.units)
        if self.kernel_norm_trainable and is_lazy(self.kernel_scale):
            with torch.no_grad():
                self.shape("kernel_scale", self.units).copy_(column_norms(self.kernel))

    def measure(self, x: Tensor | Sequence[Tensor]) -> None:
        """Take the width of the input."""
        self._build_for(sum(part.shape[-1] for part in _as_parts(x)))

    def effective_kernel(self) -> Tensor:
        """Return W', the kernel as the product sees it."""
        if not self.allow_kernel_norm:
            return self.kernel
        return normalized_kernel(self.kernel, self.kernel_scale if self.kernel_norm_trainable else None)

    def forward(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        """Compute y."""
        parts = _as_parts(x)
        if len(parts) > 1 and (parts[0].dim() != 2 or torch.compiler.is_compiling()):
            parts = [torch.cat(parts, dim=-1)]
        widths = [part.shape[-1] for part in parts]
        remedy = "feed the width the layer was built with"
        check_last_dim("the input of Dense", sum(widths), self.kernel.shape[0], remedy)
        kernel = self.effective_kernel()
        first, *others = torch.split(kernel, widths) if len(parts) > 1 else (kernel,)
        out = F.linear(parts[0], first.t(), self.bias if self.use_bias else None)
        for part, rows in zip(parts[1:], others, strict=True):
            out = torch.addmm(out, part, rows)
        if self.activation is not None:
            out = self.activation(out)
        if self.inactive_relu_monitor and self.training:
            self._count_inactive(out.detach())
        return out

    @torch.no_grad()
    def _count_inactive(self, out: Tensor) -> None:
        rows = out.reshape(-1, out.shape[-1])
        inactive = (rows == 0).sum(dim=0).to(self.inactive_relu.dtype)
        self.inactive_relu.lerp_(inactive, self.monitor_decay)

    def partitions(self) -> list[int]:
        """Return the number of kernel rows in each part that ``partitioner`` makes; one part without it."""
        rows, columns = self.kernel.shape
        if self.partitioner is None:
            return [rows]
        return self.partitioner(rows, columns * self.kernel.element_size())

    def extra_repr(self) -> str:
        """Show the width, and the input's once it is known."""
        known = "" if not self.is_built else f", input_dim={self.kernel.shape[0]}"
        return f"units={self.units}{known}"


def _as_parts(x: Tensor | Sequence[Tensor]) -> list[Tensor]:
    parts = [x] if isinstance(x, Tensor) else list(x)
    if not parts:
        raise ConfigError("the input of Dense is an empty list, expected tensors; give at least one")
    return parts
