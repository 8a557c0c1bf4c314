"""``decompress``: reads compressed files in bounded pieces; ``codec_of_head`` detects the codec.

The five codecs are "none", snappy (Hadoop's block codec), zstd, zlib and gzip. A small file that claims to be huge
cannot take more memory than a few pieces. Only this module imports zstandard. ``compressors`` writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, BinaryIO, Literal, NoReturn, TypeAlias, cast

import cramjam

from monolith.core.errors import ConfigError, RecordCorrupt

__all__ = [
    "CODECS",
    "Codec",
    "Compression",
    "HEAD_BYTES",
    "PIECE_BYTES",
    "check_compression",
    "codec_of_head",
    "codec_of_name",
    "decompress",
    "import_zstandard",
    "resolve_codec",
]

Codec: TypeAlias = Literal["none", "snappy", "zstd", "zlib", "gzip"]
"""The compression of a whole file."""

Compression: TypeAlias = Literal["auto", "none", "snappy", "zstd", "zlib", "gzip"]
"""A codec, or "auto": detected from the first bytes, else from the file name, else none."""

CODECS: tuple[Codec, ...] = ("none", "snappy", "zstd", "zlib", "gzip")

PIECE_BYTES = 1 << 20
"""Approximate size of a piece; no piece is larger than four times this (snappy: than one chunk)."""

HEAD_BYTES = 1 << 16
"""Bytes of a file that ``codec_of_head`` needs."""

_SUFFIXES: dict[str, Codec] = {".snappy": "snappy", ".zst": "zstd", ".zstd": "zstd", ".zz": "zlib", ".gz": "gzip"}
_READ_BYTES = 1 << 18

# Snappy turns at most 64 bytes into 3, so a chunk that claims more than this many times its size is corrupt.
_SNAPPY_EXPANSION = 32
_SNAPPY_CHUNK_LIMIT = 1 << 28  # bytes in and out; readers refuse larger chunks
_ZSTD_BLOCK_LIMIT = 1 << 17
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50  # and the 15 numbers after it


def check_compression(compression: str) -> Compression:
    """Return ``compression`` if it is valid, or raise ``ConfigError`` with the valid values."""
    if compression != "auto" and compression not in CODECS:
        raise ConfigError(f"compression is {compression!r}, expected one of auto, {', '.join(CODECS)}")
    return cast(Compression, compression)


def codec_of_name(name: str) -> Codec:
    """Return the codec of a file name's suffix.

    >>> codec_of_name("part-0.pb.zst"), codec_of_name("part-0.pb")
    ('zstd', 'none')
    """
    return next((codec for suffix, codec in _SUFFIXES.items() if name.endswith(suffix)), "none")


def codec_of_head(head: bytes, *, is_whole: bool = False) -> Codec | None:
    """Return the codec of a file by its first bytes, or None.

    A magic number alone proves nothing: a plain file whose first record has 40,056 bytes begins like zlib. So the
    codec must also be able to decompress the head.
    """
    if head[:3] == b"\x1f\x8b\x08" and _inflates(head, "gzip"):
        return "gzip"
    if len(head) >= 2 and head[0] == 0x78 and int.from_bytes(head[:2], "big") % 31 == 0 and _inflates(head, "zlib"):
        return "zlib"
    magic = int.from_bytes(head[:4], "little")
    if len(head) >= 4 and (magic == _ZSTD_MAGIC or magic & ~15 == _ZSTD_SKIPPABLE):
        return "zstd"
    return "snappy" if _is_snappy(head, is_whole) else None


def resolve_codec(compression: Compression, name: str, head: bytes, *, is_whole: bool = False) -> Codec:
    """Return the codec of a file: ``compression``, or for "auto" the codec of the head, else of the name."""
    if compression != "auto":
        return compression
    if not head:
        return "none"
    return codec_of_head(head, is_whole=is_whole) or codec_of_name(name)


# --- reading ----------------------------------------------------------------------------------------------------------


def decompress(stream: BinaryIO, codec: Codec, source: str) -> Iterator[bytes]:
    """Yield the decompressed content of ``stream`` in pieces of about ``PIECE_BYTES``.

    Args:
        stream: Read from its current position to its end; not closed.
        codec: The compression of the stream.
        source: Name of the stream in errors.

    Raises:
        RecordCorrupt: The stream is cut off or corrupt; the text names the offset in the compressed stream.
    """
    if codec == "none":
        return iter(lambda: stream.read(4 * PIECE_BYTES), b"")
    window = _Window(stream, source)
    return _join_small(_READERS[codec](window))


def _join_small(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join small pieces, so that consumers are not called for every few bytes."""
    waiting: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES:
                yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
                waiting, size = [], 0
    except RecordCorrupt:
        if size:
            yield b"".join(waiting)  # the bytes before the damage are valid
        raise
    if size:
        yield b"".join(waiting)


class _Window:
    """Reads compressed bytes by count, and tracks their offset for errors."""

    def __init__(self, stream: BinaryIO, source: str) -> None:
        self._stream = stream
        self._source = source
        self._bytes = b""
        self._at = 0
        self._begin = 0

    @property
    def offset(self) -> int:
        return self._begin + self._at

    def peek(self, size: int) -> bytes:
        """Return the next ``size`` bytes, or fewer at the end, without consuming them."""
        left = len(self._bytes) - self._at
        if left < size:
            parts = [self._bytes[self._at :]]
            while left < size and (piece := self._stream.read(max(_READ_BYTES, min(size - left, PIECE_BYTES)))):
                parts.append(piece)
                left += len(piece)
            self._begin += self._at
            self._bytes = b"".join(parts)
            self._at = 0
        return self._bytes[self._at : self._at + size]

    def take(self, size: int, what: str) -> bytes:
        """Return the next ``size`` bytes, or raise an error that names ``what`` as cut off."""
        found = self.peek(size)
        if len(found) < size:
            self.fail(f"the file ends inside {what}: {size} bytes are needed, {len(found)} are left")
        self._at += size
        return found

    def some(self) -> bytes:
        """Return the buffered bytes, or those of the next read; empty at the end."""
        left = self._bytes[self._at :] or self._stream.read(_READ_BYTES) or b""
        self._begin = self.offset
        self._bytes = left
        self._at = len(left)
        return left

    def give_back(self, size: int) -> None:
        """Put back the last ``size`` bytes that ``some`` returned."""
        self._at -= size

    def is_at_end(self) -> bool:
        return not self.peek(1)

    def fail(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        raise RecordCorrupt(f"{self._source}: compressed byte {self.offset}: {reason}") from cause


def _read_deflate(window: _Window, codec: Literal["zlib", "gzip"]) -> Iterator[bytes]:
    """Yield the members in order; each must be complete, with its checksum, before the next."""
    while not window.is_at_end():
        machine = _inflater(codec)
        while not machine.eof:
            data = machine.unconsumed_tail or window.some()
            if not data:
                window.fail(f"the file ends inside a {codec} stream")
            try:
                piece = machine.decompress(data, PIECE_BYTES)
            except zlib.error as exc:
                window.fail(f"not {codec} data ({exc})", exc)
            if piece:
                yield piece
        window.give_back(len(machine.unused_data))
        if codec == "gzip":
            _skip_padding(window)


def _skip_padding(window: _Window) -> None:
    """Skip zeros after a gzip member, which are padding by convention."""
    while zeros := len(head := window.peek(512)) - len(head.lstrip(b"\0")):
        window.take(zeros, "padding")


def _inflater(codec: Literal["zlib", "gzip"]) -> Any:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS if codec == "zlib" else 16 + zlib.MAX_WBITS)


def _inflates(head: bytes, codec: Literal["zlib", "gzip"]) -> bool:
    try:
        _inflater(codec).decompress(head, HEAD_BYTES)
    except zlib.error:
        return False
    return True


def _read_zstd(window: _Window) -> Iterator[bytes]:
    """Yield the frames as one stream."""
    zstandard = import_zstandard()
    source = _ZstdSource(window)
    machine = zstandard.ZstdDecompressor().stream_reader(source, read_size=_READ_BYTES, read_across_frames=True)
    while True:
        try:
            piece = machine.read(PIECE_BYTES)
        except zstandard.ZstdError as exc:
            window.fail(f"corrupt zstd data before this byte ({exc})", exc)
        if not piece:
            break
        yield piece
    source.check()


class _ZstdSource:
    """The compressed bytes for zstandard, which takes a cut stream for a whole one and does not tell where it fails.

    It follows the frames and blocks by their headers. A stream ends in front of a wrong header, so that the bytes
    before it are decompressed; ``check`` then raises the error.
    """

    def __init__(self, window: _Window) -> None:
        self._window = window
        self._inside: str | None = None
        """The part of a frame that the next bytes belong to; None between frames."""
        self._damage: str | None = None
        self._head = b""
        """The bytes read so far of a header."""
        self._steps = self._walk()
        self._needed, self._is_header = next(self._steps)

    def read(self, _: int) -> bytes:
        """Return the next bytes, many or few; none at the end or in front of damage."""
        data = b"" if self._damage else self._window.some()
        at = 0
        while at < len(data):
            taken = data[at : at + self._needed] if self._is_header else b""
            step = min(self._needed, len(data) - at)
            self._head += taken
            self._needed -= step
            at += step
            try:
                while self._needed == 0:
                    self._needed, self._is_header = self._steps.send(self._head)
                    self._head = b""
            except StopIteration as end:
                self._damage = end.value
                at -= step
                self._window.give_back(len(data) - at)
                return data[:at]
        return data

    def check(self) -> None:
        """Raise an error if the stream does not end behind a whole frame."""
        if self._damage is not None:
            self._window.fail(self._damage)
        if self._inside is not None or self._head:
            self._window.fail(f"the file ends inside {self._inside or 'a magic number'}; missing bytes: {self._needed}")

    def _walk(self) -> Generator[tuple[int, bool], bytes, str]:
        """Yield how many bytes come next, and whether they are a header, which is sent back; return the damage."""
        while True:
            self._inside = None
            magic = int.from_bytes((yield 4, True), "little")
            if magic & ~15 == _ZSTD_SKIPPABLE:
                self._inside = "a skippable frame"
                yield int.from_bytes((yield 4, True), "little"), False
                continue
            if magic != _ZSTD_MAGIC:
                return "no zstd frame starts here; use compression='auto', or another codec"
            self._inside = "a zstd frame header"
            flags = (yield 1, True)[0]
            is_single, has_checksum = bool(flags & 0x20), bool(flags & 0x04)
            size_bytes = (1 if is_single else 0, 2, 4, 8)[flags >> 6]
            yield (not is_single) + (0, 1, 2, 4)[flags & 3] + size_bytes, False
            is_last = False
            while not is_last:
                self._inside = "a zstd block"
                word = int.from_bytes((yield 3, True), "little")
                is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
                if kind == 3 or size > _ZSTD_BLOCK_LIMIT:
                    return f"a zstd block of kind {kind} and {size} bytes is not possible"
                yield 1 if kind == 1 else size, False
            if has_checksum:
                self._inside = "the checksum of a zstd frame"
                yield 4, False


def import_zstandard() -> Any:
    """Return the module ``zstandard``, or raise ``ConfigError`` with the command that installs it."""
    try:
        import zstandard
    except ImportError as exc:
        raise ConfigError("zstd needs the package zstandard: pip install zstandard") from exc
    return zstandard


def _read_snappy(window: _Window) -> Iterator[bytes]:
    """Yield the chunks of blocks: [big-endian uncompressed length], then chunks of [big-endian length] [raw snappy]."""
    while not window.is_at_end():
        left = int.from_bytes(window.take(4, "the length of a snappy block"), "big")
        while left > 0:
            size = int.from_bytes(window.take(4, "the length of a snappy chunk"), "big")
            if size > _SNAPPY_CHUNK_LIMIT:
                window.fail(f"a snappy chunk of {size} bytes is above the limit of {_SNAPPY_CHUNK_LIMIT}")
            offset = window.offset
            chunk = window.take(size, "a snappy chunk")
            claim = _snappy_claim(chunk)
            if claim is None or claim > min(left, _SNAPPY_CHUNK_LIMIT, _SNAPPY_EXPANSION * max(size, 4)):
                window.fail(
                    f"the chunk of {size} bytes at byte {offset} claims to hold {claim} bytes of the {left} that its "
                    "block has left; the file is corrupt, or is not Hadoop's snappy"
                )
            if claim == 0:
                continue
            try:
                yield bytes(cramjam.snappy.decompress_raw(chunk))
            except cramjam.DecompressionError as exc:
                window.fail(f"the chunk at byte {offset} is not snappy data ({exc})", exc)
            left -= claim


def _snappy_claim(chunk: bytes) -> int | None:
    """Return the uncompressed length at the start of a raw snappy chunk; None if it is invalid."""
    size = 0
    for place, byte in enumerate(chunk[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    return None


def _is_snappy(head: bytes, is_whole: bool) -> bool:
    """Return True if the first block and chunk are plausible, and the chunk decompresses if it is complete.

    Snappy has no magic number.
    """
    if len(head) < 9:
        return False
    block, size = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    chunk = head[8 : 8 + size]
    claim = _snappy_claim(chunk)
    most = min(block, _SNAPPY_CHUNK_LIMIT, _SNAPPY_EXPANSION * max(size, 4))
    if not 0 < size <= _SNAPPY_CHUNK_LIMIT or not claim or claim > most:
        return False
    if len(chunk) < size:
        # The head ends inside the chunk: accept only the form that writers produce, a whole block in one chunk.
        return not is_whole and claim == block
    try:
        cramjam.snappy.decompress_raw(chunk)
    except cramjam.DecompressionError:
        return False
    return True


_READERS: dict[Codec, Callable[[_Window], Iterator[bytes]]] = {
    "snappy": _read_snappy,
    "zstd": _read_zstd,
    "zlib": lambda window: _read_deflate(window, "zlib"),
    "gzip": lambda window: _read_deflate(window, "gzip"),
}
