"""Measures the resources of a process over time and detects growth: memory, threads, sockets, files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median

__all__ = ["Usage", "growth", "usage_of"]

_SLACK_BYTES = 16 << 20
_SLACK_SHARE = 0.08
_SLACK_COUNT = 3
_LEAST_SAMPLES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources of a process at one moment."""

    rss_bytes: int
    threads: int
    sockets: int
    files: int
    """Open descriptors except sockets."""

    def as_dict(self) -> dict[str, int]:
        """Return the amounts by name."""
        return asdict(self)


def usage_of(pid: int) -> Usage | None:
    """Return the current resources of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/status") as status:
            found = dict(line.split(":", 1) for line in status)
        links = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
            except FileNotFoundError:
                continue  # closed meanwhile
    except (FileNotFoundError, ProcessLookupError):
        return None
    if "VmRSS" not in found:
        return None  # a zombie: it has ended and its parent has not reaped it
    sockets = sum(link.startswith("socket:") for link in links)
    return Usage(
        rss_bytes=int(found["VmRSS"].split()[0]) << 10,
        threads=int(found["Threads"]),
        sockets=sockets,
        files=len(links) - sockets,
    )


def growth(samples: Sequence[Usage]) -> list[str]:
    """Describe the growing resources; empty if all are steady, or there are too few samples.

    The median of the last third is compared with that of the first, so a peak does not count as growth. The caller
    leaves out samples of the warm-up.
    """
    if len(samples) < _LEAST_SAMPLES:
        return []
    third = len(samples) // 3
    found = []
    for field in fields(Usage):
        first = median(getattr(one, field.name) for one in samples[:third])
        last = median(getattr(one, field.name) for one in samples[-third:])
        slack = max(_SLACK_BYTES, _SLACK_SHARE * first) if field.name == "rss_bytes" else _SLACK_COUNT
        if last - first > slack:
            found.append(f"{field.name} grew from {first:g} to {last:g}")
    return found
