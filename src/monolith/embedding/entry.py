"""``Entry``: one row of a table as plain data, the result of ``Table.entry`` and the content of EntryDump records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Entry", "SliceState"]


class SliceState(Mapping[str, NDArray[Any]]):
    """The optimizer state of one slice: field name to its numbers, and the optimizer they belong to.

    >>> SliceState("adagrad", {"norm": np.float32([0.5])})
    SliceState('adagrad', {'norm': [0.5]})
    """

    __slots__ = ("_fields", "kind")

    kind: str
    """The optimizer's name in the engine, such as ``adagrad``."""

    def __init__(self, kind: str, fields: Mapping[str, NDArray[Any]] | None = None) -> None:
        self.kind = kind
        self._fields = dict(fields or {})

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        shown = {name: numbers.tolist() for name, numbers in self._fields.items()}
        return f"SliceState({self.kind!r}, {shown})"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A copy of one row; changing it changes no table."""

    id: int
    """Id of the row."""
    values: NDArray[np.float32]
    """The stored values, all slices. Shapes: (D,)."""
    state: tuple[Mapping[str, NDArray[Any]], ...] = ()
    """Per slice: state field, as the original's dumps spell it ("norm", "beta1_power"), to its numbers (float32; steps
    are int64). Empty when the row was read from a file that carries none."""
    time_s: int = 0
    """Time of the last update."""
