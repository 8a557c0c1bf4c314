"""Pushing: rows that a run changes go to model servers that do not follow it, by assignments over TensorFlow Serving.

The published log says which ids changed; the tables of the run say what their rows are. Every target has its own queue
and thread: one that is slow, broken or away is no other's concern. Removed rows go as what the run shows for an absent
id, zeros as a rule: the protocol has no other way to say it. Dense weights are not pushed; they need an export.
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
from monolith.core.errors import ConfigError, MonolithError
from monolith.embedding import MultiTable
from monolith.embedding.store import EmbeddingStore, Ids
from monolith.sync.push_ids import IdSet
from monolith.sync.push_messages import Assignments
from monolith.sync.push_sender import Export, PushSettings, Sender, SenderStatus
from monolith.sync.push_targets import PushTarget
from monolith.sync.row_moves import opened, plan_move

__all__ = ["PushSettings", "RowPusher"]

logger = logging.getLogger(__name__)


class RowPusher:
    """Pushes the rows of a run to targets, from the first cut on, which has all of them, until it is closed.

    Args:
        root: What the run publishes.
        store: The run's rows.
        targets: Who gets them.
        clock: Measures lag.
        signature: The assignment that targets offer: ``hashtable_assign``, ``raw_assign`` for ``<table>/raw_assign``,
            or ``<name>/raw_assign`` of all tables.
        poll_s: How long to wait before looking for another cut.
        settings: How rows are sent.
        export: Where numbers go.

    Raises:
        ConfigError: There are no targets, or no such signature.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        store: EmbeddingStore,
        targets: Sequence[PushTarget],
        *,
        clock: Clock,
        signature: str = "hashtable_assign",
        poll_s: float = 0.05,
        settings: PushSettings | None = None,
        export: Export | None = None,
    ) -> None:
        if not targets:
            raise ConfigError("there are no targets to push to; give at least one")
        self._root = Path(root)
        self._clock = clock
        self._poll_s = poll_s
        self._dims = {name: spec.dim for name, spec in store.specs.items()}
        self._cut: Cut | None = None
        self._at: Mapping[int, LogPosition] = {}
        self._error = ""
        self._lock = threading.Lock()
        self._ever = IdSet()
        self._ended = threading.Event()
        assignments = Assignments(signature, dict(sorted(self._dims.items())))
        self._senders = [
            Sender(
                target,
                store,
                assignments,
                self._everything,
                settings=settings or PushSettings(),
                clock=clock,
                export=export or (lambda metric, value, labels: None),
            )
            for target in targets
        ]
        self._thread = threading.Thread(target=self._go_on, name="push-feed", daemon=True)

    def start(self) -> None:
        """Push until ``close``."""
        self._thread.start()

    def statuses(self) -> dict[str, SenderStatus]:
        """Return where every target is."""
        return {str(sender.target): sender.status for sender in self._senders}

    def step(self) -> bool:
        """Look once; return whether there was a cut whose ids are on their way now.

        Raises:
            ArtifactError: What was published is damaged, or was removed meanwhile.
        """
        cut = read_cut(self._root)
        if cut is None or cut == self._cut:
            return False
        move = plan_move(self._root, cut, self._at)
        changed = IdSet()
        if move.base is not None:
            changed.add(_ids_of(MultiTable.load(move.base.tables)))
        with opened(move.segments) as held:
            for segment in held:
                changed.add(changed_ids(segment.path))
        self._feed(changed, is_anew=move.is_anew)
        self._cut, self._at = cut, move.positions
        return True

    def _feed(self, changed: IdSet, *, is_anew: bool) -> None:
        if is_anew:
            # Where the run went back, what it had learnt is gone, and so must be what was pushed of it.
            changed.add(self._everything())
        ids = {table: keys for table, keys in changed.all().items() if table in self._dims}
        with self._lock:
            self._ever.add(ids)
        for sender in self._senders:
            sender.add(ids)

    def _everything(self) -> dict[str, Ids]:
        with self._lock:
            return self._ever.all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every target has all that is published, or fails; return whether all have it."""
        self._try_step()
        deadline = Deadline(self._clock, timeout_s)
        return all([sender.wait_until_sent(deadline.remaining_s()) for sender in self._senders])

    def close(self) -> None:
        """Stop pushing, after the requests under way; a second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for sender in self._senders:
            status = sender.status
            if status.waiting:
                logger.warning(
                    "a target is left without some rows; it gets them when the run goes on target=%s rows=%d error=%s",
                    sender.target,
                    status.waiting,
                    status.error or "-",
                )
            sender.close()

    def _go_on(self) -> None:
        while not self._ended.wait(self._poll_s):
            self._try_step()
            for sender in self._senders:
                sender.show()

    def _try_step(self) -> None:
        try:
            self.step()
            self._error = ""
        except (MonolithError, OSError) as error:
            if str(error) != self._error:
                logger.warning("the published log cannot be read for pushing; trying again error=%s", error)
            self._error = str(error)


def _ids_of(tables: MultiTable) -> dict[str, Ids]:
    parts = {name: [ids for ids, _ in tables[name].items()] for name in tables}
    return {name: np.concatenate(found) for name, found in parts.items() if found}
