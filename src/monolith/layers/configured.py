"""``Configured``: the base of every layer. Its constructor arguments are available as ``Params`` and as a dict."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Self

from torch import nn

from monolith.core.errors import ConfigError
from monolith.core.params import InstantiableParams, params_of

__all__ = ["Configured"]


class Configured(nn.Module):
    """A module whose constructor's arguments can be read, changed and used again.

    >>> from monolith.layers import Dense
    >>> p = Dense.params().set(units=4, activation="relu")
    >>> p.copy().set(use_bias=False).instantiate().use_bias
    False
    >>> Dense.from_config(p.instantiate().get_config()).units
    4
    """

    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keep the arguments; ``__init__`` gets them next."""
        made = super().__new__(cls)
        # Past torch's own __setattr__, which must not be used before its __init__.
        made.__dict__["_given"] = (args, kwargs)
        return made

    @classmethod
    def params(cls) -> InstantiableParams:
        """Return the constructor's arguments as parameters, with their defaults; ``instantiate`` makes the layer."""
        return params_of(cls)

    def get_config(self) -> dict[str, Any]:
        """Return copies of all arguments that the constructor was given or took from its defaults.

        Raises:
            ConfigError: Some were given to ``*args``, which have no names.
        """
        args, kwargs = self._given
        signature = inspect.signature(self.__init__)  # type: ignore[misc]
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        config: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                config |= value
            elif kind is not inspect.Parameter.VAR_POSITIONAL:
                config[name] = value
            elif value:
                raise ConfigError(f"{type(self).__name__} was made with {value} for *{name}; give arguments by name")
        return copy.deepcopy(config)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make a layer of the arguments that ``get_config`` gave. Its weights are new."""
        return cls(**config)
