"""``Framing``: the header words before each record of a file, a stream or a message.

``reader`` reads streams of framed records, ``writer`` writes files of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from monolith import _native
from monolith.core.errors import ConfigError

__all__ = ["Framing", "FramingKind", "RecordHeader"]

FramingKind: TypeAlias = Literal["flags", "tfrecord", "bare"]
"""Header words by the four flags; TFRecord; or no header: the whole stream is one record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordHeader:
    """The header before one payload."""

    header_bytes: int
    """Length of the header, including the size word."""

    payload_size: int
    """Length of the payload that follows."""

    sort_id: bytes = b""
    """The key by which the stream was sorted, where the framing has one."""

    source_key: int = 0
    """The data source of a lagrangex header: the low 32 bits of its word, without the last byte."""

    message_type: int = 0
    """The last byte of a lagrangex word: 0 for an Instance. Writers are not strict about it."""

    prefix: int = 0
    """First word of a Kafka dump's prefix; other than 0 on an aggregate page."""

    skipped: int = 0
    """The word of ``kafka_dump``; unused."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Framing:
    """The header before each record. Every word is 8 bytes, little-endian.

    With ``lagrangex_header`` a record is ``[word] [size] payload`` and the other flags have no effect (they are stored
    as False). Otherwise it is ``[prefix, 2 words] [sort id: length and bytes] [word] [size] payload``, each part in
    square brackets only if its flag is set.

    >>> Framing()
    Framing(sort_id=True)
    >>> Framing(sort_id=False).frame(b"ab").hex()
    '02000000000000006162'
    >>> Framing(lagrangex_header=True).frame(b"ab", source=914176)[:8].hex()
    '00f30d0000000000'
    """

    sort_id: bool = True
    """A sort id, with its length before it."""

    kafka_dump: bool = False
    """One word that is skipped."""

    kafka_dump_prefix: bool = False
    """A prefix of two words; on an aggregate page one word, which is the length of the sort id."""

    lagrangex_header: bool = False
    """One word that names the data source."""

    kind: FramingKind = "flags"
    """Set by ``Framing.tfrecord()`` and ``Framing.bare()``; else the flags describe the header."""

    def __post_init__(self) -> None:
        """Refuse invalid values, and clear the flags without effect."""
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"Framing.{name} is {getattr(self, name)!r}, expected True or False")
        if self.kind not in ("flags", "tfrecord", "bare"):
            raise ConfigError(f"Framing.kind is {self.kind!r}, expected 'flags', 'tfrecord' or 'bare'")
        is_plain = self.kind == "flags"
        if not is_plain and (self.kafka_dump or self.kafka_dump_prefix or self.lagrangex_header):
            raise ConfigError(f"a {self.kind} stream has no header flags; use Framing.{self.kind}()")
        if not is_plain or self.lagrangex_header:
            for name in ("sort_id", "kafka_dump", "kafka_dump_prefix"):
                object.__setattr__(self, name, False)

    @classmethod
    def tfrecord(cls) -> Framing:
        """Return TFRecord: length and payload, each with a checksum."""
        return cls(kind="tfrecord")

    @classmethod
    def bare(cls) -> Framing:
        """Return no framing at all: the whole file or message is one record."""
        return cls(kind="bare")

    @classmethod
    def from_bits(cls, bits: int) -> Framing:
        """Return the framing that the native reader calls ``bits``."""
        if bits == _TFRECORD:
            return cls.tfrecord()
        if bits == _BARE:
            return cls.bare()
        if not 0 <= bits < _TFRECORD:
            raise ConfigError(f"bits is {bits}, expected the number of a framing")
        return cls._of_flags({name for place, name in enumerate(_FLAGS) if bits & 1 << place})

    @classmethod
    def parse(cls, text: str) -> Framing:
        """Return the framing that a user names: flags with commas between, "none", "tfrecord" or "bare".

        >>> Framing.parse("sort_id,kafka_dump"), Framing.parse("none"), Framing.parse("tfrecord")
        (Framing(sort_id=True, kafka_dump=True), Framing(sort_id=False), Framing.tfrecord())

        Raises:
            ConfigError: A word is not the name of a flag.
        """
        words = {word.strip() for word in text.split(",")}
        if words in ({"tfrecord"}, {"bare"}):
            return cls.tfrecord() if words == {"tfrecord"} else cls.bare()
        flags = words - {"none"} if words == {"none"} else words
        if unknown := sorted(flags - set(_FLAGS)):
            raise ConfigError(
                f"the framing is {unknown[0]!r}, expected none, tfrecord, bare or some of {', '.join(_FLAGS)}"
            )
        return cls._of_flags(flags)

    @classmethod
    def _of_flags(cls, names: set[str]) -> Framing:
        return cls(
            sort_id="sort_id" in names,
            kafka_dump="kafka_dump" in names,
            kafka_dump_prefix="kafka_dump_prefix" in names,
            lagrangex_header="lagrangex_header" in names,
        )

    @property
    def bits(self) -> int:
        """The number by which the native reader knows this framing."""
        if self.kind != "flags":
            return _TFRECORD if self.kind == "tfrecord" else _BARE
        return sum(1 << place for place, name in enumerate(_FLAGS) if getattr(self, name))

    def frame(self, payload: bytes | bytearray | memoryview, sort_id: bytes = b"", source: int | None = None) -> bytes:
        """Return one record with its header, as in a stream.

        Args:
            payload: The serialized message.
            sort_id: The key of the record; needs the flag ``sort_id``.
            source: The key of its data source, a multiple of 256; needs ``lagrangex_header``.

        Raises:
            ConfigError: The framing has no field for an argument, or an argument is too large.
        """
        key = source or 0
        if not 0 <= key < 1 << 32:
            raise ConfigError(f"source is {source}, expected a data source key of 32 bits")
        return _native.frame(self.bits, payload, sort_id, key)

    def read_header(self, data: bytes | bytearray | memoryview) -> RecordHeader:
        """Read the header at the start of ``data``.

        Raises:
            RecordCorrupt: The header is corrupt, or ``data`` ends inside it.
            ConfigError: Bare records have no header.
        """
        if self.kind == "bare":
            raise ConfigError("a bare record has no header")
        size, payload_size, sort_id, word, prefix, skipped = _native.read_frame_header(self.bits, data)
        return RecordHeader(
            header_bytes=size,
            payload_size=payload_size,
            sort_id=sort_id,
            source_key=word & 0xFFFFFF00,
            message_type=word & 0xFF,
            prefix=prefix,
            skipped=skipped,
        )

    def __repr__(self) -> str:
        if self.kind != "flags":
            return f"Framing.{self.kind}()"
        flags = [f"{name}=True" for name in _FLAGS if getattr(self, name)]
        if not self.sort_id and not self.lagrangex_header:
            flags.insert(0, "sort_id=False")  # the default is True
        return f"Framing({', '.join(flags)})"


# In the order of their bits.
_FLAGS = ("sort_id", "kafka_dump", "kafka_dump_prefix", "lagrangex_header")
_TFRECORD = 16
_BARE = 32
