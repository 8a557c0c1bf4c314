"""Interactions of feature pairs: FM, GroupInt (FFM), AllInt, CDot, AutoInt.

Inputs are embeddings of equal width, as (B, n, k) or as a list of (B, k). Crosses of the whole input vector are in
:mod:`monolith.layers.cross`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_choice, check_dims, check_rank, check_whole
from monolith.layers._pairs import sum_pairs
from monolith.layers.activations import ActivationLike
from monolith.layers.configured import Configured
from monolith.layers.dense import Dense
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.merging import MergeType, check_merge_type, merge_tensor_list
from monolith.layers.mlp import MLP
from monolith.layers.regularizers import RegularizerLike

__all__ = ["AllInt", "AutoInt", "CDot", "FFM", "FM", "GroupInt", "ffm"]

_KINDS = ("multiply", "dot")


def ffm(left: Tensor, right: Tensor, dim_size: int, int_type: Literal["multiply", "dot"] = "multiply") -> Tensor:
    """Cross every left feature with every right one, left-major.

    Shapes: ``left`` (B, L·k), ``right`` (B, R·k) with k = ``dim_size``; the result is (B, L·R·k) of products, or
    (B, L·R) of inner products.

    >>> ffm(torch.ones(1, 4), torch.ones(1, 6), dim_size=2, int_type="dot").tolist()
    [[2.0, 2.0, 2.0, 2.0, 2.0, 2.0]]
    """
    check_choice("int_type", int_type, _KINDS)
    check_whole("dim_size", dim_size)
    for label, tensor in (("left", left), ("right", right)):
        check_rank(label, tensor, 2, "(B, n·k)")
        if tensor.shape[1] % dim_size:
            raise ConfigError(f"{label} has width {tensor.shape[1]}, no multiple of dim_size {dim_size}; check both")
    return _cross(torch.unflatten(left, 1, (-1, dim_size)), torch.unflatten(right, 1, (-1, dim_size)), int_type)


def _cross(left: Tensor, right: Tensor, int_type: str) -> Tensor:
    if int_type == "dot":
        return torch.matmul(left, right.transpose(1, 2)).flatten(1)
    return (left.unsqueeze(2) * right.unsqueeze(1)).flatten(1)


def as_stack(label: str, features: Tensor | Sequence[Tensor]) -> Tensor:
    """Return (B, n, k) from that, or from a list of (B, k)."""
    if isinstance(features, Tensor):
        check_rank(label, features, 3, "(B, n, k) or a list of (B, k)")
        return features
    if len(features) == 0:
        raise ConfigError(f"{label} is an empty list; give at least one (B, k) tensor")
    widths = {tensor.shape[-1] for tensor in features}
    if len(widths) > 1:
        raise ConfigError(f"{label} has features of widths {sorted(widths)}; all must have the same width")
    return torch.stack(list(features), dim=1)


class FM(Configured):
    """Factorisation machine: all pairs of features together, ½ · [(Σ x_i)² − Σ x_i²] = Σ_{i<j} x_i ∘ x_j.

    Shapes: X (B, n, k) or a list of n (B, k); out (B, 1), the sum of all inner products, or (B, k) without ``pooled``.

    Args:
        pooled: Whether the k columns are summed.

    >>> FM()(torch.tensor([[[1.0, 2.0], [2.0, 4.0]]])).tolist()
    [[10.0]]
    """

    def __init__(self, pooled: bool = True) -> None:
        super().__init__()
        self.pooled = pooled

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor:
        """Sum the products of all pairs."""
        return self.with_features(features)[0]

    def with_features(self, features: Tensor | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the sum and the features, (B, n, k), for further layers.

        Layers that take these features instead of the given ones make the backward pass faster: one pass over the
        features computes the gradient of the pairs and adds that of all other layers.

        >>> fm, tower = FM(), MLP([1])
        >>> pairs, vectors = fm.with_features(torch.ones(2, 3, 4))
        >>> (pairs + tower(vectors.flatten(1))).shape
        torch.Size([2, 1])
        """
        return sum_pairs(as_stack("the input of FM", features), self.pooled)


class GroupInt(Configured):
    """Every left feature times every right one, with optional attention over the pairs. Also named ``FFM``.

    ``multiply``: l_i ∘ r_j, (B, L·R·k); ``dot``: l_i · r_j, (B, L·R); pairs are left-major. With ``use_attention``
    (``multiply`` only) each product is scaled by an MLP of itself.

    Shapes: left and right are lists of (B, k), or (B, L, k) and (B, R, k).

    Args:
        interaction_type: ``"multiply"`` or ``"dot"``.
        use_attention: Whether pairs are weighted.
        attention_units: Widths of the attention MLP; the last is 1.
        activation: Activation of its hidden layers.
        initializer: First values of its kernels; None is Glorot normal.
        regularizer: Penalty on its kernels.

    >>> left, right = torch.ones(8, 10, 4), torch.ones(8, 12, 4)
    >>> GroupInt()(left, right).shape, GroupInt("dot")(left, right).shape
    (torch.Size([8, 480]), torch.Size([8, 120]))
    """

    def __init__(
        self,
        interaction_type: Literal["multiply", "dot"] = "multiply",
        use_attention: bool = False,
        attention_units: Sequence[int] | None = None,
        activation: ActivationLike = "relu",
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
    ) -> None:
        super().__init__()
        self.interaction_type = check_choice("GroupInt.interaction_type", interaction_type, _KINDS)
        self.attention: MLP | None = None
        if use_attention:
            if interaction_type != "multiply":
                raise ConfigError("GroupInt.use_attention needs interaction_type 'multiply', got 'dot'; change one")
            units = check_dims("GroupInt.attention_units", attention_units)
            if units[-1] != 1:
                raise ConfigError(f"GroupInt.attention_units is {units}; the last width must be 1, a weight per pair")
            first_values = "glorot_normal" if initializer is None else initializer
            self.attention = MLP(units, activation, first_values, kernel_regularizer=regularizer)

    def forward(self, left: Tensor | Sequence[Tensor], right: Tensor | Sequence[Tensor]) -> Tensor:
        """Cross the two groups."""
        lefts, rights = as_stack("left of GroupInt", left), as_stack("right of GroupInt", right)
        if lefts.shape[2] != rights.shape[2]:
            raise ConfigError(
                f"GroupInt got widths {lefts.shape[2]} (left) and {rights.shape[2]} (right); they must be the same"
            )
        crossed = _cross(lefts, rights, self.interaction_type)
        if self.attention is None:
            return crossed
        pairs = torch.unflatten(crossed, 1, (-1, lefts.shape[2]))
        weighted: Tensor = pairs * self.attention(pairs)
        return weighted.flatten(1)


FFM = GroupInt


class AllInt(Layer):
    """All features with a compressed set of all: out = X · (Xᵀ C + b).

    Shapes: X (B, n, k) or a list of n (B, k); C (n, c), b (c,); out (B, n, c), then merged per ``out_type``.

    Args:
        cmp_dim: c, the number of compressed features.
        initializer: First values of C; None is Glorot normal.
        regularizer: Penalty on C and b.
        use_bias: Whether there is a b; it starts as zeros.
        out_type: ``"concat"``, ``"stack"`` or None for a list.
        keep_list: Whether a single result is wrapped in a list.

    >>> AllInt(4)(torch.ones(2, 3, 5)).shape
    torch.Size([2, 12])
    """

    kernel: Tensor
    bias: Tensor

    def __init__(
        self,
        cmp_dim: int,
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
        use_bias: bool = True,
        out_type: MergeType | str | None = "concat",
        keep_list: bool = False,
    ) -> None:
        super().__init__()
        self.cmp_dim = check_whole("AllInt.cmp_dim", cmp_dim)
        self.use_bias = use_bias
        self.out_type = check_merge_type("AllInt.out_type", out_type)
        self.keep_list = keep_list
        self.declare("kernel", "glorot_normal" if initializer is None else initializer, regularizer)
        if use_bias:
            self.declare("bias", "zeros", regularizer)
            self.shape("bias", cmp_dim)

    def measure(self, features: Tensor | Sequence[Tensor]) -> None:
        """Take the number of features."""
        self.shape("kernel", as_stack("the input of AllInt", features).shape[1], self.cmp_dim)

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
        """Compute out."""
        x = as_stack("the input of AllInt", features)
        compressed = x.transpose(1, 2) @ self.kernel
        if self.use_bias:
            compressed = compressed + self.bias
        return merge_tensor_list(x @ compressed, self.out_type, keep_list=self.keep_list)


class CDot(Layer):
    """Inner products of features with a compressed projection of them all.

    proj = Xᵀ P; comp = MLP(flat proj); crossed = X · comp as (k, p); out = [crossed, comp].

    Shapes: X (B, n, k) or a list of n (B, k); P (n, p); comp (B, k·p); out (B, n·p + k·p).

    Args:
        project_dim: p.
        compress_units: Hidden widths of the MLP; its last layer of k·p is added. May be empty.
        activation: Activation of its hidden layers.
        initializer: First values of P and of the kernels; None is Glorot normal.
        regularizer: Penalty on P and on the kernels.

    >>> CDot(2, [8])(torch.ones(4, 3, 5)).shape
    torch.Size([4, 16])
    """

    projection: Tensor

    def __init__(
        self,
        project_dim: int,
        compress_units: Sequence[int],
        activation: ActivationLike = "relu",
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
    ) -> None:
        super().__init__()
        self.project_dim = check_whole("CDot.project_dim", project_dim)
        first_values = "glorot_normal" if initializer is None else initializer
        self.declare("projection", first_values, regularizer)
        self.hidden: MLP | None = None
        if len(compress_units) > 0:
            widths = check_dims("CDot.compress_units", compress_units)
            chosen = [activation] * len(widths)
            self.hidden = MLP(widths, chosen, first_values, kernel_regularizer=regularizer)
        # Its width, k·p, is known when the first input is.
        self.expand = Dense(
            None,
            kernel_initializer=first_values,
            kernel_regularizer=regularizer,
            allow_kernel_norm=True,
            kernel_norm_trainable=True,
        )

    def measure(self, features: Tensor | Sequence[Tensor]) -> None:
        """Take the number and the width of the features."""
        x = as_stack("the input of CDot", features)
        self.shape("projection", x.shape[1], self.project_dim)
        self.expand.units = x.shape[2] * self.project_dim

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor:
        """Compute out."""
        x = as_stack("the input of CDot", features)
        compressed: Tensor = (x.transpose(1, 2) @ self.projection).flatten(1)
        if self.hidden is not None:
            compressed = self.hidden(compressed)
        compressed = self.expand(compressed)
        crossed = x @ torch.unflatten(compressed, 1, (-1, self.project_dim))
        return torch.cat([crossed.flatten(1), compressed], dim=1)


class AutoInt(Configured):
    """Self-attention without weights: X ← softmax(X Xᵀ) · X, ``layer_num`` times.

    Shapes: X (B, n, k) or a list of n (B, k); out the same size, merged per ``out_type``.

    Args:
        layer_num: How many times.
        out_type: ``"concat"``, ``"stack"`` or None for a list.
        keep_list: Whether a single result is wrapped in a list.

    >>> AutoInt(out_type="stack")(torch.ones(1, 2, 2)).tolist()
    [[[1.0, 1.0], [1.0, 1.0]]]
    """

    def __init__(
        self, layer_num: int = 1, out_type: MergeType | str | None = "concat", keep_list: bool = False
    ) -> None:
        super().__init__()
        self.layer_num = check_whole("AutoInt.layer_num", layer_num)
        self.out_type = check_merge_type("AutoInt.out_type", out_type)
        self.keep_list = keep_list

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
        """Attend and merge."""
        x = as_stack("the input of AutoInt", features)
        for _ in range(self.layer_num):
            x = torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x
        return merge_tensor_list(x, self.out_type, keep_list=self.keep_list)
