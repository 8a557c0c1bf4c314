"""Generated prices: bars of several tickers, driven by hidden factors.

The expected return of every next bar is known, and so is the best possible prediction. The prices are fictitious.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monolith.core.errors import ConfigError

__all__ = ["Bars", "bars"]

_MEMORY = 0.95  # share of a factor that survives a bar
_VOLATILITY = 0.002  # of a bar's log return
_SIGNAL = 0.5  # effect of the factors on the mean, in units of the noise

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Bars:
    """One row per ticker, one column per bar; all arrays (tickers, n)."""

    time_s: npt.NDArray[np.int64]
    """(n,): end of each bar."""
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    expected_return: Floats
    """The mean of the log return of the bar after this one, given the hidden factors."""


def bars(n: int, *, tickers: int = 16, seed: int = 0, start_s: int = 1_700_000_000, seconds_per_bar: int = 300) -> Bars:
    """Return ``n`` bars of each ticker.

    log return of the next bar = volatility · (½ · (β market + own) / √(β² + 1) + noise): both factors decay slowly,
    so recent returns predict coming ones, and volume is larger when the factors are strong.

    Raises:
        ConfigError: ``n`` or ``tickers`` is below 1.

    >>> some = bars(100, tickers=3)
    >>> some.close.shape, bool((some.low <= some.close).all())
    ((3, 100), True)
    """
    for name, value in (("n", n), ("tickers", tickers), ("seconds_per_bar", seconds_per_bar)):
        if value < 1:
            raise ConfigError(f"{name} of bars is {value}; give a whole number of at least 1")
    rng = np.random.default_rng([seed, 5])
    beta = rng.uniform(0.3, 1.2, (tickers, 1))
    factor = (beta * _slow_walk(rng, 1, n + 1) + _slow_walk(rng, tickers, n + 1)) / np.sqrt(beta**2 + 1)
    expected = _VOLATILITY * _SIGNAL * factor
    returns = expected[:, :-1] + _VOLATILITY * rng.standard_normal((tickers, n))
    first = rng.uniform(20, 200, (tickers, 1))
    close = first * np.exp(np.cumsum(returns, axis=1))
    before = np.concatenate([first, close[:, :-1]], axis=1)
    opened = before * np.exp(0.2 * _VOLATILITY * rng.standard_normal((tickers, n)))
    reach = np.abs(_VOLATILITY * rng.standard_normal((2, tickers, n)))
    return Bars(
        time_s=start_s + seconds_per_bar * np.arange(1, n + 1),
        open=opened,
        high=np.maximum(opened, close) * np.exp(reach[0]),
        low=np.minimum(opened, close) * np.exp(-reach[1]),
        close=close,
        volume=np.exp(8 + 0.5 * np.abs(factor[:, :-1]) + 0.3 * rng.standard_normal((tickers, n))).round(),
        expected_return=expected[:, 1:],
    )


def _slow_walk(rng: np.random.Generator, count: int, n: int) -> Floats:
    """Return ``count`` factors of variance 1 that decay by (1 − memory) with every bar."""
    shocks = rng.standard_normal((count, n))
    shocks[:, 1:] *= np.sqrt(1 - _MEMORY**2)
    for t in range(1, n):
        shocks[:, t] += _MEMORY * shocks[:, t - 1]
    return shocks
