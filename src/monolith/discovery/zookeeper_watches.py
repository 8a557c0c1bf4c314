"""Keep lasting watches on data and children of ZooKeeper nodes.

Main type: ``NodeWatches``, which arms one-shot watches of a session again after each event, after each reconnection,
in a new session, and when a node comes back. ``WatchHandle`` closes one watch.

Invariants: a callback gets the first reading and then each reading that differs from the last one. Several changes
between two readings are one reading. Reads of many nodes are pipelined; changed nodes are read first.

Threading: one thread reads and calls all callbacks, one after another. A callback may call the session, may add and
close watches, and delays other callbacks while it runs. After ``close`` of a handle, a callback under way may still
end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias

from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_session import NodeEvent, NodeMissing, NodeStat, SessionState, ZooKeeperSession

__all__ = ["ChildrenCallback", "DataCallback", "NodeWatches", "WatchHandle"]

logger = logging.getLogger(__name__)

DataCallback: TypeAlias = Callable[[bytes | None, NodeStat | None], None]
"""Gets content and state of the node; None and None while the node is missing or refuses to be read."""
ChildrenCallback: TypeAlias = Callable[[list[str] | None], None]
"""Gets the sorted names of the children; None while the node is missing or refuses to be read."""

_BATCH = 512
_RETRY_S = 1.0
_NEVER_READ = object()


class WatchHandle(Protocol):
    """A lasting watch."""

    def close(self) -> None:
        """End the watch; a second call does nothing."""


class _Watch:
    """One lasting watch; ``seen`` identifies the last reading."""

    __slots__ = ("_owner", "callback", "has_failed", "is_closed", "is_data", "path", "seen")

    def __init__(self, owner: NodeWatches, path: str, callback: Callable[..., None], *, is_data: bool) -> None:
        self._owner = owner
        self.path = path
        self.callback = callback
        self.is_data = is_data
        self.seen: Any = _NEVER_READ
        self.is_closed = False
        self.has_failed = False

    def close(self) -> None:
        self._owner._forget(self)


class NodeWatches:
    """Lasting watches over one session; also a context manager.

    Args:
        session: Any session; it may be started before or after.
        name: Name of the thread.
        retry_s: Pause after a failed read.
    """

    def __init__(
        self, session: ZooKeeperSession, *, name: str = "zookeeper-watches", retry_s: float = _RETRY_S
    ) -> None:
        self._session = session
        self._retry_s = retry_s
        self._lock = threading.Condition()
        self._by_path: dict[str, list[_Watch]] = {}
        self._changed: dict[_Watch, None] = {}
        self._unread: dict[_Watch, None] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        session.add_listener(self._note_state)
        self._thread.start()

    def watch_data(self, path: str, callback: DataCallback) -> WatchHandle:
        """Call ``callback`` with content and state of a node now and at each change."""
        return self._add(_Watch(self, path, callback, is_data=True))

    def watch_children(self, path: str, callback: ChildrenCallback) -> WatchHandle:
        """Call ``callback`` with the names of the children of a node now and at each change."""
        return self._add(_Watch(self, path, callback, is_data=False))

    def reread(self) -> None:
        """Read all watched nodes again; a safety net against a lost event."""
        with self._lock:
            for watches in self._by_path.values():
                self._unread.update(dict.fromkeys(watches))
            self._lock.notify_all()

    def close(self) -> None:
        """End all watches and the thread; a second call does nothing."""
        self._session.remove_listener(self._note_state)
        with self._lock:
            self._is_closed = True
            self._by_path.clear()
            self._changed.clear()
            self._unread.clear()
            self._lock.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(30.0)

    def __enter__(self) -> NodeWatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, watch: _Watch) -> WatchHandle:
        with self._lock:
            if not self._is_closed:
                self._by_path.setdefault(watch.path, []).append(watch)
                self._unread[watch] = None
                self._lock.notify_all()
        return watch

    def _forget(self, watch: _Watch) -> None:
        with self._lock:
            watch.is_closed = True
            self._changed.pop(watch, None)
            self._unread.pop(watch, None)
            watches = self._by_path.get(watch.path, [])
            if watch in watches:
                watches.remove(watch)
                if not watches:
                    del self._by_path[watch.path]

    def _note_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self.reread()

    # Every one-shot watch is this one bound method, so a client that keeps a set of watches per path keeps one.
    def _note_event(self, event: NodeEvent) -> None:
        with self._lock:
            self._changed.update(dict.fromkeys(self._by_path.get(event.path, ())))
            self._lock.notify_all()

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            with self._lock:
                if pause_s is not None and not self._is_closed:
                    self._lock.wait(pause_s)
                while not self._changed and not self._unread and not self._is_closed:
                    self._lock.wait()
                if self._is_closed:
                    return
                # A change is not delayed by the many reads that follow a reconnection.
                batch = list(islice(self._changed or self._unread, _BATCH))
                for watch in batch:
                    self._changed.pop(watch, None)
                    self._unread.pop(watch, None)
            failed = self._read_together(batch)
            pause_s = self._retry_s if failed else None
            with self._lock:
                self._unread.update(dict.fromkeys(watch for watch in failed if not watch.is_closed))

    def _read_together(self, batch: Sequence[_Watch]) -> list[_Watch]:
        """Read and deliver; return the watches that must be read again."""
        if self._session.is_away:
            return list(batch)
        try:
            self._read(batch)
            return []
        except Exception as error:
            is_outage = isinstance(error, ClusterError) and error.retryable
            if is_outage or len(batch) == 1:
                self._log_failure(batch, error)
                if not is_outage:
                    self._deliver(batch[0], None)
                return list(batch)
        # One node refuses to be read, for example without authorization: read the others singly.
        return [watch for single in batch for watch in self._read_together([single])]

    def _read(self, batch: Sequence[_Watch]) -> None:
        session, notice = self._session, self._note_event
        data = [watch for watch in batch if watch.is_data]
        listing = [watch for watch in batch if not watch.is_data]
        readings: list[tuple[_Watch, Any]] = []
        if data:
            readings += zip(data, session.get_all([watch.path for watch in data], notice), strict=True)
        if listing:
            readings += zip(listing, session.children_all([watch.path for watch in listing], notice), strict=True)
        missing = [watch for watch, reading in readings if reading is None]
        if missing:
            states = session.exists_all([watch.path for watch in missing], notice)
            appeared = {watch for watch, stat in zip(missing, states, strict=True) if stat is not None}
            with self._lock:
                self._changed.update(dict.fromkeys(appeared))
            readings = [(watch, reading) for watch, reading in readings if watch not in appeared]
        for watch, reading in readings:
            self._deliver(watch, reading)

    def _deliver(self, watch: _Watch, reading: Any) -> None:
        watch.has_failed = watch.has_failed and reading is None
        seen: Any
        arguments: tuple[Any, ...]
        if reading is None:
            seen, arguments = None, ((None, None) if watch.is_data else (None,))
        elif watch.is_data:
            # The content counts too: a server that lost its data counts transactions from 0.
            seen, arguments = (reading[1].czxid, reading[1].mzxid, hash(reading[0])), reading
        else:
            names = sorted(reading)
            seen, arguments = hash(tuple(names)), (names,)
        if watch.is_closed or seen == watch.seen:
            return
        watch.seen = seen
        try:
            watch.callback(*arguments)
        except Exception:
            logger.exception("watch callback failed path=%s", watch.path)

    def _log_failure(self, batch: Sequence[_Watch], error: Exception) -> None:
        fresh = [watch for watch in batch if not watch.has_failed]
        for watch in batch:
            watch.has_failed = True
        if fresh:
            log = logger.debug if isinstance(error, NodeMissing) or self._session.is_away else logger.warning
            log("watched nodes unread, retrying path=%s count=%d error=%s", fresh[0].path, len(fresh), error)
