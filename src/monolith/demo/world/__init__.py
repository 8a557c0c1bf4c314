"""A synthetic world for examples, guides and tests: users, items, clicks and prices whose true laws are known.

``World`` makes ``Clicks``; :mod:`~monolith.demo.world.files` writes them as records and Parquet;
:mod:`~monolith.demo.world.bars` makes prices.
"""

from __future__ import annotations

from monolith.demo.world.clicks import Clicks
from monolith.demo.world.world import START_S, World

__all__ = ["START_S", "Clicks", "World"]
