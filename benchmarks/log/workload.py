"""The messages of a run: values of one size with a key of 16 bytes, as a model server writes them."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Sizes", "make_messages"]

_DISTINCT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Size of a run."""

    megabytes: int
    """Bytes of the values of one turn."""
    rounds: int
    quick: bool = False


FULL = Sizes(megabytes=128, rounds=7)
QUICK = Sizes(megabytes=16, rounds=3, quick=True)


def make_messages(value_bytes: int) -> list[tuple[bytes, bytes]]:
    """Return distinct (key, value) pairs, which a turn repeats."""
    chance = random.Random(value_bytes)
    return [(chance.randbytes(16), chance.randbytes(value_bytes)) for _ in range(_DISTINCT)]
