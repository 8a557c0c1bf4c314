"""DMR: the match of a user's history to an item, with attention by position."""

from __future__ import annotations

import torch
from torch import Tensor

from monolith.layers._arguments import check_rank, check_whole
from monolith.layers.activations import ActivationLike
from monolith.layers.dense import Dense
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = ["DMR_U2I"]


class DMR_U2I(Layer):
    """s = seq · We + pos + b; α = softmax over T of s · z; u = Σ_t α_t seq_t; out = Dense(u) ∘ item.

    Shapes: item (B, Ei), user_seq (B, T, Eu), out (B, Ei); We (Eu, c), pos (T, c), b (c,), z (c, 1). T is fixed by the
    first input: positions have their own weights.

    Args:
        cmp_dim: c.
        activation: Of the dense layer; None is linear.
        initializer: First values of We, pos and the dense kernel; b starts as zeros, z as ones.
        regularizer: Penalty on We, pos, z and the dense kernel.

    >>> DMR_U2I(4)(torch.ones(2, 3), torch.ones(2, 6, 5)).shape
    torch.Size([2, 3])
    """

    embedding_kernel: Tensor
    position: Tensor
    bias: Tensor
    score_kernel: Tensor

    def __init__(
        self,
        cmp_dim: int,
        activation: ActivationLike = "prelu",
        initializer: InitializerLike = "glorot_uniform",
        regularizer: RegularizerLike = None,
    ) -> None:
        super().__init__()
        self.cmp_dim = check_whole("DMR_U2I.cmp_dim", cmp_dim)
        self.declare("embedding_kernel", initializer, regularizer)
        self.declare("position", initializer, regularizer)
        self.declare("bias", "zeros")
        self.declare("score_kernel", "ones", regularizer)
        self.shape("bias", cmp_dim)
        self.shape("score_kernel", cmp_dim, 1)
        # Its width, Ei, is known when the first input is.
        self.match = Dense(None, activation, kernel_initializer=initializer, kernel_regularizer=regularizer)

    def measure(self, item: Tensor, user_seq: Tensor) -> None:
        """Take the widths and the length of the history."""
        check_rank("item of DMR_U2I", item, 2, "(B, Ei)")
        check_rank("user_seq of DMR_U2I", user_seq, 3, "(B, T, Eu)")
        self.shape("embedding_kernel", user_seq.shape[2], self.cmp_dim)
        self.shape("position", user_seq.shape[1], self.cmp_dim)
        self.match.units = item.shape[1]

    def forward(self, item: Tensor, user_seq: Tensor) -> Tensor:
        """Compute out."""
        scores = (user_seq @ self.embedding_kernel + self.position + self.bias) @ self.score_kernel
        user = (torch.softmax(scores, dim=1) * user_seq).sum(dim=1)
        matched: Tensor = self.match(user)
        return matched * item
