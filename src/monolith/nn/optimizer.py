"""``TableOptimizer``: explicit updates of table modules, as an optimizer of torch.

Backward adds gradients to one stand-in parameter per table, whose ``grad`` has a row per distinct id. Clipping,
``GradScaler`` and schedulers therefore work as on any parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.embedding.learning_rates import ConstantRate
from monolith.nn.module import TableModule
from monolith.nn.table_set import DistinctGradients, TableSet

__all__ = ["TableOptimizer"]


class TableOptimizer(torch.optim.Optimizer):
    """Applies the gradients of table modules at ``step`` instead of in ``backward``.

    For gradient accumulation, clipping, ``torch.amp.GradScaler`` and schedulers of torch. There is one parameter group
    per table; its ``lr`` starts at the rate of the table's optimizer.

    >>> import monolith as mt, torch
    >>> bag = mt.nn.EmbeddingBag(1, optimizer=mt.Sgd(0.5), initializer=mt.Zeros(), mode="sum")
    >>> optimizer = mt.nn.TableOptimizer(bag)
    >>> for _ in range(2):
    ...     bag(torch.tensor([[7]])).sum().backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    >>> bag(torch.tensor([[7]])).tolist()
    [[-1.0]]

    Args:
        module: A module; all table modules in it are updated by this optimizer from now on.

    Raises:
        ConfigError: The module has no tables, another optimizer has them, or a table has its own schedule.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        sets = [each.table_set for each in module.modules() if isinstance(each, TableModule)]
        if not sets:
            raise ConfigError(f"module is a {type(module).__name__} without tables; give one that contains mt.nn")
        self._gradients = [(tables, _Gradients(tables)) for tables in sets]
        groups = [group for _, gradients in self._gradients for group in gradients.groups()]
        super().__init__(groups, {})
        for tables, gradients in self._gradients:
            tables.sink = gradients

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The stand-in parameters, for ``torch.nn.utils.clip_grad_norm_``."""
        return [each for _, gradients in self._gradients for each in gradients.parameters.values()]

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients. They are always set to None: zeros would keep the ids of all steps so far."""
        super().zero_grad(set_to_none=True)

    @override
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step per distinct id with a gradient; the gradients stay until ``zero_grad``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rates = iter(group["lr"] for group in self.param_groups)
        for _, gradients in self._gradients:
            gradients.apply({name: float(next(rates)) for name in gradients.parameters})
        return loss


class _Gradients:
    """The gradients of one module's tables since ``zero_grad``: the ids here, their rows in parameters."""

    def __init__(self, tables: TableSet) -> None:
        if tables.sink is not None:
            raise ConfigError("another TableOptimizer updates this module; use that one")
        self._tables = tables
        self.parameters = {
            name: torch.nn.Parameter(torch.zeros(0, spec.dim, device=tables.device))
            for name, spec in tables.specs.items()
        }
        self._pending: dict[str, DistinctGradients] = {}

    def groups(self) -> list[dict[str, Any]]:
        """Return one parameter group per table."""
        groups = []
        for name, spec in self._tables.specs.items():
            rate = spec.slices[0].rate
            if not isinstance(rate, ConstantRate):
                raise ConfigError(
                    f"learning rate of table {name!r} is {rate!r}, expected a number; use a scheduler of torch for the "
                    "TableOptimizer"
                )
            groups.append({"params": [self.parameters[name]], "lr": rate(0), "table": name})
        return groups

    def add(self, gradients: Mapping[str, DistinctGradients]) -> None:
        """Add the gradients of a backward pass."""
        for name, new in gradients.items():
            parameter = self.parameters[name]
            if parameter.grad is not None:
                new = _merge(replace(self._pending[name], grads=parameter.grad), new)
            self._pending[name] = new
            parameter.grad = None
            parameter.data = torch.zeros((1, 1), device=new.grads.device).expand(new.grads.shape)
            parameter.grad = new.grads

    def apply(self, rates: Mapping[str, float]) -> None:
        """Take one optimizer step per id of every table that has gradients."""
        gradients = {
            name: replace(self._pending[name], grads=parameter.grad)
            for name, parameter in self.parameters.items()
            if parameter.grad is not None
        }
        if gradients:
            self._tables.push(gradients, rates)


def _merge(one: DistinctGradients, other: DistinctGradients) -> DistinctGradients:
    """Sum the gradients and the counts of equal ids."""
    ids, places = torch.unique(torch.cat([one.ids, other.ids]), return_inverse=True)
    rows = torch.cat([one.grads, other.grads])
    counts = torch.cat([one.counts, other.counts])
    return DistinctGradients(
        ids,
        torch.zeros((len(ids), rows.shape[1]), device=rows.device).index_add_(0, places, rows),
        torch.zeros_like(ids).index_add_(0, places, counts),
    )
