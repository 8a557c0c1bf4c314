"""The cut of a server's tables that waits to be saved: one at a time, and never for longer than its lease."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Any

from monolith.core.clock import Clock, Deadline
from monolith.core.errors import ConfigError
from monolith.embedding.snapshot import TableCut
from monolith.ps.tables import ShardTables

__all__ = ["WaitingCut"]


class WaitingCut:
    """Holds the newest cut until it is saved or dropped, a newer one is taken, or its lease ends."""

    def __init__(self, tables: ShardTables, lease_s: float, clock: Clock) -> None:
        self._tables = tables
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._number = 0
        self._cut: TableCut | None = None
        self._lease = Deadline(clock, 0)

    def take(self) -> int:
        """Cut the tables; return the number of the cut. Waits for one that is being saved."""
        with self._writing, self._lock:
            self._let_go()
            self._cut = self._tables.cut()
            self._number = secrets.randbits(63) | 1
            self._lease = Deadline(self._clock, self._lease_s)
            return self._number

    def save(self, number: int, path: Path, generation: int) -> list[dict[str, Any]]:
        """Write this server's part of a snapshot; return what its manifest is to say.

        Raises:
            ConfigError: The cut is gone.
        """
        with self._writing:
            return self._taken(number).write_part(path, generation, self._tables.index, self._tables.shards)

    def _taken(self, number: int) -> TableCut:
        with self._lock:
            if self._cut is None or number != self._number:
                raise ConfigError(
                    f"cut {number} is gone: it was saved, dropped, replaced by a newer one, or older than "
                    f"{self._lease_s:g} s; take another"
                )
            cut, self._cut = self._cut, None
            return cut

    def drop(self, number: int) -> None:
        """Let go of a cut; one that is gone already is none of our business."""
        with self._lock:
            if number == self._number:
                self._let_go()

    def drop_stale(self) -> None:
        """Let go of a cut whose caller has not come back."""
        with self._lock:
            if self._lease.is_past:
                self._let_go()

    def close(self) -> None:
        """Let go of any cut."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._cut is not None:
            self._cut.drop()
            self._cut = None
