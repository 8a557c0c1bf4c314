"""Layers that weigh features or embedding columns: SeNet (per example) and iRazor (learned once for all)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number, check_whole
from monolith.layers.configured import Configured
from monolith.layers.initializers import InitializerLike
from monolith.layers.interaction import as_stack
from monolith.layers.layer import Layer
from monolith.layers.merging import MergeType, check_merge_type, merge_tensor_list
from monolith.layers.mlp import MLP
from monolith.layers.regularizers import RegularizerLike

__all__ = ["IRazor", "SeNet", "iRazor"]


class SeNet(Configured):
    """Squeeze and excite: each feature is scaled by a weight computed from the means of all features.

    squeeze_f = mean of feature f; weights = sigmoid(W2 · relu(W1 · squeeze)), or the squeeze itself without
    ``cmp_dim``; out_f = x_f · weight_f.

    Shapes: (B, n, k), or a list of n tensors (B, k_f) of any widths; out the same sizes, merged per ``out_type``.

    Args:
        num_feature: n.
        cmp_dim: Width of the hidden layer; None for no network.
        initializer: First values of its kernels; None is Glorot uniform.
        regularizer: Penalty on its kernels.
        out_type: ``"concat"``, ``"stack"`` or None for a list.
        keep_list: Whether a single result is wrapped in a list.

    >>> SeNet(2, None)([torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0]])]).tolist()
    [[2.0, 6.0, 4.0]]
    """

    def __init__(
        self,
        num_feature: int,
        cmp_dim: int | None,
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
        out_type: MergeType | str | None = "concat",
        keep_list: bool = False,
    ) -> None:
        super().__init__()
        self.num_feature = check_whole("SeNet.num_feature", num_feature)
        self.out_type = check_merge_type("SeNet.out_type", out_type)
        self.keep_list = keep_list
        self.excite: MLP | None = None
        if cmp_dim is not None:
            self.excite = MLP(
                [check_whole("SeNet.cmp_dim", cmp_dim), num_feature],
                ["relu", "sigmoid"],
                initializer,
                kernel_regularizer=regularizer,
                input_dim=num_feature,
            )

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
        """Scale the features."""
        count = features.shape[1] if isinstance(features, Tensor) else len(features)
        if count != self.num_feature:
            raise ConfigError(f"SeNet got {count} features, num_feature is {self.num_feature}; feed that many")
        if isinstance(features, Tensor):
            weights = self._weights(as_stack("the input of SeNet", features).mean(dim=2))
            return merge_tensor_list(features * weights.unsqueeze(2), self.out_type, keep_list=self.keep_list)
        weights = self._weights(torch.stack([feature.mean(dim=1) for feature in features], dim=1))
        scaled = [feature * weights[:, index : index + 1] for index, feature in enumerate(features)]
        return merge_tensor_list(scaled, self.out_type, keep_list=self.keep_list)

    def _weights(self, squeezed: Tensor) -> Tensor:
        return squeezed if self.excite is None else self.excite(squeezed)


class IRazor(Layer):
    """A learned soft choice of each feature's embedding width. Also named ``iRazor``, as in its paper.

    p = softmax(logits / t) per feature over the widths in ``nas_space``; the rigid mask of width i has ones on columns
    space[i−1] to space[i] − 1 (none for the width 0); out = X ∘ (p · masks). ``feature_weight`` adds the layer loss
    Σ_f weight_f · Σ_columns mask.

    Shapes: X (B, n, k) or a list of n (B, k), where k is the last of ``nas_space``; out the same size, merged per
    ``out_type``.

    Args:
        nas_space: Widths to choose from, rising, from 0 to k.
        t: Temperature.
        initializer: First values of the logits; None is Glorot uniform.
        regularizer: Penalty on the logits.
        feature_weight: Cost of a column of each feature, n numbers.
        out_type: ``"concat"``, ``"stack"`` or None for a list.
        keep_list: Whether a single result is wrapped in a list.

    >>> IRazor([0, 1, 3], initializer="zeros", out_type="stack")(torch.ones(1, 2, 3))[0, 0].tolist()
    [0.3333333432674408, 0.3333333432674408, 0.3333333432674408]
    """

    logits: Tensor
    rigid_masks: Tensor

    def __init__(
        self,
        nas_space: Sequence[int],
        t: float = 0.05,
        initializer: InitializerLike = None,
        regularizer: RegularizerLike = None,
        feature_weight: Sequence[float] | None = None,
        out_type: MergeType | str | None = "concat",
        keep_list: bool = False,
    ) -> None:
        super().__init__()
        self.nas_space = list(nas_space)
        is_rising = all(low < high for low, high in zip(self.nas_space, self.nas_space[1:], strict=False))
        if len(self.nas_space) < 2 or self.nas_space[0] != 0 or not is_rising:
            raise ConfigError(f"IRazor.nas_space is {self.nas_space}; give rising widths from 0, such as [0, 2, 5, 10]")
        self.temperature = check_number("IRazor.t", t, above=0.0)
        self.out_type = check_merge_type("IRazor.out_type", out_type)
        self.keep_list = keep_list
        masks = torch.zeros(len(self.nas_space), self.nas_space[-1])
        for row in range(1, len(self.nas_space)):
            masks[row, self.nas_space[row - 1] : self.nas_space[row]] = 1
        self.register_buffer("rigid_masks", masks, persistent=False)
        self.declare("logits", initializer, regularizer)
        self.feature_weight: list[float] | None = None
        if feature_weight is not None:
            self.feature_weight = [check_number("IRazor.feature_weight", cost) for cost in feature_weight]

    def measure(self, features: Tensor | Sequence[Tensor]) -> None:
        """Take the number of features."""
        x = as_stack("the input of IRazor", features)
        if x.shape[2] != self.nas_space[-1]:
            raise ConfigError(f"IRazor got features of width {x.shape[2]}; nas_space ends in {self.nas_space[-1]}")
        if self.feature_weight is not None and len(self.feature_weight) != x.shape[1]:
            raise ConfigError(
                f"IRazor.feature_weight has {len(self.feature_weight)} numbers for {x.shape[1]} features; give one each"
            )
        self.shape("logits", x.shape[1], len(self.nas_space))

    def mask(self) -> Tensor:
        """Return the soft mask (n, k)."""
        return torch.softmax(self.logits / self.temperature, dim=1) @ self.rigid_masks

    def forward(self, features: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
        """Mask the features."""
        x = as_stack("the input of IRazor", features)
        return merge_tensor_list(x * self.mask(), self.out_type, keep_list=self.keep_list)

    def own_losses(self) -> dict[str, Tensor]:
        """Add the expected cost of the chosen widths."""
        losses = super().own_losses()
        if self.feature_weight is not None and self.is_built:
            mask = self.mask()
            costs = torch.tensor(self.feature_weight, dtype=mask.dtype, device=mask.device)
            losses["expected_width"] = (costs * mask.sum(dim=1)).sum()
        return losses


iRazor = IRazor
