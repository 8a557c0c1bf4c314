"""Marks: the pushes that a server has applied, per client; and the pushes that one server lacks of another's.

The native shard keeps and encodes the marks; see ``cpp/dataplane/src/client_marks.cc`` for the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

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
    applied: dict[int, tuple[int, int]] = {}
    for one in read.values():
        for client, (highest, mask) in one.items():
            top, union = applied.get(client, (highest, 0))
            newest = max(top, highest)
            applied[client] = newest, (union << (newest - top)) | (mask << (newest - highest))
    return {server: _find_missing(one, applied) for server, one in read.items()}


def _find_missing(marks: Mapping[int, tuple[int, int]], applied: Mapping[int, tuple[int, int]]) -> set[tuple[int, int]]:
    missing = set()
    for client, (newest, union) in applied.items():
        highest, mask = marks.get(client, (newest, 0))
        absent = union & ~(mask << (newest - highest)) & ((1 << (newest - highest + WINDOW + 1)) - 1)
        while absent:
            lowest = absent & -absent
            missing.add((client, newest - lowest.bit_length() + 1))
            absent ^= lowest
    return missing
