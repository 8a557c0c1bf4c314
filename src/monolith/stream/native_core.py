"""``NativeJoiner``: the core in C++, with compact state, spill to disk and snapshots.

The rules equal those of ``ReferenceJoiner``; one conformance suite runs both. Features are stored without their names,
so an open impression with ten features takes about 200 bytes. One thread uses a core.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from monolith import _native
from monolith.stream.core import JoinCore
from monolith.stream.events import Action, Event, Impression, Row
from monolith.stream.settings import JoinSettings

__all__ = ["JoinBatch", "NativeJoiner"]

_UNBOUNDED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class JoinBatch:
    """Records of one partition, in order.

    Args:
        values: The values.
        ingest_ms: Append time of each record.
        keys: The key of each record; None if the records have no keys.
        times_ms: The time of each record; None if the records have no times.
    """

    values: _native.Records
    ingest_ms: np.ndarray[Any, np.dtype[np.int64]]
    keys: list[bytes] | None = None
    times_ms: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.values)


class NativeJoiner(JoinCore):
    """A native core.

    Args:
        settings: The rules.
        spill_folder: Folder for state beyond the memory budget; None keeps all state in memory. The core removes
            spill files of earlier processes.

    >>> core = NativeJoiner(JoinSettings(window_ms=10))
    >>> core.apply([Impression(0, b"k", 7), Action(3, b"k", 7, 1)])
    []
    >>> [row.labels for row in core.on_watermark(10)]
    [(1.0,)]
    """

    def __init__(self, settings: JoinSettings, spill_folder: str | os.PathLike[str] | None = None) -> None:
        self._settings = settings
        self._native = _native.Joiner(
            tasks=[sorted(codes) for codes in settings.tasks],
            window=settings.window_ms,
            horizon=settings.horizon,
            orphan_hold=settings.orphan_hold,
            skew=settings.skew_ms,
            late=settings.late,
            is_fast=settings.mode == "fast",
            sample_rate=settings.negatives.sample_rate,
            samples_by_weight=settings.negatives.sampling == "weight",
            salt=settings.negatives.salt,
            max_codes=settings.max_codes,
            max_orphans=settings.max_orphans,
            spill_folder="" if spill_folder is None else os.fspath(spill_folder),
        )

    # --- rules --------------------------------------------------------------------------------------------------------

    @property
    @override
    def settings(self) -> JoinSettings:
        return self._settings

    @property
    @override
    def watermark_ms(self) -> int | None:
        return self._native.watermark

    @property
    @override
    def counters(self) -> Mapping[str, int]:
        counters: dict[str, int] = self._native.counters
        return counters

    @property
    @override
    def open_impressions(self) -> int:
        return self._native.open_impressions

    @property
    @override
    def held_actions(self) -> int:
        return self._native.held_actions

    @override
    def on_impression(self, impression: Impression) -> list[Row]:
        return self.apply([impression])

    @override
    def on_action(self, action: Action) -> list[Row]:
        return self.apply([action])

    @override
    def on_watermark(self, time_ms: int) -> list[Row]:
        self._native.advance(time_ms)
        return self._take_rows()

    @override
    def apply(self, events: Iterable[Event]) -> list[Row]:
        for event in events:
            self.add(event)
        return self._take_rows()

    # --- batches ------------------------------------------------------------------------------------------------------

    def add(self, event: Event, ingest_time_ms: int = 0) -> None:
        """Apply an event. Its rows wait until ``take_examples``."""
        if isinstance(event, Impression):
            self._native.add_impression(
                event.time_ms, event.key, event.item, event.payload, event.event_id, event.ingest_time_ms
            )
        elif isinstance(event, Action):
            self._native.add_action(event.time_ms, event.key, event.item, event.code, ingest_time_ms)
        else:
            self._native.advance(event.time_ms)

    def join(self, batch: JoinBatch, first: int = 0) -> int:
        """Join Examples of a batch from ``first`` on.

        Returns:
            The place of the first record that ``EventParser`` must judge: JSON, a rare form, or a dead letter. The
            length of the batch if none is left.
        """
        return self._native.join(
            batch.values,
            first,
            batch.keys,
            batch.times_ms,
            batch.ingest_ms,
            self._settings.intake.future_ms,
            self._settings.intake.max_record_bytes,
        )

    def advance(self, time_ms: int) -> None:
        """Raise the watermark. Its rows wait until ``take_examples``."""
        self._native.advance(time_ms)

    def take_largest_time(self) -> int | None:
        """Return the largest ``min(event time, ingest time)`` since the last call; None without events."""
        return self._native.take_largest_time()

    def take_examples(
        self, join_time_ms: int = 0, most_bytes: int = _UNBOUNDED
    ) -> tuple[list[bytes], list[bytes], list[int]]:
        """Return waiting rows as keys, serialized Examples and times; a call with ``most_bytes`` may leave some.

        Raises:
            RecordCorrupt: The payload of an impression is not an Example.
        """
        return self._native.take_examples(join_time_ms, most_bytes)

    @property
    def pending_rows(self) -> int:
        """Number of the waiting rows."""
        return self._native.pending_rows

    @property
    def pending_bytes(self) -> int:
        """Estimated bytes of the waiting rows."""
        return self._native.pending_bytes

    # --- bounds -------------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Estimated bytes of the state in memory."""
        return self._native.memory

    @property
    def held_bytes(self) -> int:
        """Estimated bytes of waiting actions."""
        return self._native.held_memory

    @property
    def spilled_bytes(self) -> int:
        """Bytes of the spill files."""
        return self._native.spilled_bytes

    @property
    def entries(self) -> int:
        """Number of (key, item) with any state: open, closed or waiting."""
        return self._native.entries

    def spill(self, memory_bytes: int) -> None:
        """Move state to disk until at most ``memory_bytes`` are in memory or nothing is left to move.

        Raises:
            OSError: The disk is full. The state is as before.
        """
        self._native.spill(memory_bytes)

    def close_oldest(self, count: int) -> int:
        """Close the oldest windows with the labels that are known, and return their number."""
        return self._native.close_oldest(count)

    def drop_oldest_held(self, count: int) -> int:
        """Drop the actions of the (key, item) that wait longest, and return the number of (key, item)."""
        return self._native.drop_oldest_held(count)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the state to a file and sync it.

        Raises:
            OSError: The file cannot be written.
        """
        self._native.save(str(path))

    def restore(self, path: str | Path, memory_bytes: int = _UNBOUNDED) -> None:
        """Fill a new core from a file of ``save``, and spill above ``memory_bytes``.

        Raises:
            SnapshotCorrupt: The file is damaged.
            OSError: The file cannot be read.
        """
        self._native.restore(str(path), memory_bytes)

    def _take_rows(self) -> list[Row]:
        self._native.take_largest_time()
        rows = self._native.take_rows()
        return [
            Row(
                impression=Impression(*fields),
                labels=labels,
                actions=actions,
                pre_actions=pre_actions,
                emission=emission,
                weight=weight,
                sample_rate=sample_rate,
                cause_time_ms=cause_ms,
            )
            for *fields, labels, actions, pre_actions, emission, weight, sample_rate, cause_ms in rows
        ]
