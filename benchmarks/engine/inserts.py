"""The case of fresh inserts: a table that grows from nothing, against ``std::unordered_map``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.native import UnorderedMap
from engine.peers import OurTable, PeerMissing
from engine.results import Result, compare, progress, skipped
from engine.workload import Sizes, Workload, scatter
from measure.timing import seconds_of

__all__ = ["insert_cases"]


def insert_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Fill both several times, taking turns batch by batch."""
    [case] = cases
    try:
        UnorderedMap().close()
    except PeerMissing as error:
        yield skipped(case, error)
        return
    seconds = np.array([_fill_both(sizes, number) for number in range(sizes.fills)])
    name = "std::unordered_map, one thread"
    yield compare(case, seconds[:, 0], seconds[:, 1], sizes.rows / 1e6, "M rows/s", peer_name=name)


def _fill_both(sizes: Sizes, number: int) -> tuple[float, float]:
    progress(f"insert_unordered_map: fill {number + 1} of {sizes.fills}")
    workload = Workload(sizes)
    ours, peer = OurTable(workload).table, UnorderedMap()
    ours_s = peer_s = 0.0
    for rows, values in workload.first_values():
        ids = scatter(rows)
        ours_s += seconds_of(lambda ids=ids, values=values: ours.assign(ids, values))  # type: ignore[misc]
        peer_s += seconds_of(lambda ids=ids, values=values: peer.assign(ids, values))  # type: ignore[misc]
    if not len(ours) == len(peer) == sizes.rows:
        raise RuntimeError(f"{sizes.rows} rows inserted, but ours has {len(ours)} and the map {len(peer)}")
    peer.close()
    return ours_s, peer_s
