"""Admission filters: which absent ids get a row, by counted sightings or by chance.

The engine calls a filter only for ids without a row whose slot has a threshold above 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from monolith.core.errors import ConfigError
from monolith.embedding._part import SpecPart, check_bool, check_whole, decode_part, encode_part

__all__ = [
    "FILTERS",
    "AdmissionFilter",
    "NoFilter",
    "ProbabilisticFilter",
    "SlidingHashFilter",
    "decode_filter",
    "encode_filter",
]


class AdmissionFilter(SpecPart):
    """The base of all admission filters."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class NoFilter(AdmissionFilter):
    """Every id gets a row at its first sighting."""

    kind: ClassVar[str] = "no_filter"


@dataclass(frozen=True, slots=True)
class SlidingHashFilter(AdmissionFilter):
    """Counts sightings in a ring of small hash tables that forgets the oldest; admits the (threshold + 1)-th."""

    kind: ClassVar[str] = "sliding_hash_filter"

    capacity: int = 300_000_000
    """Smallest number of remembered ids; at least 300."""
    _: KW_ONLY
    split_num: int = 7
    """Number of tables in the ring."""

    def __post_init__(self) -> None:
        check_whole(self, "capacity", at_least=1)
        check_whole(self, "split_num", at_least=5)
        if max(self.capacity, 300) // (self.split_num - 1) < 2:
            raise ConfigError(
                f"SlidingHashFilter.split_num is {self.split_num} for capacity {self.capacity}; "
                f"use at most {max(self.capacity, 300) // 2 + 1}"
            )


@dataclass(frozen=True, slots=True)
class ProbabilisticFilter(AdmissionFilter):
    """Admits by chance, without memory, after about ``threshold`` sightings on average."""

    kind: ClassVar[str] = "probabilistic_filter"

    _: KW_ONLY
    equal_probability: bool = True
    """True: each sighting has the same chance, 95 % are in after threshold sightings. False: count / threshold."""

    def __post_init__(self) -> None:
        check_bool(self, "equal_probability")


FILTERS: Mapping[str, type[AdmissionFilter]] = {
    cls.kind: cls for cls in (NoFilter, SlidingHashFilter, ProbabilisticFilter)
}
"""Every filter class by its kind."""


def encode_filter(admission: AdmissionFilter) -> dict[str, Any]:
    """Return the JSON form of a filter."""
    return encode_part(admission)


def decode_filter(encoded: object, where: str) -> AdmissionFilter:
    """Return the filter that ``encode_filter`` wrote.

    Raises:
        ConfigError: The JSON describes something else; the error names ``where``.
    """
    return decode_part(encoded, FILTERS, where)
