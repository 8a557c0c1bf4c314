"""SNR: sub-network routing, where each connection between sub-networks is a learned switch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from monolith.core.errors import ConfigError
from monolith.layers import initializers
from monolith.layers._arguments import check_choice, check_number, check_whole
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = ["SNR"]


class SNR(Layer):
    """out_j = Σ_i z_ij · x_i W_ij (``trans``) or Σ_i z_ij · x_i (``aver``), with hard-concrete switches z.

    In training s = sigmoid((ln u − ln(1 − u) + log_alpha) / beta) with u uniform; in evaluation s = sigmoid(log_alpha).
    z = clip(s (zeta − gamma) + gamma, 0, 1). The layer loss ``l0`` is the expected number of open switches,
    Σ sigmoid(log_alpha − beta · ln(−gamma / zeta)).

    Shapes: a list of I tensors (B, d_i); result a list of O = ``num_out_subnet`` tensors (B, out_subnet_dim).
    log_alpha is (I·O, 1), input-major; the W_ij are blocks of one kernel (Σ d_i, O · out_subnet_dim).

    Args:
        num_out_subnet: Number of outputs.
        out_subnet_dim: Their width.
        snr_type: ``"trans"`` with a matrix per route, ``"aver"`` without: then every d_i is ``out_subnet_dim``.
        zeta: Upper stretch of a switch, above 1.
        gamma: Lower stretch, below 0.
        beta: Temperature.
        use_ste: Whether the clip lets gradients through unchanged.
        initializer: First values of the matrices.
        regularizer: Penalty on the matrices.

    >>> [out.shape for out in SNR(2, 4)([torch.ones(3, 5), torch.ones(3, 6)])]
    [torch.Size([3, 4]), torch.Size([3, 4])]
    """

    log_alpha: Tensor
    kernel: Tensor

    def __init__(
        self,
        num_out_subnet: int,
        out_subnet_dim: int,
        snr_type: Literal["trans", "aver"] = "trans",
        zeta: float = 1.1,
        gamma: float = -0.1,
        beta: float = 0.5,
        use_ste: bool = False,
        initializer: InitializerLike = "glorot_uniform",
        regularizer: RegularizerLike = None,
    ) -> None:
        super().__init__()
        self.num_out_subnet = check_whole("SNR.num_out_subnet", num_out_subnet)
        self.out_subnet_dim = check_whole("SNR.out_subnet_dim", out_subnet_dim)
        self.snr_type = check_choice("SNR.snr_type", snr_type, ("trans", "aver"))
        self.zeta = check_number("SNR.zeta", zeta, above=1.0)
        self.gamma = check_number("SNR.gamma", gamma)
        if self.gamma >= 0:
            raise ConfigError(f"SNR.gamma is {gamma!r}; give a number below 0, or no switch can close")
        self.beta = check_number("SNR.beta", beta, above=0.0)
        self.use_ste = use_ste
        self.declare("log_alpha", "zeros")
        self._block_initializer = initializers.get(initializer, label="SNR.initializer")
        if snr_type == "trans":
            self.declare("kernel", "zeros", regularizer)

    def measure(self, inputs: Sequence[Tensor]) -> None:
        """Take the number and the widths of the inputs."""
        if len(inputs) == 0:
            raise ConfigError("SNR got an empty list; give at least one (B, d) tensor")
        widths = [x.shape[-1] for x in inputs]
        self.shape("log_alpha", len(inputs) * self.num_out_subnet, 1)
        if self.snr_type == "trans":
            is_new = is_lazy(self.kernel)
            self.shape("kernel", sum(widths), self.num_out_subnet * self.out_subnet_dim)
            if is_new:
                self._fill_blocks(widths)
        elif set(widths) != {self.out_subnet_dim}:
            raise ConfigError(
                f"SNR 'aver' got widths {widths}, out_subnet_dim is {self.out_subnet_dim}; make them equal"
            )

    @torch.no_grad()
    def _fill_blocks(self, widths: list[int]) -> None:
        # Each route has its own fans, so each block of the one kernel is drawn by itself.
        for rows in torch.split(self.kernel, widths, dim=0):
            for block in torch.split(rows, self.out_subnet_dim, dim=1):
                drawn = torch.empty_like(block, memory_format=torch.contiguous_format)
                self._block_initializer(drawn)
                block.copy_(drawn)

    def switches(self) -> Tensor:
        """Return z (I, O): drawn in training, their mode in evaluation."""
        if self.training:
            tiny = torch.finfo(self.log_alpha.dtype).eps
            u = torch.rand_like(self.log_alpha).clamp(tiny, 1 - tiny)
            soft = torch.sigmoid((torch.log(u) - torch.log1p(-u) + self.log_alpha) / self.beta)
        else:
            soft = torch.sigmoid(self.log_alpha)
        stretched = soft * (self.zeta - self.gamma) + self.gamma
        clipped = stretched.clamp(0.0, 1.0)
        if self.use_ste:
            clipped = stretched + (clipped - stretched).detach()
        return clipped.reshape(-1, self.num_out_subnet)

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Route the inputs."""
        switches = self.switches()
        if len(inputs) != switches.shape[0]:
            raise ConfigError(f"SNR got {len(inputs)} inputs, it was built with {switches.shape[0]}; feed that many")
        total: Tensor | None = None
        start = 0
        for x, gate in zip(inputs, switches, strict=True):
            if self.snr_type == "trans":
                block = self.kernel[start : start + x.shape[-1]]
                start += x.shape[-1]
                routed = torch.unflatten(x @ block, -1, (self.num_out_subnet, self.out_subnet_dim))
            else:
                routed = x.unsqueeze(1)
            weighted = gate.unsqueeze(1) * routed
            total = weighted if total is None else total + weighted
        return [] if total is None else list(total.unbind(1))

    def own_losses(self) -> dict[str, Tensor]:
        """Add the expected number of open switches."""
        losses = super().own_losses()
        if self.is_built:
            losses["l0"] = torch.sigmoid(self.log_alpha - self.beta * math.log(-self.gamma / self.zeta)).sum()
        return losses
