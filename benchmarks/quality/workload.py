"""How large a run is: which users, how many seeds and epochs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "TEST_SHARE", "Sizes"]

TEST_SHARE = 0.2
"""The last part of each user's ratings, which nobody trains on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    seeds: tuple[int, ...]
    epochs: int
    peer_epochs: int
    users: int | None = None
    """Only so many users; None = all."""
    threads: int = 2
    quick: bool = False


FULL = Sizes(seeds=(0, 1, 2), epochs=6, peer_epochs=6)
QUICK = Sizes(seeds=(0,), epochs=2, peer_epochs=2, users=1000, quick=True)
