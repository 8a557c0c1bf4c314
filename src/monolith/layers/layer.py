"""The base of all layers: parameters that take their shape from the first input, penalties, and losses of layers.

A parameter is declared by name in ``__init__`` and gets its shape in :meth:`Layer.measure`, at the first call or when a
checkpoint is loaded, whichever comes first. It is the same object before and after, so an optimizer may be made at any
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from monolith.core.errors import ConfigError
from monolith.layers import initializers, regularizers
from monolith.layers.configured import Configured
from monolith.layers.initializers import Initializer, InitializerLike
from monolith.layers.regularizers import Regularizer, RegularizerLike

__all__ = ["Layer", "LossRecord", "layer_losses"]


class Layer(Configured):
    """A module whose parameters may wait for the first input.

    A custom layer declares parameters, gives them shapes in :meth:`measure`, and computes in ``forward``:

    >>> class Scale(Layer):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.declare("factor", "ones")
    ...     def measure(self, x):
    ...         self.shape("factor", x.shape[-1])
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> Scale()(torch.full((2, 3), 5.0)).shape
    torch.Size([2, 3])
    """

    def __init__(self) -> None:
        super().__init__()
        self._initializers: dict[str, Initializer] = {}
        self._penalties: dict[str, Regularizer] = {}
        self.is_settled = False
        """Whether the input was measured; a plain value, so that compiled code can ask."""
        self.register_forward_pre_hook(_build_before_the_first_call, with_kwargs=True)
        self.register_state_dict_pre_hook(_refuse_to_save_without_shapes)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_take_shapes_from_state)  # type: ignore[no-untyped-call]

    def declare(
        self,
        name: str,
        initializer: InitializerLike,
        regularizer: RegularizerLike = None,
        *,
        label: str | None = None,
        trainable: bool = True,
    ) -> None:
        """Declare a parameter (or, not ``trainable``, a buffer) whose shape is not known yet.

        ``label`` is the name in errors; default: ``ClassName.name``.
        """
        where = label or f"{type(self).__name__}.{name}"
        self._initializers[name] = initializers.get(initializer, label=f"{where} initializer")
        penalty = regularizers.get(regularizer, label=f"{where} regularizer")
        if penalty is not None:
            self._penalties[name] = penalty
        if trainable:
            self.register_parameter(name, UninitializedParameter())  # type: ignore[arg-type]
        else:
            self.register_buffer(name, _WaitingBuffer())

    def shape(self, name: str, *size: int) -> Tensor:
        """Give a declared parameter its size and first values, unless it has them; return it."""
        parameter: Tensor = getattr(self, name)
        if is_lazy(parameter):
            parameter.materialize(tuple(size))
            with torch.no_grad():
                self._initializers[name](parameter)
        elif tuple(parameter.shape) != size:
            raise ConfigError(
                f"{type(self).__name__}.{name} has shape {tuple(parameter.shape)}, the input needs {size}; "
                "check that the loaded weights belong to this model"
            )
        return parameter

    def measure(self, *args: Any, **kwargs: Any) -> None:
        """Call :meth:`shape` for each declared parameter; the arguments are those of ``forward``."""

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Give all parameters of this layer (not of those inside it) their shapes from example inputs."""
        self.measure(*args, **kwargs)
        self.settle()

    def settle(self) -> None:
        """Mark all shapes as known: the first call will not measure its input."""
        self.is_settled = True
        for key, hook in list(self._forward_pre_hooks.items()):
            if hook is _build_before_the_first_call:
                del self._forward_pre_hooks[key]
                self._forward_pre_hooks_with_kwargs.pop(key, None)

    @property
    def is_built(self) -> bool:
        """Whether every own parameter has its shape."""
        held = (*self._parameters.values(), *self._buffers.values())
        return not any(value is not None and is_lazy(value) for value in held)

    def own_losses(self) -> dict[str, Tensor]:
        """Return the penalties of this layer, and the losses that a subclass adds, by name."""
        losses: dict[str, Tensor] = {}
        for name, penalty in self._penalties.items():
            weight: Tensor = getattr(self, name)
            if not is_lazy(weight):
                losses[f"{name}_penalty"] = penalty(weight)
        return losses


class LossRecord:
    """The loss a layer computed in its last training forward. A copied or pickled layer starts without one."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> LossRecord:
        return LossRecord()

    def __reduce__(self) -> tuple[type[LossRecord], tuple[()]]:
        return (LossRecord, ())


def layer_losses(module: nn.Module) -> dict[str, Tensor]:
    """Collect the auxiliary losses of every layer in ``module``: penalties, gate balance, expected sizes.

    The keys are the path of the layer and the name of the loss; the values are scalars with a gradient. They are not
    part of any loss until you add them.

    >>> from monolith.layers import Dense
    >>> dense = Dense(1, kernel_initializer="ones", kernel_regularizer="l2", input_dim=3)
    >>> {name: round(loss.item(), 4) for name, loss in layer_losses(torch.nn.Sequential(dense)).items()}
    {'0.kernel_penalty': 0.03}
    """
    losses: dict[str, Tensor] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, Layer):
            losses |= {f"{path}.{name}" if path else name: loss for name, loss in layer.own_losses().items()}
    return losses


class _WaitingBuffer(UninitializedBuffer):
    """A buffer without a shape that can be copied; torch's own cannot, though its parameter can."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _WaitingBuffer:
        if id(self) not in memo:
            memo[id(self)] = _WaitingBuffer(  # type: ignore[call-arg]
                device=self.data.device, dtype=self.data.dtype
            )
        copied: _WaitingBuffer = memo[id(self)]
        return copied


def _build_before_the_first_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if isinstance(module, Layer):
        module.build(*args, **kwargs)


def _refuse_to_save_without_shapes(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    if isinstance(module, Layer) and not module.is_built:
        where = prefix.removesuffix(".") or type(module).__name__
        raise ConfigError(f"{where} has weights without a shape, which cannot be saved; call the model once before")


def _take_shapes_from_state(module: nn.Module, state: Mapping[str, Any], prefix: str, *_rest: object) -> None:
    for name, value in (*module._parameters.items(), *module._buffers.items()):
        loaded = state.get(prefix + name)
        if value is not None and is_lazy(value) and isinstance(loaded, Tensor) and not is_lazy(loaded):
            value.materialize(loaded.shape)
