"""The update rules as a few lines of NumPy each, in float32, one row at a time.

The engine has the same rules for many rows; tests compare the two. The code favours clarity over speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import float32 as f32
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.embedding.optimizers import Optimizer

__all__ = ["State", "initial_state", "take_step"]

_LARGEST = np.finfo(f32).max
"""Sums of squares stay finite: an infinite one would become NaN at the next step."""
_LEAST_FTRL_RATE = f32(1e-30)

Vector = NDArray[np.float32]
State = dict[str, NDArray[Any]]
"""Field name, as the original's dumps spell it, to its numbers."""


def initial_state(optimizer: Optimizer, dim: int) -> State:
    """Return the optimizer state of a new slice."""
    base: Any = optimizer.base

    def full(value: float, size: int = dim) -> Vector:
        return np.full(size, value, dtype=f32)

    match base.kind:
        case "sgd" | "moving_average":
            return {}
        case "adagrad":
            return {"norm": full(base.initial_accumulator_value)}
        case "dynamic_wd_adagrad":
            return {"norm": full(base.initial_accumulator_value), "last_update_step": np.zeros(1, np.int64)}
        case "adadelta":
            return {"accum": full(0), "accum_update": full(0)}
        case "adam":
            powers = {"beta1_power": full(base.beta1, 1), "beta2_power": full(base.beta2, 1)}
            return {"m": full(0), "v": full(0), **powers}
        case "amsgrad":
            powers = {"beta1_power": full(base.beta1, 1), "beta2_power": full(base.beta2, 1)}
            return {"m": full(0), "v": full(0), "vhat": full(0), **powers}
        case "momentum" | "rmsprop" | "rmspropv2":
            return {"n": full(0)}
        case "ftrl" | "group_ftrl":
            return {"norm": full(base.initial_accumulator_value), "zero": full(0)}
        case "group_adagrad":
            return {"grad_square_sum": full(base.initial_accumulator_value, 1)}
        case "batch_softmax":
            return {"global_step": np.zeros(1, np.int64)}
    raise ConfigError(f"the plain model has no optimizer {base.kind!r}; add its rule here")


def take_step(
    optimizer: Optimizer, w: Vector, g: Vector, state: State, *, rate: float, step: int, latest: Vector | None = None
) -> None:
    """Change ``w`` and ``state`` in place by one step along ``g``; ``latest`` is ``w`` when ``g`` was computed.

    Stochastic rounding is not modelled: which way a weight is rounded depends on the engine's random numbers.
    """
    if latest is not None and optimizer.delay_lambda:
        corrected = g + f32(optimizer.delay_lambda) * g * g * (w - latest)
        g = np.where(np.isfinite(corrected), corrected, g)
    base = optimizer.base
    _STEPS[base.kind](base, w, g, state, f32(rate), step)


def _decay(base: Any, w: Vector, g: Vector) -> Vector:
    return g + f32(base.weight_decay_factor) * w


def _sgd(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    w -= lr * g


def _adagrad(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    g = _decay(base, w, g)
    state["norm"] += g * g
    w -= _adagrad_move(g, state["norm"], lr)


def _adagrad_move(g: Vector, norm: Vector, lr: f32) -> Vector:
    """Return the step; 0 where no gradient was ever seen."""
    return np.where(norm == 0, f32(0), lr * g / np.sqrt(np.where(norm == 0, f32(1), norm)))


def _dynamic_wd_adagrad(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    decay = f32(base.weight_decay_factor)
    if base.enable_dynamic_wd:
        idle = max(0.0, float(step) - float(state["last_update_step"][0]))
        kept = math.exp(-idle / float(f32(base.dynamic_wd_temperature)))
        decay = f32(float(decay) * (kept if base.flip_direction else 1.0 - kept))
    coupled, shrink = (f32(0), lr * decay) if base.decouple_weight_decay else (decay, f32(0))
    g = g + coupled * w
    state["norm"] += g * g
    w -= _adagrad_move(g, state["norm"], lr) + shrink * w
    state["last_update_step"][0] = step


def _adadelta(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    keep, epsilon = f32(base.averaging_ratio), f32(base.epsilon)
    g = _decay(base, w, g)
    state["accum"][:] = keep * state["accum"] + (f32(1) - keep) * g * g
    delta = np.sqrt(state["accum_update"] + epsilon) / np.sqrt(state["accum"] + epsilon) * g
    w -= lr * delta
    state["accum_update"][:] = keep * state["accum_update"] + (f32(1) - keep) * delta * delta


def _adam(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    one, beta1, beta2 = f32(1), f32(base.beta1), f32(base.beta2)
    rate = lr * np.sqrt(one - state["beta2_power"]) / (one - state["beta1_power"])
    g = _decay(base, w, g)
    state["m"] += (g - state["m"]) * (one - beta1)
    state["v"] += (np.minimum(g * g, _LARGEST) - state["v"]) * (one - beta2)
    squares = state["v"]
    if "vhat" in state:
        squares = state["vhat"][:] = np.where(state["vhat"] < state["v"], state["v"], state["vhat"])
    share, keep = (one - beta1, beta1) if base.use_nesterov else (f32(0), one)
    mean = share * g + keep * state["m"]  # 0 times an infinite gradient is NaN
    w -= mean * rate / (np.sqrt(squares) + f32(base.epsilon))
    for power, beta in (("beta1_power", beta1), ("beta2_power", beta2)):
        state[power] *= beta
        state[power][state[power] < np.finfo(f32).tiny] = 0


def _momentum(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    keep = f32(base.momentum)
    ahead = keep if base.use_nesterov else f32(0)
    before = state["n"].copy()
    state["n"][:] = keep * before - lr * _decay(base, w, g)
    w[:] = w - ahead * before + (f32(1) + ahead) * state["n"]


def _moving_average(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    keep = f32(base.momentum)
    w[:] = keep * w + (f32(1) - keep) * g


def _rmsprop(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    # The original computes this rule in double precision; the state is float32.
    keep = float(f32(base.momentum))
    dx = g.astype(np.float64) + float(f32(base.weight_decay_factor)) * w.astype(np.float64)
    fresh = 1.0 - keep if base.kind == "rmsprop" else 1.0
    n = keep * state["n"].astype(np.float64) + fresh * dx * dx
    state["n"][:] = n
    w[:] = w - float(lr) / (np.sqrt(n) + 1.0) * dx


def _ftrl_sigma(g: Vector, state: State, lr: f32) -> Vector:
    """Add the squares to the norm; return the share of the weights that the step takes."""
    before = state["norm"].copy()
    state["norm"][:] = np.minimum(before + g * g, _LARGEST)
    return np.asarray((np.sqrt(state["norm"]) - np.sqrt(before)) * (f32(1) / lr))


def _ftrl(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    if lr < _LEAST_FTRL_RATE:
        return  # the start of a warm-up: the rule divides by the rate
    l1, l2 = f32(base.l1_regularization_strength), f32(base.l2_regularization_strength)
    z = state["zero"] + g - _ftrl_sigma(g, state, lr) * w
    state["zero"][:] = z
    divisor = np.sqrt(state["norm"]) + f32(base.beta) + l2 * lr
    moved = lr * (np.copysign(l1, z) - z) / np.where(divisor == 0, f32(1), divisor)
    w[:] = np.where((np.abs(z) <= l1) | (divisor == 0), f32(0), moved)


def _group_ftrl(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    if lr < _LEAST_FTRL_RATE:
        return  # as above
    l1, l2 = f32(base.l1_regularization_strength), f32(base.l2_regularization_strength)
    state["zero"] += g - _ftrl_sigma(g, state, lr) * w
    pull = _length(state["zero"])
    share = f32(-1) if np.isinf(pull) else (l1 - pull) / pull if pull else f32(0)
    scale = f32(0) if pull <= l1 else lr * share
    divisor = f32(base.beta) + np.sqrt(state["norm"]) + l2 * lr
    w[:] = np.where(divisor == 0, f32(0), scale * state["zero"] / np.where(divisor == 0, f32(1), divisor))


def _group_adagrad(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    g = _decay(base, w, g)
    state["grad_square_sum"] += np.fmax.reduce(g * g, initial=f32(0))
    divisor = f32(base.beta) + np.sqrt(state["grad_square_sum"][0])
    if divisor == 0:
        return  # no gradient was ever seen
    rate = lr / divisor
    bound = f32(base.l2_regularization_strength) * rate
    w -= rate * g
    length = _length(w)
    w *= f32(0) if length <= bound else f32(1) - bound / length


def _length(values: Vector) -> f32:
    """Return the Euclidean norm, summed from left to right in float32."""
    total = f32(0)
    for value in values:
        total += value * value
    return f32(np.sqrt(total))


def _batch_softmax(base: Any, w: Vector, g: Vector, state: State, lr: f32, step: int) -> None:
    w[:] = (f32(1) - lr) * w + lr * f32(step - state["global_step"][0])
    state["global_step"][0] = step


_STEPS: dict[str, Callable[[Any, Vector, Vector, State, np.float32, int], None]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "dynamic_wd_adagrad": _dynamic_wd_adagrad,
    "adadelta": _adadelta,
    "adam": _adam,
    "amsgrad": _adam,
    "momentum": _momentum,
    "moving_average": _moving_average,
    "rmsprop": _rmsprop,
    "rmspropv2": _rmsprop,
    "ftrl": _ftrl,
    "group_ftrl": _group_ftrl,
    "group_adagrad": _group_adagrad,
    "batch_softmax": _batch_softmax,
}
