"""Sets of ids by table: ``IdSet`` collects changed ids, ``chunks_of`` cuts them into requests of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from monolith.embedding.store import Ids

__all__ = ["IdSet", "chunks_of"]


class IdSet:
    """Unique ids by table, 8 bytes per id. ``add`` is cheap: ids are sorted in larger groups. Not thread safe."""

    def __init__(self) -> None:
        self._sorted: dict[str, Ids] = {}
        self._added: dict[str, list[Ids]] = {}

    def add(self, ids: Mapping[str, Ids]) -> None:
        """Add ids, by table."""
        for table, keys in ids.items():
            if not len(keys):
                continue
            added = self._added.setdefault(table, [])
            added.append(keys)
            if sum(map(len, added)) > len(self._sorted.get(table, ())):
                self._settle(table)

    def all(self) -> dict[str, Ids]:
        """Return all ids by table, ascending."""
        for table in list(self._added):
            self._settle(table)
        return dict(self._sorted)

    def take(self) -> dict[str, Ids]:
        """Return all ids and empty the set."""
        ids = self.all()
        self._sorted = {}
        return ids

    def __len__(self) -> int:
        return sum(map(len, self.all().values()))

    def __bool__(self) -> bool:
        return bool(self._sorted or self._added)

    def _settle(self, table: str) -> None:
        new = np.unique(np.concatenate(self._added.pop(table)))
        old = self._sorted.get(table)
        if old is None or not len(old):
            self._sorted[table] = new
            return
        # Most changed ids have changed before; then the large array stays as it is.
        places = np.searchsorted(old, new)
        is_new = old[np.minimum(places, len(old) - 1)] != new
        if is_new.any():
            self._sorted[table] = np.insert(old, places[is_new], new[is_new])


def chunks_of(
    ids: Mapping[str, Ids], row_bytes: Mapping[str, int], max_bytes: int, *, one_table: bool
) -> Iterator[dict[str, Ids]]:
    """Yield chunks of ids whose rows have at most ``max_bytes``. A single row may exceed it.

    Args:
        ids: Ids by table.
        row_bytes: Bytes of a row and its id, by table.
        max_bytes: Largest size of a chunk.
        one_table: Whether a chunk may hold ids of one table only.
    """
    chunk: dict[str, Ids] = {}
    room = max_bytes
    for table, keys in ids.items():
        at = 0
        while at < len(keys):
            fits = room // row_bytes[table]
            if chunk and (fits <= 0 or (one_table and table not in chunk)):
                yield chunk
                chunk, room = {}, max_bytes
                continue
            part = keys[at : at + max(1, fits)]
            chunk[table] = part
            at += len(part)
            room -= len(part) * row_bytes[table]
    if chunk:
        yield chunk
