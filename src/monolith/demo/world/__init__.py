"""A synthetic world for examples, guides and tests: users, items, clicks and prices whose true laws are known.

``World`` generates ``Clicks``. ``DriftingWorld`` generates clicks on items that are born, trend and die.
:mod:`~monolith.demo.world.files` writes clicks as records and Parquet; :mod:`~monolith.demo.world.bars` makes prices.
"""

from __future__ import annotations

from monolith.demo.world.clicks import Clicks
from monolith.demo.world.drifting import Drift, DriftingWorld
from monolith.demo.world.world import START_S, World

__all__ = ["START_S", "Clicks", "Drift", "DriftingWorld", "World"]
