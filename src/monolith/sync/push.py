"""Push changed rows to model servers that do not follow, as assignments over TensorFlow Serving's API.

``RowPusher`` reads the changed ids from the published log and the rows from the run's tables. Every target has its own
queue and thread, so a slow or unreachable target does not delay the others. A removed row is pushed as the value of an
absent id, usually zeros, because the protocol has no removal. Dense weights are not pushed; they need an export.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from monolith.artifacts.delta_log import Cut, LogPosition, changed_ids, read_cut
from monolith.core.clock import Clock, Deadline
from monolith.core.errors import MonolithError
from monolith.embedding import MultiTable
from monolith.embedding.shard_map import shard_of
from monolith.embedding.store import EmbeddingStore, Ids
from monolith.sync.push_ids import IdSet
from monolith.sync.push_messages import Assignments
from monolith.sync.push_sender import Export, PushSettings, Sender, SenderStatus
from monolith.sync.push_targets import PushTarget
from monolith.sync.row_updates import iterate_segments, plan_update

__all__ = ["PushSettings", "RowPusher"]

logger = logging.getLogger(__name__)


class RowPusher:
    """Pushes the rows of a run to targets until ``close``. The first cut pushes all rows.

    Args:
        root: Published folder of the run.
        store: Rows of the run.
        targets: Models that receive the rows; ``set_targets`` replaces them.
        clock: Clock of the lag.
        signature: Assignment signature of the targets: ``hashtable_assign``, ``raw_assign`` for
            ``<table>/raw_assign``, or ``<name>/raw_assign`` for all tables.
        shard: (index, count): push only ids with ``uint64(id) % count == index``, which ``store`` has.
        poll_s: Seconds between two looks for a new cut.
        settings: Timeouts, retries and security.
        export: Receives metrics.

    Raises:
        ConfigError: The signature is invalid.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        store: EmbeddingStore,
        targets: Sequence[PushTarget],
        *,
        clock: Clock,
        signature: str = "hashtable_assign",
        shard: tuple[int, int] = (0, 1),
        poll_s: float = 0.05,
        settings: PushSettings | None = None,
        export: Export | None = None,
    ) -> None:
        self._root = Path(root)
        self._clock = clock
        self._poll_s = poll_s
        self._shard = shard
        self._specs = store.specs
        self._dims = {name: spec.dim for name, spec in store.specs.items()}
        self._cut: Cut | None = None
        self._at: Mapping[int, LogPosition] = {}
        self._error = ""
        self._lock = threading.Lock()
        self._ever = IdSet()
        self._ended = threading.Event()
        self._store = store
        self._assignments = Assignments(signature, dict(sorted(self._dims.items())))
        self._settings = settings or PushSettings()
        self._export: Export = export or (lambda metric, value, labels: None)
        self._targets_turn = threading.Lock()
        self._senders: tuple[Sender, ...] = tuple(self._open_sender(target) for target in targets)
        self._thread = threading.Thread(target=self._run, name="push-feed", daemon=True)

    def _open_sender(self, target: PushTarget) -> Sender:
        index, count = target.shard
        return Sender(
            target,
            self._store,
            self._assignments.of_shard(index) if count > 1 else self._assignments,
            self._all_ids,
            settings=self._settings,
            clock=self._clock,
            export=self._export,
        )

    def set_targets(self, targets: Sequence[PushTarget]) -> None:
        """Push to exactly these targets from now on; a new target first gets all rows."""
        with self._targets_turn:
            if self._ended.is_set():
                return
            wanted = dict.fromkeys(targets)
            kept = [sender for sender in self._senders if sender.target in wanted]
            gone = [sender for sender in self._senders if sender.target not in wanted]
            known = {sender.target for sender in kept}
            added = [self._open_sender(target) for target in wanted if target not in known]
            self._senders = (*kept, *added)  # from here on, _queue reaches the new senders too
            for sender in added:
                logger.info("push target added target=%s shard=%d", sender.target, sender.target.shard[0])
                sender.add(self._all_ids())
            for sender in gone:
                logger.info("push target removed target=%s", sender.target)
                sender.close()

    def start(self) -> None:
        """Start the thread that pushes until ``close``."""
        self._thread.start()

    def statuses(self) -> dict[str, SenderStatus]:
        """Return the state of every target."""
        return {str(sender.target): sender.status for sender in self._senders}

    def step(self) -> bool:
        """Read the current cut once; queue its changed ids and return True if the cut is new.

        Raises:
            ArtifactError: A published file is damaged, or was removed meanwhile.
        """
        cut = read_cut(self._root)
        if cut is None or cut == self._cut:
            return False
        update = plan_update(self._root, cut, self._at)
        changed = IdSet()
        if update.base is not None:
            base = MultiTable.load_serving(update.base.tables, specs=self._specs.values(), shard=self._shard)
            changed.add(_ids_of(base))
        for segment in iterate_segments(update.segments):
            changed.add(changed_ids(segment.path))
        self._queue(changed, is_full_rebuild=update.is_full_rebuild)
        self._cut, self._at = cut, update.positions
        return True

    def _queue(self, changed: IdSet, *, is_full_rebuild: bool) -> None:
        if is_full_rebuild:
            # After a rollback, rows that were pushed from the discarded steps must be overwritten too.
            changed.add(self._all_ids())
        index, count = self._shard
        ids = {
            table: keys if count == 1 else keys[shard_of(keys, count) == index]
            for table, keys in changed.all().items()
            if table in self._dims
        }
        with self._lock:
            self._ever.add(ids)
        for sender in self._senders:
            sender.add(ids)

    def _all_ids(self) -> dict[str, Ids]:
        with self._lock:
            return self._ever.all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every target has all published rows, or fails; return whether all have them."""
        self._try_step()
        deadline = Deadline(self._clock, timeout_s)
        return all([sender.wait_until_sent(deadline.remaining_s()) for sender in self._senders])

    def close(self) -> None:
        """Stop pushing after the current requests. A second call does nothing."""
        if self._ended.is_set():
            return
        with self._targets_turn:
            self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for sender in self._senders:
            status = sender.status
            if status.waiting:
                logger.warning(
                    "push stopped with unsent rows, a resumed run sends them target=%s rows=%d error=%s",
                    sender.target,
                    status.waiting,
                    status.error or "-",
                )
            sender.close()

    def _run(self) -> None:
        while not self._ended.wait(self._poll_s):
            self._try_step()
            for sender in self._senders:
                sender.show()

    def _try_step(self) -> None:
        try:
            self.step()
            self._error = ""
        except Exception as error:  # an unexpected class must not stop the thread
            text = str(error) if isinstance(error, MonolithError | OSError) else f"{type(error).__name__}: {error}"
            if text != self._error:
                logger.warning("published log not read for pushing, retrying error=%s", text)
            self._error = text


def _ids_of(tables: MultiTable) -> dict[str, Ids]:
    parts = {name: [ids for ids, _ in tables[name].items()] for name in tables}
    return {name: np.concatenate(found) for name, found in parts.items() if found}
