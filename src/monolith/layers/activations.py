"""Activations by name, class, function, dict or instance; each is a module.

Definitions are those of the original's framework, which differ here and there from torch's: ``hard_sigmoid`` is
clip(0.2x + 0.5, 0, 1), ``leakyrelu`` has slope 0.3, and ``prelu`` has one slope per input element. Names are read
without regard to case.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monolith.core.errors import ConfigError
from monolith.layers._arguments import check_number
from monolith.layers.initializers import InitializerLike
from monolith.layers.layer import Layer
from monolith.layers.regularizers import RegularizerLike

__all__ = [
    "ELU",
    "GELU",
    "SELU",
    "Activation",
    "ActivationLike",
    "Exponential",
    "FunctionActivation",
    "HardSigmoid",
    "LeakyReLU",
    "Linear",
    "PReLU",
    "ReLU",
    "Sigmoid",
    "Sigmoid2",
    "Softmax",
    "Softplus",
    "Softsign",
    "Swish",
    "Tanh",
    "ThresholdedReLU",
    "deserialize",
    "get",
    "serialize",
]

ActivationLike: TypeAlias = str | Mapping[str, Any] | Callable[..., Any] | None
"""A name, a dict with ``name`` and settings, a class, a function, a module, or None."""


class Activation(Layer):
    """The base of the named activations: a name, and settings that are constructor arguments."""

    kind: ClassVar[str]
    """The name it is looked up by."""

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that make an equal activation."""
        return {}

    def extra_repr(self) -> str:
        """Show the settings."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())


class Linear(Activation):
    """y = x."""

    kind = "linear"

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x


class Exponential(Activation):
    """y = e^x."""

    kind = "exponential"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return torch.exp(x)


class GELU(Activation):
    """y = x · Φ(x), with the exact normal distribution function.

    >>> GELU()(torch.tensor([0.0])).item()
    0.0
    """

    kind = "gelu"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.gelu(x)


class HardSigmoid(Activation):
    """y = clip(0.2 x + 0.5, 0, 1).

    >>> HardSigmoid()(torch.tensor([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    kind = "hard_sigmoid"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return torch.clamp(0.2 * x + 0.5, 0.0, 1.0)


class SELU(Activation):
    """y = 1.05070098 · (x if x > 0 else 1.67326324 · (e^x − 1))."""

    kind = "selu"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.selu(x)


class Sigmoid(Activation):
    """y = 1 / (1 + e^−x)."""

    kind = "sigmoid"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return torch.sigmoid(x)


class Sigmoid2(Activation):
    """y = 2 / (1 + e^−x): 1 at zero, so a gate starts as no gate.

    >>> Sigmoid2()(torch.zeros(1)).item()
    1.0
    """

    kind = "sigmoid2"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return 2 * torch.sigmoid(x)


class Softplus(Activation):
    """y = ln(1 + e^x)."""

    kind = "softplus"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.softplus(x)


class Softsign(Activation):
    """y = x / (1 + |x|)."""

    kind = "softsign"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.softsign(x)


class Swish(Activation):
    """y = x / (1 + e^−x)."""

    kind = "swish"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.silu(x)


class Tanh(Activation):
    """y = tanh x."""

    kind = "tanh"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return torch.tanh(x)


class ReLU(Activation):
    """y = max(0, x), at most ``max_value`` if that is given."""

    kind = "relu"

    def __init__(self, max_value: float | None = None) -> None:
        super().__init__()
        self.max_value = None if max_value is None else check_number("ReLU.max_value", max_value, above=0.0)

    def settings(self) -> dict[str, Any]:
        """Return ``max_value`` where it is set."""
        return {} if self.max_value is None else {"max_value": self.max_value}

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.relu(x) if self.max_value is None else torch.clamp(x, 0.0, self.max_value)


class LeakyReLU(Activation):
    """y = x if x > 0 else alpha · x.

    >>> LeakyReLU()(torch.tensor([-10.0, 2.0])).tolist()
    [-3.0, 2.0]
    """

    kind = "leakyrelu"

    def __init__(self, alpha: float = 0.3) -> None:
        super().__init__()
        self.alpha = check_number("LeakyReLU.alpha", alpha, at_least=0.0)

    def settings(self) -> dict[str, Any]:
        """Return the slope below zero."""
        return {"alpha": self.alpha}

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.leaky_relu(x, self.alpha)


class ELU(Activation):
    """y = x if x > 0 else alpha · (e^x − 1)."""

    kind = "elu"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = check_number("ELU.alpha", alpha, at_least=0.0)

    def settings(self) -> dict[str, Any]:
        """Return the limit below zero."""
        return {"alpha": self.alpha}

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.elu(x, self.alpha)


class Softmax(Activation):
    """y = e^x / Σ e^x along ``axis``."""

    kind = "softmax"

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def settings(self) -> dict[str, Any]:
        """Return the axis."""
        return {"axis": self.axis}

    def forward(self, x: Tensor) -> Tensor:
        """Apply it along the axis."""
        return torch.softmax(x, dim=self.axis)


class ThresholdedReLU(Activation):
    """y = x if x > theta else 0.

    >>> ThresholdedReLU()(torch.tensor([0.5, 1.5])).tolist()
    [0.0, 1.5]
    """

    kind = "thresholdedrelu"

    def __init__(self, theta: float = 1.0) -> None:
        super().__init__()
        self.theta = check_number("ThresholdedReLU.theta", theta, at_least=0.0)

    def settings(self) -> dict[str, Any]:
        """Return the threshold."""
        return {"theta": self.theta}

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return torch.where(x > self.theta, x, torch.zeros_like(x))


class PReLU(Activation):
    """y = x if x > 0 else alpha ∘ x, with a trainable alpha of the input's shape without the batch.

    ``shared_axes`` (counted with the batch as 0) share one alpha: give ``[1]`` for (B, T, k) inputs whose T varies.

    >>> PReLU("ones")(torch.tensor([[-2.0, 3.0]])).tolist()
    [[-2.0, 3.0]]
    """

    kind = "prelu"
    alpha: Tensor

    def __init__(
        self,
        alpha_initializer: InitializerLike = "zeros",
        alpha_regularizer: RegularizerLike = None,
        shared_axes: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.alpha_initializer = alpha_initializer
        self.shared_axes = tuple(shared_axes)
        self.declare("alpha", alpha_initializer, alpha_regularizer)

    def settings(self) -> dict[str, Any]:
        """Return the shared axes, and the initializer where it has a name."""
        named = {"alpha_initializer": self.alpha_initializer} if isinstance(self.alpha_initializer, str) else {}
        return named | {"shared_axes": list(self.shared_axes)}

    def measure(self, x: Tensor) -> None:
        """Take all axes but the batch and the shared ones."""
        bad = [axis for axis in self.shared_axes if not 1 <= axis < x.dim()]
        if bad:
            raise ConfigError(f"PReLU.shared_axes has {bad[0]}, the input {x.dim()} axes; give axes from 1")
        self.shape("alpha", *(1 if axis in self.shared_axes else x.shape[axis] for axis in range(1, x.dim())))

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return torch.where(x > 0, x, self.alpha * x)


class FunctionActivation(Layer):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x)


_CLASSES: tuple[type[Activation], ...] = (
    Exponential,
    GELU,
    HardSigmoid,
    Linear,
    SELU,
    Sigmoid,
    Sigmoid2,
    Softplus,
    Softsign,
    Swish,
    Tanh,
    LeakyReLU,
    ReLU,
    ELU,
    Softmax,
    ThresholdedReLU,
    PReLU,
)
_BY_NAME: dict[str, type[Activation]] = {cls.kind: cls for cls in _CLASSES} | {"hardsigmoid": HardSigmoid}


def get(activation: ActivationLike, label: str = "activation") -> nn.Module | None:
    """Return the activation meant by ``activation`` as a module; None stays None.

    A name, a dict or a class gives a new module; a module is returned as it is; any other callable is wrapped.

    Raises:
        ConfigError: The name or a setting is unknown, or the value has another type.

    >>> get("LeakyReLU"), get({"name": "elu", "alpha": 0.5}), get(torch.sin).function is torch.sin
    (LeakyReLU(alpha=0.3), ELU(alpha=0.5), True)
    """
    if activation is None:
        return None
    if isinstance(activation, str):
        return _class_of(activation, label)()
    if isinstance(activation, Mapping):
        return _from_mapping(activation, label)
    if isinstance(activation, type) and issubclass(activation, nn.Module):
        return activation()
    if isinstance(activation, nn.Module):
        return activation
    if not isinstance(activation, type) and callable(activation):
        return FunctionActivation(activation)
    raise ConfigError(f"{label} is {activation!r}; give a name such as 'relu', a function or a module")


def serialize(activation: ActivationLike) -> str | None:
    """Return a JSON text of the name and settings of a named activation; None stays None.

    >>> serialize("sigmoid2"), serialize(LeakyReLU(0.1))
    ('{"name": "sigmoid2"}', '{"name": "leakyrelu", "alpha": 0.1}')
    """
    module = get(activation)
    if module is None:
        return None
    if not isinstance(module, Activation):
        raise ConfigError(f"{activation!r} cannot be serialized; only named activations can: {', '.join(_BY_NAME)}")
    return json.dumps({"name": module.kind} | module.settings())


def deserialize(text: str | Mapping[str, Any] | None) -> nn.Module | None:
    """Return the activation that :func:`serialize` wrote.

    >>> deserialize(serialize(ThresholdedReLU(2.0)))
    ThresholdedReLU(theta=2.0)
    """
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return get(text)
    try:
        return get(json.loads(text))
    except json.JSONDecodeError as error:
        raise ConfigError(f"activation {text!r} is not JSON ({error}); give the result of serialize") from error


def _class_of(name: str, label: str) -> type[Activation]:
    found = _BY_NAME.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(_BY_NAME)}"
        raise ConfigError(f"{label} is {name!r}; {remedy}")
    return found


def _from_mapping(given: Mapping[str, Any], label: str) -> Activation:
    settings = {key: value for key, value in given.items() if key != "name"}
    name = given.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{label} is {dict(given)!r}; give a dict with a 'name'")
    cls = _class_of(name, label)
    known = [key for key in inspect.signature(cls).parameters if key not in ("args", "kwargs")]
    for key in settings:
        if key not in known:
            raise ConfigError(f"{label} {name!r} has no setting {key!r}; known: {', '.join(known) or 'none'}")
    return cls(**settings)
