"""``BaseLayer``: a layer built from ``Params``, which builds its children from theirs.

For models in the original's style; other layers take plain arguments. For its losses see
:func:`monolith.layers.layer_losses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.core.nested_map import NestedMap
from monolith.core.params import InstantiableParams, Params
from monolith.layers.layer import Layer, LossRecord, layer_losses

__all__ = ["BaseLayer"]


class BaseLayer(Layer):
    """A layer with parameters ``p``, among them ``name``, and children that are attributes.

    >>> class Double(BaseLayer):
    ...     @classmethod
    ...     def params(cls):
    ...         p = super().params()
    ...         p.define("factor", 2, "The factor.")
    ...         return p
    ...     def fprop(self, x):
    ...         return x * self.p.factor
    >>> class Twice(BaseLayer):
    ...     def __init__(self, params):
    ...         super().__init__(params)
    ...         self.create_children("doubles", [Double.params(), Double.params().set(factor=3)])
    ...     def fprop(self, x):
    ...         for double in self.doubles:
    ...             x = double(x)
    ...         return x
    >>> Twice.params().instantiate()(5)
    30
    """

    def __init__(self, params: Params) -> None:
        super().__init__()
        if not params.name:
            raise ConfigError(f"the parameter name of {type(self).__name__} is {params.name!r}; give it one")
        self.p = params
        self._recorded = LossRecord()

    @classmethod
    def params(cls) -> InstantiableParams:
        """Return the parameters; a subclass calls this and defines its own."""
        p = InstantiableParams(cls)
        p.define("name", cls.__name__, "Name of the layer.")
        return p

    @property
    def sub_layers(self) -> NestedMap:
        """The children by name; those made together are a list. ``children()`` is torch's method."""
        return NestedMap(
            {
                name: list(module) if isinstance(module, nn.ModuleList) else module
                for name, module in self._modules.items()
                if module is not None
            }
        )

    def create_child(self, name: str, params: InstantiableParams) -> None:
        """Make a child and set it as the attribute ``name``. A child without a name gets the name of this layer.

        Raises:
            ConfigError: ``name`` is taken, or cannot be an attribute.
        """
        self._check_free(name)
        self.add_module(name, _make(params, self.p.name))

    def create_children(self, name: str, params: Sequence[InstantiableParams]) -> None:
        """Make several children, which become the list ``name``. Those without a name are called ``<name>_<index>``.

        Raises:
            ConfigError: ``name`` is taken, or cannot be an attribute.
        """
        self._check_free(name)
        self.add_module(name, nn.ModuleList(_make(each, f"{name}_{index}") for index, each in enumerate(params)))

    def fprop(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; calling the layer calls this."""
        raise NotImplementedError(f"Abstract method of {self}")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Forget the losses of the last call, and call :meth:`fprop`."""
        self._recorded.values = {}
        return self.fprop(*args, **kwargs)

    def add_layer_loss(self, name: str, loss: Tensor) -> None:
        """Record a loss of this call of ``fprop``; those of one name are added up."""
        recorded = self._recorded.values
        recorded[name] = recorded[name] + loss if name in recorded else loss

    def get_layer_loss(self) -> dict[str, Tensor]:
        """Return the losses of this layer and all inside it, by path and name."""
        return layer_losses(self)

    def own_losses(self) -> dict[str, Tensor]:
        """Return the losses, including those that ``fprop`` recorded."""
        return super().own_losses() | self._recorded.values

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # A property whose getter failed with an AttributeError ends here too: let its own error be seen.
            if isinstance(found := getattr(type(self), name, None), property) and found.fget is not None:
                return found.fget(self)
            raise AttributeError(f"{name} is not a sub-layer of {type(self).__name__}.") from None

    def _check_free(self, name: str) -> None:
        NestedMap.CheckKey(name)
        if hasattr(self, name):
            raise ConfigError(f"{type(self).__name__} has {name!r} already; give the child another name")


def _make(params: InstantiableParams, name: str) -> Any:
    own = params.copy()
    if "name" in own and not own.name:
        own.name = name
    return own.instantiate()
