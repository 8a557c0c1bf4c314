"""Noise instead of zeros for ids without a row."""

from __future__ import annotations

import torch
from torch import Tensor

from monolith.core.errors import ConfigError

__all__ = ["noise_for_unknown"]

_NO_LENGTH = 1e-10


def noise_for_unknown(rows: Tensor, low: float, high: float, generator: torch.Generator | None = None) -> Tensor:
    """Replace rows whose length is below 1e-10 by uniform numbers from ``low`` to ``high``.

    Shapes: (..., dim) in and out. A replaced row has no gradient.

    >>> noise_for_unknown(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), 1.0, 1.0).tolist()
    [[1.0, 1.0], [3.0, 4.0]]

    Raises:
        ConfigError: ``low`` is above ``high``.
    """
    if not low <= high:
        raise ConfigError(f"noise goes from {low} to {high}; the first must not be above the second")
    is_unknown = torch.linalg.vector_norm(rows.detach(), dim=-1, keepdim=True) < _NO_LENGTH
    uniform = torch.rand(rows.shape, generator=generator, dtype=rows.dtype, device=rows.device)
    return torch.where(is_unknown, low + (high - low) * uniform, rows)
