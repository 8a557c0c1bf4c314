"""``look_ahead``: items with the knowledge whether one is the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["look_ahead"]

Item = TypeVar("Item")


def look_ahead(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """Yield each item with whether it is the last one; reads one ahead.

    >>> list(look_ahead([1, 2]))
    [(1, False), (2, True)]
    """
    waiting: list[Item] = []
    for following in items:
        if waiting:
            yield waiting.pop(), False
        waiting.append(following)
    if waiting:
        yield waiting.pop(), True
