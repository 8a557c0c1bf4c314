"""Dense optimizers of the original as ``torch.optim`` ones: Adamom and RMSProp; Shampoo is in its own module.

They follow torch's contract, so schedulers (on the group's ``lr``), parameter groups and ``state_dict`` work as usual.
The optimizers of embedding rows are elsewhere: those run in the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number
from monolith.layers.dense import Dense, OptimizerFactory

__all__ = ["Adamom", "DenseOptimizer", "DenseRmsProp", "split_by_optimizer"]


class DenseOptimizer(Optimizer, ABC):
    """The base: walks the parameters that have gradients, and leaves one update to the subclass."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in self._with_gradient(group):
                self.update(weight, weight.grad, self.state[weight], group)
        return loss

    def _with_gradient(self, group: dict[str, Any]) -> Iterator[Any]:
        for weight in group["params"]:
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise ConfigError(
                    f"{type(self).__name__} got a sparse gradient for a weight of shape {tuple(weight.shape)}; "
                    "embedding rows are trained by their table"
                )
            yield weight

    @abstractmethod
    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one weight in place."""


def _decayed(weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
    return gradient.add(weight, alpha=group["weight_decay"]) if group["weight_decay"] else gradient


class Adamom(DenseOptimizer):
    """Adagrad with decay, and momentum.

    g' = g + wd · w; m ← β m + (1 − β) g'; v ← γ v + g'²; c ← γ c + 1; w ← w − lr · m / sqrt(v/c + ε), or with
    ``use_v2`` / (sqrt(v/c) + ε).

    Args:
        params: The trained parameters.
        learning_rate: lr, the group's ``lr``.
        ada_decay: γ.
        mom_decay: β.
        epsilon: ε.
        weight_decay: wd.
        use_v2: Where ε stands.

    >>> weight = nn.Parameter(torch.tensor([0.1]))
    >>> weight.grad = torch.tensor([0.12])
    >>> Adamom([weight], 0.1, ada_decay=0.99, mom_decay=0.9, weight_decay=0.01).step()
    >>> round(weight.item(), 6)
    0.09
    """

    def __init__(
        self,
        params: ParamsT,
        learning_rate: float = 5e-6,
        *,
        ada_decay: float = 0.9999,
        mom_decay: float = 0.99,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        use_v2: bool = False,
    ) -> None:
        defaults = {
            "lr": check_number("Adamom.learning_rate", learning_rate, at_least=0.0),
            "ada_decay": check_number("Adamom.ada_decay", ada_decay, at_least=0.0, at_most=1.0),
            "mom_decay": check_number("Adamom.mom_decay", mom_decay, at_least=0.0, at_most=1.0),
            "epsilon": check_number("Adamom.epsilon", epsilon, above=0.0),
            "weight_decay": check_number("Adamom.weight_decay", weight_decay, at_least=0.0),
            "use_v2": use_v2,
        }
        super().__init__(params, defaults)

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Take one step."""
        if not state:
            state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
            state["c"] = weight.new_zeros(())
        gradient = _decayed(weight, gradient, group)
        m, v, c = state["m"], state["v"], state["c"]
        m.mul_(group["mom_decay"]).add_(gradient, alpha=1 - group["mom_decay"])
        v.mul_(group["ada_decay"]).addcmul_(gradient, gradient)
        c.mul_(group["ada_decay"]).add_(1)
        mean = v / c
        size = mean.sqrt_().add_(group["epsilon"]) if group["use_v2"] else mean.add_(group["epsilon"]).sqrt_()
        weight.addcdiv_(m, size, value=-float(group["lr"]))


class DenseRmsProp(DenseOptimizer):
    """RMSProp with momentum on the scaled gradient; the dense twin of ``RmsProp`` and ``RmsPropV2``.

    g' = g + wd · w. v1: v ← v + (g'² − v)(1 − β2); m ← β1 m + lr · g' / sqrt(v + ε). v2: v ← β2 v + g'²;
    m ← β1 m + lr · g' / (sqrt(v) + ε). Then w ← w − m.

    Args:
        params: The trained parameters.
        learning_rate: lr, the group's ``lr``.
        beta1: β1.
        beta2: β2.
        epsilon: ε.
        weight_decay: wd.
        use_v2: Whether the second form is used.

    >>> weight = nn.Parameter(torch.tensor([0.1]))
    >>> weight.grad = torch.tensor([0.12])
    >>> DenseRmsProp([weight], 0.1, beta1=0.9, beta2=0.9, epsilon=0.1, weight_decay=1.0, use_v2=True).step()
    >>> round(weight.item(), 6)
    0.03125
    """

    def __init__(
        self,
        params: ParamsT,
        learning_rate: float = 5e-6,
        *,
        beta1: float = 0.99,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        use_v2: bool = False,
    ) -> None:
        defaults = {
            "lr": check_number("DenseRmsProp.learning_rate", learning_rate, at_least=0.0),
            "beta1": check_number("DenseRmsProp.beta1", beta1, at_least=0.0, at_most=1.0),
            "beta2": check_number("DenseRmsProp.beta2", beta2, at_least=0.0, at_most=1.0),
            "epsilon": check_number("DenseRmsProp.epsilon", epsilon, above=0.0),
            "weight_decay": check_number("DenseRmsProp.weight_decay", weight_decay, at_least=0.0),
            "use_v2": use_v2,
        }
        super().__init__(params, defaults)

    def update(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Take one step."""
        if not state:
            state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
        gradient = _decayed(weight, gradient, group)
        m, v, beta2 = state["m"], state["v"], group["beta2"]
        if group["use_v2"]:
            v.mul_(beta2).addcmul_(gradient, gradient)
            size = v.sqrt().add_(group["epsilon"])
        else:
            v.lerp_(gradient.square(), 1 - beta2)
            size = v.add(group["epsilon"]).sqrt_()
        m.mul_(group["beta1"]).addcdiv_(gradient, size, value=float(group["lr"]))
        weight.sub_(m)


def split_by_optimizer(model: nn.Module) -> list[tuple[OptimizerFactory | None, list[nn.Parameter]]]:
    """Group the parameters of ``model`` by the optimizer that their layer asks for.

    The first entry is None with all parameters of layers that ask for none: those of the model's dense optimizer. Each
    other one is a ``Dense.optimizer`` with the parameters of the layers that name it. A shared parameter goes with the
    first.

    >>> import functools
    >>> slow = functools.partial(torch.optim.SGD, lr=0.001)
    >>> model = nn.Sequential(Dense(4, input_dim=2), Dense(1, optimizer=slow, input_dim=4))
    >>> [(factory is slow, len(parameters)) for factory, parameters in split_by_optimizer(model)]
    [(False, 2), (True, 2)]
    """
    groups: list[tuple[OptimizerFactory | None, list[nn.Parameter]]] = [(None, [])]
    seen: set[int] = set()
    for module in model.modules():
        factory = module.optimizer if isinstance(module, Dense) else None
        # The activation of a Dense is a separate module, but its parameters belong to the layer.
        owned = module.parameters() if factory is not None else module.parameters(recurse=False)
        fresh = [parameter for parameter in owned if id(parameter) not in seen]
        seen |= {id(parameter) for parameter in fresh}
        home = next((members for known, members in groups if known is factory), None)
        if home is None:
            groups.append((factory, fresh))
        else:
            home.extend(fresh)
    return groups
