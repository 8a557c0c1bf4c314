"""The vector instructions that the engine's inner loops use; all levels give the same bits."""

from __future__ import annotations

from monolith import _native

__all__ = ["kernel_level", "kernel_levels"]


def kernel_level() -> str:
    """Return the level in use: "baseline", "avx2" or "avx512".

    A process takes the last of ``kernel_levels()``, or the level that ``MONOLITH_KERNELS`` names.

    Raises:
        ConfigError: ``MONOLITH_KERNELS`` names a level that this processor or this build does not have.
    """
    return _native.kernel_level()


def kernel_levels() -> list[str]:
    """Return the levels that this build contains and this processor runs, slowest first."""
    return _native.kernel_levels()
