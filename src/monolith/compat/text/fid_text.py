"""Feature ids in text: lists as users type them in commands and settings."""

from __future__ import annotations

from monolith.core import fid
from monolith.core.errors import ConfigError

__all__ = ["parse_fid_list"]


def parse_fid_list(text: str) -> tuple[int, ...]:
    """Return the ids of a comma list, as signed numbers, each once, in order. A trailing comma is fine.

    Raises:
        ConfigError: An item is not an id.

    >>> parse_fid_list("6457882839108881377, 12,")
    (6457882839108881377, 12)
    """
    found: dict[int, None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            found[fid.as_signed(int(item))] = None
        except ValueError as exc:  # not a number, or not one of 64 bits
            raise ConfigError(f"{item!r} in {text[:80]!r} is not a feature id; ids are whole 64-bit numbers") from exc
    return tuple(found)
