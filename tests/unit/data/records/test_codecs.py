from __future__ import annotations

import contextlib
import gzip
import io
import random
import struct
import zlib
from pathlib import Path

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records import codecs
from monolith.data.records.codecs import CODECS, Codec
from monolith.data.records.compressors import compressor
from monolith.data.records.framing import Framing
from monolith.data.records.reader import RecordReader
from monolith.data.records.writer import RecordWriter


def packed(data: bytes, codec: Codec) -> bytes:
    made = compressor(codec)
    return made.compress(data) + made.flush()


def unpacked(data: bytes, codec: Codec) -> bytes:
    return b"".join(codecs.decompress(io.BytesIO(data), codec, "file"))


@given(st.sampled_from(CODECS), st.lists(st.binary(max_size=300)))
def test_compressed_bytes_decompress_to_the_same_bytes(codec: Codec, parts: list[bytes]) -> None:
    made = compressor(codec)
    stream = b"".join(made.compress(part) for part in parts) + made.flush()
    assert unpacked(stream, codec) == b"".join(parts)


def test_other_programs_read_our_files_and_we_read_theirs() -> None:
    data = bytes(range(256)) * 5000
    assert gzip.decompress(packed(data, "gzip")) == data
    assert zlib.decompress(packed(data, "zlib")) == data
    assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed(data, "zstd"))).read() == data
    assert unpacked(gzip.compress(data), "gzip") == data
    assert unpacked(zlib.compress(data), "zlib") == data
    for level in (1, 19):
        assert unpacked(zstandard.ZstdCompressor(level=level).compress(data), "zstd") == data
    without_size = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(data)
    assert unpacked(without_size, "zstd") == data


def test_streams_that_follow_each_other_are_one() -> None:
    for codec in ("zstd", "gzip", "zlib", "snappy"):
        stream = b"".join(packed(part, codec) for part in (b"one ", b"", b"two ", b"three"))
        assert unpacked(stream, codec) == b"one two three"
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    assert unpacked(skippable + packed(b"one", "zstd") + skippable, "zstd") == b"one"
    assert unpacked(gzip.compress(b"one") + bytes(700), "gzip") == b"one"


def hadoop_block(data: bytes, *cuts: int) -> bytes:
    chunks = [data[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True)]
    raw = [bytes(cramjam.snappy.compress_raw(chunk)) for chunk in chunks]
    return struct.pack(">I", len(data)) + b"".join(struct.pack(">I", len(chunk)) + chunk for chunk in raw)


def test_a_hadoop_block_may_have_several_chunks_and_be_empty() -> None:
    stream = hadoop_block(b"abcdefgh", 3, 5) + struct.pack(">I", 0) + hadoop_block(b"ij")
    assert unpacked(stream, "snappy") == b"abcdefghij"
    assert codecs.codec_of_head(stream, is_whole=True) == "snappy"


def test_ours_is_big_endian_with_one_chunk_per_block() -> None:
    stream = packed(b"abcd" * 100, "snappy")
    assert struct.unpack(">II", stream[:8]) == (400, len(stream) - 8)


@pytest.mark.parametrize("codec", ["snappy", "zstd", "zlib", "gzip"])
def test_a_cut_stream_is_an_error_that_names_file_and_place(codec: Codec) -> None:
    stream = packed(b"some text that is long enough" * 10, codec)
    for size in range(1, len(stream)):
        with pytest.raises(RecordCorrupt, match=r"^file: compressed byte \d+: "):
            unpacked(stream[:size], codec)


@pytest.mark.parametrize("codec", ["snappy", "zstd", "zlib", "gzip"])
def test_bytes_of_another_format_are_an_error(codec: Codec) -> None:
    for junk in (b"\xff" * 40, b"plain text, nothing else, but long enough", packed(b"x" * 50, codec) + b"\xff" * 20):
        with pytest.raises(RecordCorrupt, match=r"^file: compressed byte \d+: "):
            unpacked(junk, codec)


@given(st.sampled_from(["snappy", "zstd", "zlib", "gzip"]), st.binary(max_size=100))
def test_any_bytes_give_data_or_a_record_error(codec: Codec, junk: bytes) -> None:
    for stream in (junk, packed(b"head", codec) + junk, packed(b"head", codec)[:8] + junk):
        with contextlib.suppress(RecordCorrupt):
            unpacked(stream, codec)


@pytest.mark.parametrize("codec", ["zstd", "zlib", "gzip"])
def test_a_bomb_comes_in_pieces(codec: Codec) -> None:
    bomb = packed(bytes(100 << 20), codec)
    assert len(bomb) < 1 << 20
    total = 0
    for piece in codecs.decompress(io.BytesIO(bomb), codec, "file"):
        assert len(piece) <= 4 * codecs.PIECE_BYTES
        total += len(piece)
    assert total == 100 << 20


def test_a_zstd_bomb_of_run_length_blocks_comes_in_pieces() -> None:
    # A frame without size and checksum, window 128 KiB; each block repeats one byte 128 Ki times in 4 bytes.
    header = struct.pack("<IBB", 0xFD2FB528, 0, 7 << 3)
    block = ((1 << 17) << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    last = (1).to_bytes(3, "little")
    sizes = [len(piece) for piece in codecs.decompress(io.BytesIO(header + block * 1000 + last), "zstd", "file")]
    assert sum(sizes) == 1000 << 17
    assert max(sizes) <= 4 * codecs.PIECE_BYTES


class Drip(io.BytesIO):
    """A file that returns a few bytes per read, as a pipe may."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._most)


def test_zstd_headers_may_be_cut_anywhere() -> None:
    data = random.Random(1).randbytes(300_000)
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    stream = skippable + packed(data, "zstd") + skippable + packed(b"", "zstd") + packed(data[:7], "zstd")
    for most in (1, 2, 3, 5, 1000):
        assert b"".join(codecs.decompress(Drip(stream, most), "zstd", "file")) == data + data[:7]


def test_the_zstd_bytes_before_a_wrong_header_are_decompressed() -> None:
    data = random.Random(1).randbytes(300_000)
    frame = packed(data, "zstd")
    for stream, place, reason in (
        (frame + b"junk" * 9, len(frame), "no zstd frame starts here"),
        (frame + frame[:4] + b"\0\x38" + b"\xff" * 9, len(frame) + 6, "a zstd block of kind 3"),
        (frame + frame[:2], len(frame) + 2, "the file ends inside a magic number; missing bytes: 2"),
        (frame + frame[:100], len(frame) + 100, "the file ends inside a zstd block"),
        (frame[:-1], len(frame) - 1, "the file ends inside the checksum of a zstd frame; missing bytes: 1"),
    ):
        pieces = []
        with pytest.raises(RecordCorrupt, match=rf"^file: compressed byte {place}: {reason}"):  # noqa: PT012
            for piece in codecs.decompress(io.BytesIO(stream), "zstd", "file"):
                pieces.append(piece)
        assert b"".join(pieces)[: len(data)] == data


def test_snappy_claims_are_checked_before_memory_is_taken() -> None:
    huge = struct.pack(">I", 0xFFFFFFFF)
    for chunk, reason in [
        (struct.pack(">I", 0xFFFFFFF0), "above the limit"),
        (struct.pack(">I", 6) + b"\xff\xff\xff\xff\x0f\x00", "claims to hold 4294967295"),
        (struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff", "claims to hold None"),
    ]:
        with pytest.raises(RecordCorrupt, match=reason):
            unpacked(huge + chunk, "snappy")
    with pytest.raises(RecordCorrupt, match="of the 2 that its block has left"):
        unpacked(struct.pack(">I", 2) + hadoop_block(b"abc")[4:], "snappy")


def test_a_plain_file_that_begins_like_a_codec_is_plain(tmp_path: Path) -> None:
    framing = Framing(sort_id=False)
    for size in (0x9C78, 0x088B1F):  # the size words of such records begin like zlib and gzip
        path = tmp_path / "records"
        with RecordWriter(path, framing=framing, compression="none") as writer:
            writer.write(bytes(size))
        with RecordReader(path, framing=framing) as reader:
            assert reader.codec == "none"
            assert [len(record) for record in reader] == [size]


def test_auto_uses_the_bytes_first_and_the_name_second() -> None:
    zipped = gzip.compress(b"abc")
    assert codecs.resolve_codec("auto", "part-0.zst", zipped) == "gzip"
    assert codecs.resolve_codec("auto", "part-0.zst", b"neither") == "zstd"
    assert codecs.resolve_codec("auto", "part-0.pb", b"neither") == "none"
    assert codecs.resolve_codec("auto", "part-0.gz", b"") == "none"
    assert codecs.resolve_codec("zlib", "part-0.gz", zipped) == "zlib"
    assert [codecs.codec_of_name(f"x{suffix}") for suffix in (".snappy", ".zst", ".zz", ".gz", "")] == [
        "snappy",
        "zstd",
        "zlib",
        "gzip",
        "none",
    ]


def test_an_unknown_compression_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'lz4', expected one of auto, none, snappy, zstd, zlib, gzip"):
        codecs.check_compression("lz4")
