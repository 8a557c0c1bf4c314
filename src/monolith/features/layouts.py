"""Layouts: how the pooled slices of features become the tensors of a model.

A layout is a list of items, each one or more features whose slices are added up or put side by side, and a rule that
joins the items. This module breaks it down into the tensors that it fills and the parts that the native kernel copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from monolith.core.errors import ConfigError

__all__ = ["Combiner", "Item", "Layout", "LayoutTensor", "Out", "Part", "Piece", "layout_name"]

Out: TypeAlias = Literal["concat", "stack", "add_n"]
Combiner: TypeAlias = Literal["sum", "mean", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A slice of one feature."""

    feature: str
    slice: str
    width: int
    length: int
    """Ids that a row of a first-n feature shows; 0 for pooled features."""


@dataclass(frozen=True, slots=True)
class Item:
    """One or more pieces, added up or side by side."""

    pieces: tuple[Piece, ...]
    is_concat: bool = False

    @property
    def width(self) -> int:
        """Columns of the item."""
        return sum(piece.width for piece in self.pieces) if self.is_concat else self.pieces[0].width

    @property
    def length(self) -> int:
        """Positions of the item's sequence; 0 = not a sequence."""
        return self.pieces[0].length

    def offsets(self) -> list[tuple[Piece, int]]:
        """Return each piece and its first column within the item."""
        found, column = [], 0
        for piece in self.pieces:
            found.append((piece, column))
            column += piece.width if self.is_concat else 0
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """Where one piece lies in a tensor: its first float, and the distance from one position to the next."""

    piece: Piece
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class LayoutTensor:
    """One tensor that a layout fills."""

    name: str
    shape: tuple[int, ...]
    """Without the batch dimension."""
    parts: tuple[Part, ...]

    @property
    def width(self) -> int:
        """Floats per example."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Result of one ``embedding_slice`` call.

    ========  ===========  =============
    out       pooled       first n of L
    ========  ===========  =============
    None      (B, d) each  (B, L, d) each
    concat    (B, Σd)      (B, L, Σd)
    stack     (B, n, d)    (B, n, L, d)
    add_n     (B, d)       refused
    ========  ===========  =============
    """

    name: str
    items: tuple[Item, ...]
    out: Out | None
    is_single: bool = False
    """Whether a single feature was declared: the layout is a tensor, not a list of one."""

    def __post_init__(self) -> None:
        if not self.items:
            raise ConfigError(f"layout {self.name!r} has no features; give at least one")
        for item in self.items:
            _check_alike(self.name, "the lengths of a group", [piece.length for piece in item.pieces])
            if not item.is_concat:
                _check_alike(self.name, "the dims of a group that is added up", [piece.width for piece in item.pieces])
        lengths = [item.length for item in self.items]
        widths = [item.width for item in self.items]
        if self.out is not None:
            _check_alike(self.name, "the max_sequence_length of its features", lengths)
        if self.out in ("stack", "add_n"):
            _check_alike(self.name, f"the dims of features joined by {self.out!r}", widths)
        if lengths[0] and (self.out == "add_n" or any(len(i.pieces) > 1 and not i.is_concat for i in self.items)):
            raise ConfigError(f"layout {self.name!r} adds sequences up; use 'stack' or 'concat' for first-n features")

    def tensors(self) -> list[LayoutTensor]:
        """Return the tensors that the layout fills: one per item when ``out`` is None, else one."""
        if self.out is None:
            return [
                _join(self.name if len(self.items) == 1 else f"{self.name}_{number}", (item,), "concat")
                for number, item in enumerate(self.items)
            ]
        return [_join(self.name, self.items, self.out)]


def _join(name: str, items: Sequence[Item], out: Out) -> LayoutTensor:
    length, width, count = items[0].length, items[0].width, len(items)
    total = sum(item.width for item in items)
    parts, column = [], 0
    for number, item in enumerate(items):
        for piece, within in item.offsets():
            if out == "stack":
                parts.append(Part(piece, number * max(1, length) * width + within, width))
            else:
                parts.append(Part(piece, column + within, total if out == "concat" else width))
        column += item.width if out == "concat" else 0
    positions = (length,) if length else ()
    shape = {"stack": (count, *positions, width), "concat": (*positions, total), "add_n": (width,)}[out]
    return LayoutTensor(name, shape, tuple(parts))


def _check_alike(layout: str, what: str, values: Sequence[int]) -> None:
    if len(set(values)) > 1:
        raise ConfigError(f"layout {layout!r}: {what} must be equal, they are {list(values)}")


def layout_name(slice_name: str, features: Sequence[str]) -> str:
    """Return the name of a layout: the slice's, and the md5 of the sorted features joined by commas.

    >>> layout_name("vec", ["mov", "uid"])
    'vec_b8bb987c858296379f9bb9084d83d12a'
    """
    text = ",".join(sorted(features)).encode()
    return f"{slice_name}_{hashlib.md5(text, usedforsecurity=False).hexdigest()}"
