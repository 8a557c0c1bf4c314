"""Order of parameter servers: the address of each shard, or the reason why it is unknown."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from monolith.core.errors import ConfigError
from monolith.discovery.base import ServiceInfo

__all__ = ["Ordering", "OrderingIssue", "order_servers"]


class OrderingIssue(enum.StrEnum):
    """Why servers cannot be ordered; further registrations may resolve it."""

    MISSING_OR_GAPPED_INDEX_SET = "MissingOrGappedIndexSet"
    CONFLICTING_DUPLICATE_INDEX = "ConflictingDuplicateIndex"
    MIXED_INDEX_METADATA_PRESENCE = "MixedIndexMetadataPresence"
    INVALID_INDEX_METADATA = "InvalidIndexMetadata"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering:
    """Addresses in the order of their shards, or the issue that prevents it."""

    addresses: tuple[str, ...] = ()
    """One address per shard. Servers without an index may be fewer than ``count``: query again."""
    issue: OrderingIssue | None = None
    """Problem with the indexes; ``addresses`` is empty then."""


def order_servers(services: Sequence[ServiceInfo], count: int) -> Ordering:
    """Return the addresses of servers in the order of their shards.

    If all servers have an index, 0 to ``count - 1`` are required, and further servers are ignored. If no server has
    one, the first ``count`` distinct addresses in sorted order are used. The index is ``ServiceInfo.index``, or the
    number in ``metadata["index"]``.

    Raises:
        ConfigError: ``count`` is not positive.
    """
    if count < 1:
        raise ConfigError(f"count of servers is {count}; give a whole number of at least 1")
    texts = [_index_text(service) for service in services]
    if all(text is None for text in texts):
        return Ordering(addresses=tuple(sorted({service.address for service in services})[:count]))
    if None in texts:
        return Ordering(issue=OrderingIssue.MIXED_INDEX_METADATA_PRESENCE)
    by_index: dict[int, str] = {}
    for text, service in zip(texts, services, strict=True):
        if text is None or not (text.isascii() and text.isdigit()):
            return Ordering(issue=OrderingIssue.INVALID_INDEX_METADATA)
        if by_index.setdefault(int(text), service.address) != service.address:
            return Ordering(issue=OrderingIssue.CONFLICTING_DUPLICATE_INDEX)
    if any(index not in by_index for index in range(count)):
        return Ordering(issue=OrderingIssue.MISSING_OR_GAPPED_INDEX_SET)
    return Ordering(addresses=tuple(by_index[index] for index in range(count)))


def _index_text(service: ServiceInfo) -> str | None:
    return service.metadata.get("index") if service.index is None else str(service.index)
