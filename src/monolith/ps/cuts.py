"""The cut of a server's tables that waits to be saved: one at a time, and never for longer than its lease.

Cuts of several servers are of one moment when all of them hold pushes back before the first is cut, and each lets those
through that another has applied already. A hold has a lease too, a short one.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from monolith.artifacts.delta_log import LogPosition
from monolith.core.clock import Clock, Deadline
from monolith.core.errors import ShardUnavailable
from monolith.embedding.snapshot import TableCut
from monolith.ps.tables import FlushedLog, ShardTables

__all__ = ["WaitingCut"]


class WaitingCut:
    """Keeps the newest cut until it is saved or dropped, a newer one is taken, or its lease ends.

    Args:
        tables: What is cut.
        lease_s: How long a cut is kept for somebody to save it.
        clock: Measures that.
        hold_lease_s: How long pushes are held back for somebody to cut.
    """

    def __init__(self, tables: ShardTables, lease_s: float, clock: Clock, hold_lease_s: float = 10.0) -> None:
        self._tables = tables
        self._lease_s = lease_s
        self._hold_lease_s = hold_lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._hold = 0
        self._number = 0
        self._cut: TableCut | None = None
        self._position: LogPosition | None = None
        self._lease = Deadline(clock, 0)

    def hold(self, hold: int) -> bytes:
        """Hold pushes back under this name, and return which are applied. Waits for a cut that is being saved."""
        with self._writing, self._lock:
            self._let_go()
            return self._begin_hold(hold)

    def hold_for_log(self, hold: int) -> bytes:
        """Like ``hold``, for ``flush_held``: a cut that waits, or is being saved, is left alone."""
        with self._lock:
            return self._begin_hold(hold)

    def _begin_hold(self, hold: int) -> bytes:
        shard = self._tables.shard
        shard.hold_pushes(hold, int(self._hold_lease_s * 1000))
        self._hold = hold
        return shard.client_marks()

    def release(self, hold: int) -> None:
        """End a hold; one that is over already is none of our business."""
        self._tables.shard.release_pushes(hold)

    def end_hold(self) -> None:
        """End the hold, whoever's it is; nothing where there is none."""
        if self._hold:
            self.release(self._hold)

    def take_held(self, hold: int, awaited: Sequence[tuple[int, int]], timeout_ms: int) -> int | None:
        """Cut the tables during a hold and end it.

        Args:
            hold: Its name.
            awaited: Pushes (client, sequence) that are to be applied first.
            timeout_ms: How long to wait for them.

        Returns:
            The number of the cut; None when not all that was awaited has come, and the hold goes on.

        Raises:
            ShardUnavailable: The hold is over.
        """
        shard = self._tables.shard
        if awaited and not shard.settle_pushes(hold, awaited, timeout_ms):
            return None
        return self._take(lambda: shard.release_pushes(hold))

    def flush_held(
        self, hold: int, awaited: Sequence[tuple[int, int]], timeout_ms: int, table: str
    ) -> FlushedLog | None:
        """Write the log as it is at one moment of a hold, and end it; see ``take_held`` for what it waits for.

        Args:
            hold: Its name.
            awaited: Pushes that are to be applied first.
            timeout_ms: How long to wait for them.
            table: Whose rows at that moment are returned; empty: none.
        """
        shard = self._tables.shard
        if awaited and not shard.settle_pushes(hold, awaited, timeout_ms):
            return None
        return self._tables.flush(table, lambda: shard.release_pushes(hold))

    def take(self) -> int:
        """Cut the tables; return the number of the cut. Waits for one that is being saved."""
        return self._take(lambda: True)

    def _take(self, is_valid: Callable[[], bool]) -> int:
        with self._writing, self._lock:
            self._let_go()
            self._cut, self._position = self._tables.cut(is_valid)
            self._number = secrets.randbits(63) | 1
            self._lease = Deadline(self._clock, self._lease_s)
            return self._number

    def save(self, number: int, path: Path, generation: int) -> list[dict[str, Any]]:
        """Write this server's part of a snapshot; return what its manifest is to say.

        Raises:
            ShardUnavailable: The cut is gone, as after a restart of the server; to be tried again with another one.
        """
        with self._writing:
            cut, position = self._taken(number)
            entries = cut.write_part(path, generation, self._tables.index, self._tables.shards)
        log = {} if position is None else {"log": dataclasses.asdict(position)}
        return [{**entry, **log} for entry in entries]

    def _taken(self, number: int) -> tuple[TableCut, LogPosition | None]:
        with self._lock:
            if self._cut is None or number != self._number:
                raise ShardUnavailable(
                    f"cut {number} is gone: it was saved, dropped, replaced by a newer one, or older than "
                    f"{self._lease_s:g} s; take another"
                )
            cut, self._cut = self._cut, None
            return cut, self._position

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
