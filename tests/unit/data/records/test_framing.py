from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import _native
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records.framing import Framing

FRAMINGS = [*(Framing.from_bits(bits) for bits in range(9)), Framing.tfrecord()]
framings = st.sampled_from(FRAMINGS)


def test_the_default_is_a_sort_id_and_nothing_else() -> None:
    assert Framing() == Framing(sort_id=True, kafka_dump=False, kafka_dump_prefix=False, lagrangex_header=False)


def test_a_lagrangex_header_makes_the_other_flags_meaningless() -> None:
    assert Framing(lagrangex_header=True) == Framing(
        lagrangex_header=True, sort_id=False, kafka_dump=True, kafka_dump_prefix=True
    )


@pytest.mark.parametrize("framing", FRAMINGS, ids=repr)
def test_its_text_makes_it_again(framing: Framing) -> None:
    assert eval(repr(framing)) == framing
    assert Framing.from_bits(framing.bits) == framing


@pytest.mark.parametrize(
    ("text", "framing"),
    [
        ("none", Framing(sort_id=False)),
        ("sort_id, kafka_dump", Framing(kafka_dump=True)),
        ("lagrangex_header", Framing(lagrangex_header=True)),
        ("kafka_dump_prefix", Framing(sort_id=False, kafka_dump_prefix=True)),
        ("tfrecord", Framing.tfrecord()),
        ("bare", Framing.bare()),
    ],
)
def test_a_user_can_name_it(text: str, framing: Framing) -> None:
    assert Framing.parse(text) == framing


@pytest.mark.parametrize("text", ["", "sortid", "tfrecord,sort_id", "none,sort_id"])
def test_an_unknown_framing_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="tfrecord, bare or some of sort_id"):
        Framing.parse(text)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="no header flags"):
        Framing(kind="tfrecord", kafka_dump=True)
    with pytest.raises(ConfigError, match=r"Framing\.sort_id is 1"):
        Framing(sort_id=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="kind is"):
        Framing(kind="csv")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bits is 33"):
        Framing.from_bits(33)


def test_an_argument_without_a_field_in_the_header_is_refused() -> None:
    with pytest.raises(ConfigError, match="no place for a sort id"):
        Framing(sort_id=False).frame(b"", sort_id=b"7")
    with pytest.raises(ConfigError, match="no place for a data source"):
        Framing().frame(b"", source=256)
    with pytest.raises(ConfigError, match="zero byte"):
        Framing(lagrangex_header=True).frame(b"", source=255)
    with pytest.raises(ConfigError, match="32 bits"):
        Framing(lagrangex_header=True).frame(b"", source=1 << 32)


def test_a_header_contains_every_word_before_a_payload() -> None:
    framing = Framing(sort_id=True, kafka_dump=True, kafka_dump_prefix=True)
    header = framing.read_header(framing.frame(b"payload", sort_id=b"user"))
    assert (header.header_bytes, header.payload_size, header.sort_id) == (44, 7, b"user")
    page = struct.pack("<Q4sQQ", 4, b"user", 99, 7)
    header = framing.read_header(page)
    assert (header.header_bytes, header.prefix, header.sort_id, header.skipped) == (28, 4, b"user", 99)
    lagrangex = Framing(lagrangex_header=True).read_header(struct.pack("<QQ", 914177, 3))
    assert (lagrangex.source_key, lagrangex.message_type, lagrangex.payload_size) == (914176, 1, 3)
    tfrecord = Framing.tfrecord().read_header(Framing.tfrecord().frame(b"abc"))
    assert (tfrecord.header_bytes, tfrecord.payload_size) == (12, 3)


def test_a_header_that_is_cut_or_damaged_is_refused() -> None:
    with pytest.raises(RecordCorrupt, match="give at least 16"):
        Framing().read_header(bytes(9))
    with pytest.raises(RecordCorrupt, match="reserved"):
        Framing().read_header(struct.pack("<QQ", 0, 0xFEFEFEFE))
    with pytest.raises(RecordCorrupt, match="checksum"):
        Framing.tfrecord().read_header(bytes(range(12)))
    with pytest.raises(ConfigError, match="no header"):
        Framing.bare().read_header(b"abc")


def test_a_wrong_piece_or_number_is_refused_by_the_native_reader() -> None:
    with pytest.raises(ConfigError, match="framing 64"):
        _native.FrameReader(64, "test")
    with pytest.raises(TypeError):
        _native.FrameReader(0, "test").feed("text")  # type: ignore[arg-type]


@given(framings, st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=9))), st.data())
def test_any_records_come_back_however_the_stream_is_cut(
    framing: Framing, records: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(framing.frame(payload, sort_id if framing.sort_id else b"") for payload, sort_id in records)
    frames = _native.FrameReader(framing.bits, "test")
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        frames.feed(memoryview(stream)[at : at + size])
        at += size
        while (lot := frames.take(3, 64)) is not None:
            found += [lot[index] for index in range(len(lot))]
            assert len(lot) <= 3
    frames.finish()
    while (lot := frames.take(3, 64)) is not None:
        found += [lot[index] for index in range(len(lot))]
    assert found == [payload for payload, _ in records]
    assert frames.offset == len(stream)
    assert frames.records == len(records)


@given(st.integers(0, 8), st.binary(max_size=200))
def test_any_bytes_give_records_or_a_record_error(bits: int, stream: bytes) -> None:
    frames = _native.FrameReader(bits, "test")
    frames.feed(stream)
    problem = ""
    try:
        frames.finish()
        while frames.take(10, 100) is not None:
            pass
    except RecordCorrupt as error:
        problem = str(error)
    assert problem.startswith("test: record ") if problem else frames.offset == len(stream)
