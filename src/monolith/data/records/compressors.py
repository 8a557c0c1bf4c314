"""``compressor``: compresses whole files, with one compressor per codec of ``codecs``."""

from __future__ import annotations

import zlib
from typing import Protocol

import cramjam

from monolith.data.records.codecs import Codec, import_zstandard

__all__ = ["RecordCompressor", "compressor"]

_SNAPPY_BLOCK_BYTES = 1 << 18  # Hadoop's default


class RecordCompressor(Protocol):
    """Compresses a stream."""

    def compress(self, data: bytes) -> bytes:
        """Add bytes; return the compressed bytes that are complete."""
        ...

    def flush(self) -> bytes:
        """Return the remaining bytes. The last call."""
        ...


def compressor(codec: Codec) -> RecordCompressor:
    """Return a new compressor of ``codec``."""
    if codec == "none":
        return _Plain()
    if codec == "snappy":
        return _HadoopSnappy()
    if codec == "zstd":
        made: RecordCompressor = import_zstandard().ZstdCompressor(write_checksum=True).compressobj()
        return made
    return zlib.compressobj(wbits=zlib.MAX_WBITS if codec == "zlib" else 16 + zlib.MAX_WBITS)


class _Plain:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _HadoopSnappy:
    """One chunk per block, blocks of 256 KiB."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def compress(self, data: bytes) -> bytes:
        self._waiting += data
        whole = len(self._waiting) - len(self._waiting) % _SNAPPY_BLOCK_BYTES
        blocks = [self._block(begin) for begin in range(0, whole, _SNAPPY_BLOCK_BYTES)]
        del self._waiting[:whole]
        return b"".join(blocks)

    def flush(self) -> bytes:
        rest = self._block(0) if self._waiting else b""
        self._waiting.clear()
        return rest

    def _block(self, begin: int) -> bytes:
        block = bytes(self._waiting[begin : begin + _SNAPPY_BLOCK_BYTES])
        chunk = bytes(cramjam.snappy.compress_raw(block))
        return len(block).to_bytes(4, "big") + len(chunk).to_bytes(4, "big") + chunk
