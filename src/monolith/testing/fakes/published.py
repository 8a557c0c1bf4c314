"""Both ends of publishing without a model or a server: tables that a test publishes, and tables that follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.artifacts.delta_log import Cut
from monolith.core.clock import Clock, SystemClock
from monolith.embedding import MultiTable, TableSpec
from monolith.sync import LocalRowLog, Publisher
from monolith.sync.row_updates import Move

__all__ = ["FollowedTables", "PublishedTables"]


class PublishedTables:
    """Tables and weights that a test changes and publishes.

    Args:
        root: Folder of the published log.
        specs: The tables.
        weights: Initial weights.
        clock: Clock of publishing times.
    """

    def __init__(
        self, root: Path, specs: Sequence[TableSpec], weights: Mapping[str, Any], *, clock: Clock | None = None
    ) -> None:
        clock = clock or SystemClock()
        self.root = root
        self.tables = MultiTable(specs)
        self.weights: dict[str, NDArray[Any]] = {name: np.array(value, np.float32) for name, value in weights.items()}
        self.rows = LocalRowLog(root, self.tables, clock=clock)
        self.publisher = Publisher(root, self.rows, lambda: {n: w.copy() for n, w in self.weights.items()}, clock=clock)

    def publish_now(self) -> Cut:
        """Publish the current state; return the cut."""
        self.publisher.publish()
        assert self.publisher.newest is not None
        return self.publisher.newest


class FollowedTables:
    """Target of a follower: serving tables and weights, which change together.

    Args:
        tables: Serving tables.
    """

    has_weights = True
    shard = (0, 1)

    def __init__(self, tables: MultiTable) -> None:
        self.tables = tables
        self.weights: dict[str, NDArray[Any]] = {}

    def apply(
        self,
        move: Move | None = None,
        *,
        weights: Mapping[str, NDArray[Any]] | None = None,
        tables: MultiTable | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Move to another cut; see ``monolith.sync.follower.Target``."""
        self.tables = tables or self.tables
        if move is not None:
            move.apply(self.tables)
        self.weights |= dict(weights or {})
