"""The pending cut of a server's tables: one at a time, kept until it is saved, dropped, replaced or its lease ends.

NOTE. The server's side of a joint cut (the client's side is ``joint_cut``):

    client              server 0                      server 1
      | Hold(h) ------->  stop applying pushes          stop applying pushes      hold lease: hold_lease_s
      | <-- marks         applied pushes per client     applied pushes per client
      | Cut(h, awaited)-> apply awaited pushes only     apply awaited pushes only
      |                   cut the tables, release h     cut the tables, release h  cut lease: cut_lease_s
      | <-- number        number of the pending cut     number of the pending cut
      | Save(number) -->  write part 0                  write part 1

A hold delays pushes; it refuses none. While a hold lasts, the server applies only the awaited pushes, which another
server has applied already. The cut and the release are one step: ``release_pushes`` returns False if the lease of the
hold ended before, and then the cut is void, because other pushes may be in the tables. A client that dies leaves
nothing behind: the hold and the cut end with their leases. FlushDeltas uses the same hold to write the delta log
instead of taking a cut; it leaves a pending cut alone.

Lock order: ``_writing`` (a save is under way), then ``_lock`` (fields of this object), then the locks of the tables.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monolith.core.clock import Clock, Deadline
from monolith.core.errors import ShardUnavailable
from monolith.ps.job_records import Record
from monolith.ps.tables import FlushedLog, ShardCut, ShardTables

__all__ = ["PendingCut"]


class PendingCut:
    """Keeps the newest cut until it is saved, dropped, replaced by a newer one, or its lease ends. Thread safe.

    Args:
        tables: The tables to cut.
        lease_s: How long a cut waits for its ``save``.
        clock: Measures the leases.
        hold_lease_s: How long a hold delays pushes without a cut.
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
        self._cut: ShardCut | None = None
        self._lease = Deadline(clock, 0)

    def hold(self, hold: int) -> bytes:
        """Start hold ``hold`` of pushes; return the marks of applied pushes. Waits for a save that is under way."""
        with self._writing, self._lock:
            self._drop_cut()
            return self._start_hold(hold)

    def hold_for_flush(self, hold: int) -> bytes:
        """Start a hold for ``flush_under_hold``; a pending cut, or one that is being saved, stays."""
        with self._lock:
            return self._start_hold(hold)

    def _start_hold(self, hold: int) -> bytes:
        shard = self._tables.shard
        shard.hold_pushes(hold, int(self._hold_lease_s * 1000))
        self._hold = hold
        return shard.client_marks()

    def release(self, hold: int) -> None:
        """Release a hold. No-op if it has expired."""
        self._tables.shard.release_pushes(hold)

    def end_hold(self) -> None:
        """Release the current hold, if any."""
        if self._hold:
            self.release(self._hold)

    def take_under_hold(self, hold: int, awaited: Sequence[tuple[int, int]], timeout_ms: int) -> int | None:
        """Cut the tables under a hold and release it.

        Args:
            hold: The hold.
            awaited: Pushes (client, sequence) to apply first.
            timeout_ms: How long to wait for them.

        Returns:
            The number of the cut; None if an awaited push is missing, in which case the hold continues.

        Raises:
            ShardUnavailable: The hold has expired.
        """
        shard = self._tables.shard
        if awaited and not shard.settle_pushes(hold, awaited, timeout_ms):
            return None
        return self._take(lambda: shard.release_pushes(hold))

    def flush_under_hold(
        self, hold: int, awaited: Sequence[tuple[int, int]], timeout_ms: int, table: str
    ) -> FlushedLog | None:
        """Write the delta log under a hold and release it; see ``take_under_hold``.

        Args:
            hold: The hold.
            awaited: Pushes to apply first.
            timeout_ms: How long to wait for them.
            table: The table whose rows at that instant are returned; empty = none.
        """
        shard = self._tables.shard
        if awaited and not shard.settle_pushes(hold, awaited, timeout_ms):
            return None
        return self._tables.flush(table, lambda: shard.release_pushes(hold))

    def take(self) -> int:
        """Cut the tables; return the number of the cut. Waits for a save that is under way."""
        return self._take(lambda: True)

    def _take(self, is_valid: Callable[[], bool]) -> int:
        with self._writing, self._lock:
            self._drop_cut()
            self._cut = self._tables.cut(is_valid)
            self._number = secrets.randbits(63) | 1
            self._lease = Deadline(self._clock, self._lease_s)
            return self._number

    def save(self, number: int, path: Path, generation: int) -> tuple[list[dict[str, Any]], list[Record]]:
        """Write this server's part of a snapshot; return its entries of the manifest, and the job state of the cut.

        Raises:
            ShardUnavailable: The cut is gone, as after a restart of the server; retry with a new cut.
        """
        with self._writing:
            cut = self._claim(number)
            entries = cut.tables.write_part(path, generation, self._tables.index, self._tables.shards)
        log = {} if cut.position is None else {"log": dataclasses.asdict(cut.position)}
        return [{**entry, **log} for entry in entries], cut.records

    def _claim(self, number: int) -> ShardCut:
        with self._lock:
            if self._cut is None or number != self._number:
                raise ShardUnavailable(
                    f"cut {number} is gone: it was saved, dropped, replaced by a newer one, or older than "
                    f"{self._lease_s:g} s; take another"
                )
            cut, self._cut = self._cut, None
            return cut

    def drop(self, number: int) -> None:
        """Drop a cut. No-op if it is gone."""
        with self._lock:
            if number == self._number:
                self._drop_cut()

    @contextmanager
    def replacing_rows(self) -> Iterator[None]:
        """Drop the cut, and take none inside the block, which replaces all rows. Waits for a save that is under way.

        A table replaces its rows only when no cut of them exists. Inside the tables it would wait with their lock, and
        ``drop_expired`` could not run: a client that died between its cut and its save would block the server forever.
        """
        with self._writing:
            with self._lock:
                self._drop_cut()
            yield

    def drop_expired(self) -> None:
        """Drop the cut if its lease has ended."""
        with self._lock:
            if self._lease.is_past:
                self._drop_cut()

    def close(self) -> None:
        """Drop any cut."""
        with self._lock:
            self._drop_cut()

    def _drop_cut(self) -> None:
        if self._cut is not None:
            self._cut.tables.drop()
            self._cut = None
