"""Marks: the pushes that a server has applied, per client; and the pushes that one server lacks of another's.

The native shard keeps and encodes the marks; see ``cpp/dataplane/src/client_marks.cc`` for the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

__all__ = ["missing_pushes", "read_marks"]

_HEAD = struct.Struct("<II")
_CLIENT = struct.Struct("<QQI")
_RUN = struct.Struct("<II")
WINDOW = 4096
"""Number of pushes per client that a server remembers below the newest."""


def read_marks(marks: bytes) -> dict[int, tuple[int, int]]:
    """Return per client the newest applied push, and a mask: bit k stands for the push k before it."""
    _, clients = _HEAD.unpack_from(marks)
    at, by_client = _HEAD.size, {}
    for _ in range(clients):
        client, highest, runs = _CLIENT.unpack_from(marks, at)
        at += _CLIENT.size
        mask = 0
        for _ in range(runs):
            back, length = _RUN.unpack_from(marks, at)
            at += _RUN.size
            mask |= ((1 << length) - 1) << back
        by_client[client] = (highest, mask)
    return by_client


def missing_pushes(marks: Mapping[int, bytes]) -> dict[int, set[tuple[int, int]]]:
    """Return per server the pushes (client, sequence) that another server has applied and this one has not.

    Pushes below a server's window do not count: the server would refuse them.
    """
    read = {server: read_marks(one) for server, one in marks.items()}
    missing: dict[int, set[tuple[int, int]]] = {server: set() for server in read}
    for client in {client for one in read.values() for client in one}:
        found = {server: one.get(client) for server, one in read.items()}
        applied = {mark for mark in found.values() if mark is not None}
        if len(applied) == 1 and None not in found.values():
            continue  # all servers agree, as on almost all clients
        newest = max(highest for highest, _ in applied)
        for server, mark in found.items():
            for other in applied:
                missing[server].update((client, push) for push in _find_missing(mark or (newest, 0), other))
    return missing


def _find_missing(ours: tuple[int, int], theirs: tuple[int, int]) -> Iterator[int]:
    """Yield the pushes of one client that another server has applied, and that are missing here.

    The window bounds all numbers: sequences of two servers may lie far apart, because a client chooses them.
    """
    (highest, mask), (other_highest, other_mask) = ours, theirs
    ahead = other_highest - highest
    if ahead > WINDOW:
        absent = other_mask
    elif ahead >= 0:
        absent = other_mask & ~(mask << ahead)
    else:
        absent = other_mask & ~(mask >> -ahead) & ((1 << max(0, WINDOW + 1 + ahead)) - 1)
    while absent:
        lowest = absent & -absent
        yield other_highest - lowest.bit_length() + 1
        absent ^= lowest
