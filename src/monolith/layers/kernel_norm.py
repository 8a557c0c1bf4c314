"""Weight normalisation of a kernel: a direction per output column, and a length that may be trained.

Used by every layer with a kernel norm; knows tensors only.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["column_norms", "normalized_kernel"]

# On the squared norm, as in the original: a column of zeros stays zero instead of becoming NaN.
_SQUARED_NORM_FLOOR = 1e-6


def column_norms(kernel: Tensor) -> Tensor:
    """Return the length of each column.

    Shapes: ``kernel`` is (in, out); the result is (out,).

    >>> column_norms(torch.tensor([[3.0, 0.0], [4.0, 2.0]])).tolist()
    [5.0, 2.0]
    """
    return kernel.square().sum(dim=0).sqrt()


def normalized_kernel(kernel: Tensor, scale: Tensor | None = None) -> Tensor:
    """Scale each column to length 1, or to ``scale`` if that is given.

    W' = W · rsqrt(max(Σ_rows W², 1e-6)) · scale. Shapes: ``kernel`` and the result (in, out), ``scale`` (out,).

    >>> normalized_kernel(torch.tensor([[3.0, 0.0], [4.0, 2.0]])).sum(0).allclose(torch.tensor([1.4, 1.0]))
    True
    """
    squared = kernel.square().sum(dim=0, keepdim=True)
    unit = kernel * torch.rsqrt(squared.clamp_min(_SQUARED_NORM_FLOOR))
    return unit if scale is None else unit * scale
