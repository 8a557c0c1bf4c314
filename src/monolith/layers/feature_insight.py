"""How much each feature adds to the first dense layer of a model: a diagnosis, not a layer.

Knows a product and its segments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_dims, check_rank

__all__ = ["feature_insight"]


def feature_insight(x: Tensor, weight: Tensor, segment_sizes: Sequence[int], aggregate: bool = False) -> Tensor:
    """Split x · weight into the parts that come from each segment of x.

    Part s is x[:, s] · weight[s, :]; the parts sum to the whole product. ``aggregate`` gives the squared length of each
    part instead.

    Shapes: ``x`` (B, ΣE), ``weight`` (ΣE, K), ``segment_sizes`` n widths that sum to ΣE; the result is (B, n·K), or
    (B, n) with ``aggregate``.

    >>> feature_insight(torch.ones(1, 3), torch.ones(3, 2), [1, 2]).tolist()
    [[1.0, 1.0, 2.0, 2.0]]
    >>> feature_insight(torch.ones(1, 3), torch.ones(3, 2), [1, 2], aggregate=True).tolist()
    [[2.0, 8.0]]
    """
    sizes = check_dims("segment_sizes", segment_sizes)
    check_rank("x", x, 2, "(B, ΣE)")
    if sum(sizes) != x.shape[1] or sum(sizes) != weight.shape[0]:
        raise ConfigError(
            f"segment_sizes sum to {sum(sizes)}, x has width {x.shape[1]} and weight {weight.shape[0]} rows; "
            "all three must agree"
        )
    parts = [a @ b for a, b in zip(torch.split(x, sizes, dim=1), torch.split(weight, sizes, dim=0), strict=True)]
    stacked = torch.stack(parts, dim=1)
    return stacked.square().sum(dim=2) if aggregate else stacked.flatten(1)
