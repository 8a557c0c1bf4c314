"""Names of data sources, and the keys that stand for them in record headers and rows.

A key is the low 24 bits of Java's hash of the name, above an empty byte: in a lagrangex header that byte is the
message the record is.
"""

from __future__ import annotations

from monolith.core.errors import ConfigError

__all__ = ["data_source_key", "java_hash"]


def java_hash(text: str) -> int:
    """Return the value of Java's ``text.hashCode()``: a signed 32-bit number.

    >>> java_hash("pc"), java_hash("mobile")
    (3571, -1068855134)
    """
    encoded = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for at in range(0, len(encoded), 2):
        value = (31 * value + int.from_bytes(encoded[at : at + 2], "little")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def data_source_key(name: str) -> int:
    """Return the key of the data source ``name``.

    Raises:
        ConfigError: ``name`` is empty, or its key is 0, which means "no source".

    >>> data_source_key("pc"), data_source_key("cloud")
    (914176, 2782803200)
    """
    key = (java_hash(name) << 8) & 0xFFFFFFFF
    if key == 0:
        raise ConfigError(f"data source {name!r} has the key 0, which means 'no source'; take another name")
    return key
