from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.data.records.detect import detect, detect_bytes
from monolith.data.records.framing import Framing
from monolith.data.records.writer import RecordWriter

INSTANCE = bytes.fromhex(
    "0a10 0100000000000000 0200000000000000 1a08 00000000 0000803f 2a03 320101 4a0d 0a0161 1208 0300000000000000"
)
EXAMPLE_BATCH = bytes.fromhex(
    "0a13 0a0161 120c120a0a08 6400000000000100 2001 0a15 0a095f5f4c4142454c5f5f 1208 1a060a04 0000803f 1801"
)
TF_EXAMPLE = bytes.fromhex("0a1d 0a0c 0a026162 1206 1a04 0a02 0708 0a0d 0a0163 1208 1206 0a04 00000000")


def write(path: Path, *payloads: bytes, framing: Framing | None = None, **options: object) -> Path:
    with RecordWriter(path, framing=framing) as writer:
        for payload in payloads:
            writer.write(payload, **options)  # type: ignore[arg-type]
    return path


def test_a_file_is_never_read_as_half_its_records(tmp_path: Path) -> None:
    # With an even number of plain records, every second one could be a sort id.
    for count in (1, 2, 64, 1000):
        found = detect(write(tmp_path / "x", *[INSTANCE] * count, framing=Framing(sort_id=False)))
        assert found.framing == Framing(sort_id=False)


def test_framings_that_read_the_same_records_are_alternatives(tmp_path: Path) -> None:
    found = detect(write(tmp_path / "x", INSTANCE, framing=Framing(sort_id=True)))
    assert found.framing == Framing()
    assert Framing(lagrangex_header=True) in found.alternatives
    assert "read the same records" in found.evidence[-1]


def test_zero_words_before_an_example_batch_are_a_lagrangex_header(tmp_path: Path) -> None:
    found = detect(write(tmp_path / "x", EXAMPLE_BATCH, framing=Framing(lagrangex_header=True)))
    assert (found.framing, found.record) == (Framing(lagrangex_header=True), "example_batch")


def test_a_word_with_a_data_source_is_a_lagrangex_header(tmp_path: Path) -> None:
    found = detect(write(tmp_path / "x", INSTANCE, framing=Framing(lagrangex_header=True), source=914176))
    assert found.framing == Framing(lagrangex_header=True)
    assert found.alternatives == (Framing(sort_id=False, kafka_dump=True),)


def test_a_word_that_no_data_source_can_have_is_skipped(tmp_path: Path) -> None:
    word = b"\xff" * 8
    (tmp_path / "x").write_bytes(word + len(INSTANCE).to_bytes(8, "little") + INSTANCE)
    assert detect(tmp_path / "x").framing == Framing(sort_id=False, kafka_dump=True)


def test_tfrecords_are_certain_with_any_content(tmp_path: Path) -> None:
    found = detect(write(tmp_path / "x", TF_EXAMPLE, framing=Framing.tfrecord()))
    assert (found.framing, found.record, found.confidence) == (Framing.tfrecord(), "tf_example", "certain")
    found = detect(write(tmp_path / "x", b"\xff no message", framing=Framing.tfrecord()))
    assert (found.framing, found.record, found.confidence) == (Framing.tfrecord(), None, "certain")
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(content + content[:-1])
    found = detect(tmp_path / "x")
    assert found.framing == Framing.tfrecord()
    assert "the stream ends inside a record" in found.evidence[-1]


def test_a_single_message_without_framing_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(INSTANCE)
    found = detect(tmp_path / "x")
    assert (found.framing, found.record) == (Framing.bare(), "instance")


def test_records_larger_than_the_first_look_are_found(tmp_path: Path) -> None:
    column = b"\x12\x82\x80\x80\x04" + b"\x1a\xfd\xff\xff\x03" + b"\x0a\xf8\xff\xff\x03" + bytes(0x7FFFF8)
    body = b"\x0a\x01a" + column
    size = len(body)
    batch = b"\x0a" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21]) + body
    found = detect(write(tmp_path / "x", batch + b"\x18\x01", framing=Framing(lagrangex_header=True)))
    assert (found.framing, found.record) == (Framing(lagrangex_header=True), "example_batch")


def test_a_file_that_no_format_fits_is_unknown(tmp_path: Path, seed: int) -> None:
    import random

    (tmp_path / "x").write_bytes(b"\xfe" + random.Random(seed).randbytes(5000))
    found = detect(tmp_path / "x")
    assert (found.framing, found.record, found.confidence) == (None, None, "none")
    assert "no framing makes sizes that chain" in found.evidence
    (tmp_path / "x").write_bytes(b"")
    assert detect(tmp_path / "x").evidence == ("no compression", "the file is empty")


def test_sizes_that_chain_around_unknown_messages_are_possible(tmp_path: Path) -> None:
    found = detect(write(tmp_path / "x", b"\xff\xff\xff", b"\xff" * 9, framing=Framing(sort_id=False)))
    assert (found.framing, found.record, found.confidence) == (Framing(sort_id=False), None, "possible")


def test_a_name_that_promises_another_codec_is_noted(tmp_path: Path) -> None:
    plain = write(tmp_path / "x", INSTANCE)
    os.rename(plain, tmp_path / "x.gz")
    found = detect(tmp_path / "x.gz")
    assert found.compression == "none"
    assert "the name promises gzip" in found.evidence[-1]


def test_a_damaged_compressed_file_is_still_explained_by_its_start(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gz", *[INSTANCE] * 10)
    path.write_bytes(path.read_bytes()[:-3])
    found = detect(path)
    assert found.compression == "gzip"
    assert found.record == "instance"
    assert any("the file ends inside a gzip stream" in sentence for sentence in found.evidence)


@pytest.mark.parametrize(
    ("content", "style", "record"),
    [
        ('{"fid": [1], "label": [0]}', "json", "instance"),
        ('[{"named_feature_list": []}]', "json", "example_batch"),
        ('{"cut', "json", None),
        ("fid: 1\nlabel: 0.5\nline_id {\n  actions: 1\n}\n", "pbtxt", "instance"),
        ('# a batch\nnamed_feature_list {\n  name: "a"\n}\nbatch_size: 1\n', "pbtxt", "example_batch"),
        ('named_feature {\n  name: "feature"\n}\n', "pbtxt", "example"),
        ('"root":\n"feature":\n0:\n"fid":\n0: "1"\nlabel":\n', "dump", "instance"),
        ("bzid predict_ctr\nnum_ps 10\n", "other", None),
    ],
)
def test_text_is_recognised(content: str, style: str, record: str | None, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(content)
    found = detect(tmp_path / "x")
    assert (found.text, found.record, found.framing) == (style, record, None)


def test_json_that_is_nested_too_deeply_is_text() -> None:
    found = detect_bytes(b'{"named_feature": ' + b"[" * 100_000, is_whole=True)
    assert (found.text, found.record) == ("json", "example")


def test_a_remedy_is_given_only_when_it_differs() -> None:
    found = detect_bytes(Framing(sort_id=True, kafka_dump=True).frame(INSTANCE, b"user") * 3, is_whole=True)
    assert found.remedy(Framing(), "none") == "the file reads well with Framing(sort_id=True, kafka_dump=True)"
    assert found.remedy(Framing(kafka_dump=True), "none") == ""
    assert "give compression='none'" in found.remedy(Framing(kafka_dump=True), "gzip")


def test_the_head_of_a_stream_is_enough() -> None:
    stream = Framing().frame(INSTANCE, b"user") * 10
    found = detect_bytes(stream[:-5], is_whole=False)
    assert (found.framing, found.record) == (Framing(), "instance")


def test_a_file_that_is_cut_is_explained_as_far_as_it_goes() -> None:
    stream = Framing().frame(INSTANCE, b"user") * 10
    found = detect_bytes(stream[:-5], is_whole=True)
    assert (found.framing, found.record, found.confidence) == (Framing(), "instance", "possible")
    assert "9 records in" in found.evidence[-1]
    assert "byte 612: the stream ends inside a record" in found.evidence[-1]


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_can_be_looked_at(head: bytes, is_whole: bool) -> None:
    found = detect_bytes(head, is_whole=is_whole)
    assert found.evidence
    assert (found.confidence == "none") or found.framing is not None or found.text is not None
