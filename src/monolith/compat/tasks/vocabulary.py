"""Sizes of vocabularies: the number of distinct ids per slot, from files and overrides.

Tables grow as needed and take no size. Sizes decide whether ids are hashed (``qr_hashing``) and where they are cut off.
"""

from __future__ import annotations

from collections.abc import Mapping

from monolith.core import storage
from monolith.core.errors import ConfigError

__all__ = ["read_vocabulary", "vocabulary_sizes"]


def read_vocabulary(path: str) -> dict[int, int]:
    r"""Read the number of distinct ids per slot from a file with lines ``slot<TAB>count``.

    Lines whose slot is not a number, such as a header, and empty lines are skipped. The path may be a URL.

    Raises:
        ConfigError: The file cannot be read, or a line has other than two fields, an invalid count, or a slot that
            came before. The text names the line.
    """
    try:
        with storage.open_file(path) as file:
            lines = file.read().decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the vocabulary file {path!r} cannot be read: {error}") from error
    counts: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 2:
            raise ConfigError(f"{path}, line {number}: {len(fields)} fields in {line!r}; write slot<TAB>count")
        slot, count = fields
        if not _is_number(slot):
            continue
        if not _is_number(count):
            raise ConfigError(f"{path}, line {number}: slot {slot} has the count {count!r}; write a whole number")
        if int(slot) in counts:
            raise ConfigError(f"{path}, line {number}: slot {slot} is there twice; keep one line")
        counts[int(slot)] = int(count)
    return counts


def vocabulary_sizes(
    counts: Mapping[int, int],
    *,
    size_per_slot: int | None = None,
    custom_sizes: Mapping[int, int] | None = None,
    offset: int | None = None,
) -> dict[int, int]:
    """Return the size of each slot in ``counts``.

    The size is the slot's entry in ``custom_sizes``, else ``size_per_slot``, else its count; plus ``offset``.

    >>> vocabulary_sizes({1: 10, 2: 20, 3: 30}, custom_sizes={2: 5}, offset=1)
    {1: 11, 2: 6, 3: 31}

    Raises:
        ConfigError: A size is below 1.
    """
    sizes: dict[int, int] = {}
    for slot, count in counts.items():
        size = count if size_per_slot is None else size_per_slot
        size = (custom_sizes or {}).get(slot, size) + (offset or 0)
        if size < 1:
            raise ConfigError(f"slot {slot} has the vocabulary size {size}; it must be 1 or more")
        sizes[slot] = size
    return sizes


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
