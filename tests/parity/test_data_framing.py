"""Framing, codecs and detection against the original's vectors: 16 flag combinations, header bytes, damage."""

from __future__ import annotations

import io
import itertools
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from monolith import _native
from monolith.core.errors import RecordCorrupt
from monolith.data.records import codecs
from monolith.data.records.codecs import CODECS, Codec
from monolith.data.records.compressors import compressor
from monolith.data.records.detect import detect
from monolith.data.records.framing import Framing
from monolith.data.records.reader import RecordReader, read_records
from monolith.data.records.writer import RecordWriter

# data_read_write_test.cc: records 'a' * i for i = 0..15, under every combination of the four flags.
RECORDS = [b"a" * i for i in range(16)]
COMBINATIONS = [
    Framing(sort_id=s, kafka_dump=d, kafka_dump_prefix=p, lagrangex_header=x)
    for s, d, p, x in itertools.product((False, True), repeat=4)
]
LAYOUTS = list(dict.fromkeys(COMBINATIONS))

# The worked bytes of the messages that ship with the original, decoded by hand.
INSTANCE = bytes.fromhex(
    "0a10 0100000000000000 0200000000000000 1a08 00000000 0000803f 2a03 320101 4a0d 0a0161 1208 0300000000000000"
)
EXAMPLE_BATCH = bytes.fromhex(
    "0a13 0a0161 120c120a0a08 6400000000000100 2001 0a15 0a095f5f4c4142454c5f5f 1208 1a060a04 0000803f 1801"
)
EXAMPLE = bytes.fromhex(
    "0a13 0a0161 120c120a0a08 6400000000000100 1801 a2060f 11 0700000000000000 dd01 0000003f"
    "aa0604 0000803f b506 00000040"
)


def reference_frame(framing: Framing, payload: bytes) -> bytes:
    """The bytes of the original's test writer, spelled out."""
    if framing.lagrangex_header:
        header = bytes(8)
    else:
        header = bytes(16 * framing.kafka_dump_prefix + 8 * framing.sort_id + 8 * framing.kafka_dump)
    return header + struct.pack("<Q", len(payload)) + payload


def test_there_are_16_combinations_and_9_layouts() -> None:
    assert len(COMBINATIONS) == 16
    assert len(LAYOUTS) == 9


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("framing", COMBINATIONS, ids=repr)
def test_every_combination_and_codec_returns_the_written_records(
    framing: Framing, codec: Codec, tmp_path: Path
) -> None:
    path = tmp_path / "records"
    with RecordWriter(path, framing=framing, compression=codec) as writer:
        for record in RECORDS:
            writer.write(record)
    assert list(read_records(path, framing=framing, compression=codec)) == RECORDS
    assert list(read_records(path, framing=framing, compression="auto")) == RECORDS


@pytest.mark.parametrize("framing", LAYOUTS, ids=repr)
def test_a_plain_file_has_the_bytes_of_the_original(framing: Framing, tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "records", framing=framing, compression="none") as writer:
        for record in RECORDS:
            writer.write(record)
    assert (tmp_path / "records").read_bytes() == b"".join(reference_frame(framing, record) for record in RECORDS)


def test_a_framed_instance_is_preceded_by_two_zero_words_and_its_size() -> None:
    framed = Framing(sort_id=True, kafka_dump=True).frame(INSTANCE)
    assert framed == bytes(16) + bytes.fromhex("3000000000000000") + INSTANCE


@pytest.mark.parametrize(
    ("name_hash", "key", "header"),
    [
        (3571, 914176, "00f30d0000000000"),  # pc
        (-1068855134, 1250992640, None),  # mobile
        (94756405, 2782803200, None),  # cloud
    ],
)
def test_a_lagrangex_word_holds_24_bits_of_the_hash_of_the_source(name_hash: int, key: int, header: str | None) -> None:
    framing = Framing(lagrangex_header=True)
    assert name_hash << 8 & 0xFFFFFFFF == key
    framed = framing.frame(INSTANCE, source=key)
    assert header is None or framed[:8].hex() == header
    assert framed[:8] == struct.pack("<Q", key)
    assert framing.read_header(framed).source_key == key
    reader = _native.FrameReader(framing.bits, "test")
    reader.feed(framed)
    lot = reader.take(1, 1)
    assert lot is not None
    assert lot.source_keys.tolist() == [key]


def damaged_files(framing: Framing, codec: Codec) -> Iterator[tuple[bytes, bytes]]:
    packed = compressor(codec)
    plain = b"".join(framing.frame(record) for record in (b"", b"ab", INSTANCE))
    whole = packed.compress(plain) + packed.flush()
    for size in range(len(whole) + 1):
        yield whole[:size], whole
    for at in range(len(whole)):
        for bit in (0, 3, 7):
            yield whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :], whole


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("framing", [*LAYOUTS, Framing.tfrecord()], ids=repr)
def test_a_cut_or_flipped_file_gives_whole_records_or_an_error_with_its_place(
    framing: Framing, codec: Codec, tmp_path: Path
) -> None:
    expected = [b"", b"ab", INSTANCE]
    ends = list(itertools.accumulate(len(framing.frame(record)) for record in expected))
    for content, whole in damaged_files(framing, codec):
        frames = _native.FrameReader(framing.bits, "file")
        found: list[bytes] = []
        problem = ""
        try:
            for piece in codecs.decompress(io.BytesIO(content), codec, "file"):
                frames.feed(piece)
            frames.finish()
            while (lot := frames.take(10, 1 << 20)) is not None:
                found += [lot[index] for index in range(len(lot))]
        except RecordCorrupt as error:
            problem = str(error)
        if problem:
            assert re.match(r"file: (record \d+ at|compressed) byte \d+: ", problem)
        elif len(content) == len(whole):
            # Bytes without a checksum may be read differently, never as more than is there.
            assert sum(map(len, found)) <= ends[-1]
            if codec in ("zstd", "zlib", "gzip"):
                assert found == expected
        else:
            assert found == expected[: len(found)]
            assert codec != "none" or len(content) in (0, *ends)


@pytest.mark.parametrize(
    ("payload", "record"), [(INSTANCE, "instance"), (EXAMPLE, "example"), (EXAMPLE_BATCH, "example_batch")]
)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("framing", [*LAYOUTS, Framing.tfrecord()], ids=repr)
def test_detection_finds_codec_framing_and_message(
    framing: Framing, codec: Codec, payload: bytes, record: str, tmp_path: Path
) -> None:
    path = tmp_path / "unknown"
    with RecordWriter(path, framing=framing, compression=codec) as writer:
        for number in range(100):
            writer.write(payload, sort_id=b"user %d" % number if framing.sort_id else b"")
    found = detect(path)
    assert (found.compression, found.record) == (codec, record)
    assert found.reads_like(framing), found
    assert found.framing is not None
    with RecordReader(path, framing=found.framing) as reader:
        assert list(reader) == [payload] * 100
