"""Element-wise pooling of a list of equal tensors. Layouts pool embedding rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.layers.configured import Configured

__all__ = ["AvgPooling", "MaxPooling", "SumPooling"]


class _Pooling(Configured, ABC):
    def forward(self, tensors: Sequence[Tensor]) -> Tensor:
        """Pool the list; a single tensor is returned as it is."""
        name = type(self).__name__
        if len(tensors) == 0:
            raise ConfigError(f"{name} got an empty list; give at least one tensor")
        for tensor in tensors[1:]:
            if tensor.shape != tensors[0].shape:
                raise ConfigError(
                    f"{name} got shapes {tuple(tensors[0].shape)} and {tuple(tensor.shape)}; all must be the same"
                )
        return tensors[0] if len(tensors) == 1 else self.pool(torch.stack(list(tensors)))

    @abstractmethod
    def pool(self, stacked: Tensor) -> Tensor:
        """Pool over the first dimension."""


class SumPooling(_Pooling):
    """y = Σ x_i.

    Shapes: a list of equal tensors; y the same shape.

    >>> SumPooling()([torch.ones(2), torch.ones(2)]).tolist()
    [2.0, 2.0]
    """

    def pool(self, stacked: Tensor) -> Tensor:
        """Sum over the first axis."""
        return stacked.sum(dim=0)


class AvgPooling(_Pooling):
    """y = Σ x_i / n.

    Shapes: a list of n equal tensors; y the same shape.

    >>> AvgPooling()([torch.zeros(2), torch.ones(2)]).tolist()
    [0.5, 0.5]
    """

    def pool(self, stacked: Tensor) -> Tensor:
        """Average over the first axis."""
        return stacked.mean(dim=0)


class MaxPooling(_Pooling):
    """y = the largest x_i, element by element.

    Shapes: a list of equal tensors; y the same shape.

    >>> MaxPooling()([torch.zeros(2), torch.ones(2)]).tolist()
    [1.0, 1.0]
    """

    def pool(self, stacked: Tensor) -> Tensor:
        """Take the largest over the first axis."""
        return stacked.amax(dim=0)
