"""Hashes of request keys: the partition of a key, and the draw that samples negatives.

A hash replaces a random number, so replays, copies and other joiners make the same decision. Every function is pure.
"""

from __future__ import annotations

from monolith.core.errors import ConfigError

__all__ = ["choose_partition", "draw_uniform", "fnv1a64", "mix"]

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Return the SplitMix64 hash of a number; only its low 64 bits count.

    >>> hex(mix(0))
    '0xe220a8397b1dcdaf'
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def fnv1a64(key: bytes) -> int:
    """Return the 64-bit FNV-1a hash of a key.

    >>> hex(fnv1a64(b"k"))
    '0xaf63e64c8601fd8a'
    """
    value = 0xCBF29CE484222325
    for byte in key:
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


def choose_partition(key: bytes, partitions: int) -> int:
    """Return the partition of a key among ``partitions``.

    Raises:
        ConfigError: ``partitions`` is below 1.

    >>> [choose_partition(b"k", partitions) for partitions in (2, 4, 8)]
    [1, 3, 3]
    """
    if partitions < 1:
        raise ConfigError(f"partitions is {partitions!r}, expected at least 1; pass the partition count of the topic")
    return mix(fnv1a64(key)) % partitions


def draw_uniform(key: bytes, item: int, salt: int = 0) -> float:
    """Return the draw of an impression, from 0 to 1. A sampler keeps a negative whose draw is below its rate.

    >>> round(draw_uniform(b"k", 5), 6)
    0.018079
    """
    return mix(fnv1a64(key) ^ mix(item) ^ salt) / 2.0**64
