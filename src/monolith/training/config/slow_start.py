"""When each worker of a job joins: early steps are taken by few, so that they do not pull rows apart.

Arithmetic only; the waiting is a hook's.
"""

from __future__ import annotations

import math

from monolith.core.errors import ConfigError

__all__ = ["slow_start_step"]


def slow_start_step(index: int, slow_start_steps: int) -> int:
    """Return the step at which worker ``index`` begins: ⌊slow_start_steps · ln(1 + index)⌋.

    Raises:
        ConfigError: An argument is negative.

    >>> [slow_start_step(index, 100) for index in range(6)]
    [0, 69, 109, 138, 160, 179]
    """
    if index < 0 or slow_start_steps < 0:
        raise ConfigError(f"index is {index} and slow_start_steps is {slow_start_steps}; give neither below 0")
    return int(slow_start_steps * math.log1p(index))
