"""``KeptBuffers``: the buffers of a model as they were before a step, such as the running statistics of batch norm.

A forward pass changes them before the loss is known. ``restore`` takes these changes back when the step is refused.
Large buffers that no step has changed are not copied again, because a model may hold large constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = ["KeptBuffers"]

_LARGE = 1 << 16
"""Values of a buffer from which on it may be a constant that is not copied."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """One buffer from before a step."""

    home: dict[str, Tensor | None]
    name: str
    value: Tensor
    version: int
    copy: Tensor | None
    """None = a large constant so far."""

    @property
    def has_changed(self) -> bool:
        if self.home.get(self.name) is not self.value or self.value._version != self.version:
            return True
        # Torch's batch norm changes its statistics without a new version.
        return self.copy is not None and not torch.equal(self.copy, self.value)


class KeptBuffers:
    """Keeps the buffers of one model.

    A buffer that gets its shape from the first batch has no values before the first step, and keeps those of it.

    Args:
        model: The model; its modules stay the same.
    """

    def __init__(self, model: nn.Module) -> None:
        self._homes = [module._buffers for module in model.modules() if module._buffers]
        self._constants: set[tuple[int, str]] = set()
        self._kept: list[_Kept] = []

    def keep(self) -> None:
        """Keep the buffers before a step."""
        self._kept = []
        for home in self._homes:
            for name, value in home.items():
                if value is not None and not is_lazy(value):
                    is_constant = (id(home), name) in self._constants
                    copy = None if is_constant else value.detach().clone()
                    self._kept.append(_Kept(home, name, value, value._version, copy))

    def release(self) -> None:
        """Release the copies after a step that is applied."""
        for each in self._kept:
            if each.value.numel() < _LARGE:
                continue
            place = (id(each.home), each.name)
            if each.has_changed:
                self._constants.discard(place)
            else:
                self._constants.add(place)
        self._kept = []

    def restore(self) -> None:
        """Give the buffers the values from before the step."""
        for each in self._kept:
            if each.copy is not None:
                each.value.data.copy_(each.copy)
            each.home[each.name] = each.value
        self._kept = []
