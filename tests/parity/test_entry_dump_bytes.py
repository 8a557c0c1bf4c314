"""The bytes of the original's sparse checkpoints, derived by hand from ``embedding_hash_table.proto`` and TFRecord.

Pins both codecs: the Python one of single entries, and the native one of whole rows.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from monolith import _native as native
from monolith.compat.entry_dump.dump import read_multi_entry_dump, write_entry_dump, write_multi_entry_dump
from monolith.compat.entry_dump.entry_codec import decode_entry, encode_entry
from monolith.core.errors import ConfigError, DimensionMismatch, RecordCorrupt
from monolith.embedding.entry import Entry, SliceState
from monolith.embedding.optimizers import (
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    Optimizer,
    RmsProp,
    RmsPropV2,
    Sgd,
)

ID = bytes.fromhex("09 0201000000000000")  # field 1, fixed64: 0x0102
ONE, TWO, HALF = (struct.pack("<f", number) for number in (1.0, 2.0, 0.5))


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def i64(number: int) -> np.ndarray:
    return np.array([number], np.int64)


def opt(element: str) -> bytes:
    content = bytes.fromhex(element)
    return bytes([0x1A, len(content)]) + content


TIME = bytes.fromhex("20 ac02")  # field 4, varint: 300

# Optimizer, its state, and the element in `opt`: tag and length of dump, tag and length of the member, its fields.
ONE_HEX, HALF_HEX = ONE.hex(), HALF.hex()
VECTORS: list[tuple[Optimizer, dict[str, np.ndarray], str]] = [
    (Adagrad(), {"norm": f32(0.5)}, f"0a07 0a05 0d{HALF_HEX}"),
    (Sgd(), {}, "0a02 1200"),
    (Ftrl(), {"norm": f32(0.5), "zero": f32(1)}, f"0a0c 1a0a 0d{ONE_HEX} 15{HALF_HEX}"),
    (DynamicWdAdagrad(), {"norm": f32(0.5), "last_update_step": i64(300)}, f"0a0a 2208 0d{HALF_HEX} 10ac02"),
    (Adadelta(), {"accum": f32(0.5), "accum_update": f32(1)}, f"0a0c 320a 0d{HALF_HEX} 15{ONE_HEX}"),
    (
        Adam(),
        {"m": f32(1), "v": f32(0.5), "beta1_power": f32(0.5), "beta2_power": f32(1)},
        f"0a16 3a14 0d{ONE_HEX} 15{HALF_HEX} 1d{HALF_HEX} 25{ONE_HEX}",
    ),
    (
        Amsgrad(),
        {"m": f32(1), "v": f32(0.5), "vhat": f32(1), "beta1_power": f32(0.5), "beta2_power": f32(1)},
        f"0a1b 4219 0d{ONE_HEX} 15{HALF_HEX} 1d{ONE_HEX} 25{HALF_HEX} 2d{ONE_HEX}",
    ),
    (Momentum(), {"n": f32(0.5)}, f"0a07 4a05 0d{HALF_HEX}"),
    (RmsProp(), {"n": f32(0.5)}, f"0a07 5a05 0d{HALF_HEX}"),
    (RmsPropV2(), {"n": f32(0.5)}, f"0a07 6205 0d{HALF_HEX}"),
    (GroupFtrl(), {"norm": f32(0.5), "zero": f32(1)}, f"0a0c 6a0a 0d{ONE_HEX} 15{HALF_HEX}"),
    (BatchSoftmax(), {"global_step": i64(300)}, "0a05 7203 08ac02"),
    (GroupAdagrad(), {"grad_square_sum": f32(0.5)}, f"0a07 7a05 0d{HALF_HEX}"),
    (MovingAverage(), {}, ""),
]
CASES = [pytest.param(*vector, id=vector[0].kind) for vector in VECTORS]


def schema_of(*optimizers: Optimizer, dim: int = 1) -> native.DumpSchema:
    return native.DumpSchema([(dim, each.kind, each.settings()) for each in optimizers])


def unframe(framed: bytes) -> bytes:
    (record,), consumed = native.scan_records(framed, 0, "test", 2, True)
    assert consumed == len(framed)
    return record


def decode(schema: native.DumpSchema, record: bytes, allow_missing_state: bool = False) -> tuple[np.ndarray, ...]:
    return schema.decode(native.frame_record(record), 0, "test", 10, allow_missing_state)


@pytest.mark.parametrize(("optimizer", "state", "element"), CASES)
def test_an_entry_has_the_bytes_of_the_original(
    optimizer: Optimizer, state: dict[str, np.ndarray], element: str
) -> None:
    record = ID + b"\x15" + TWO + opt(element) + TIME
    entry = Entry(0x0102, f32(2), (SliceState(optimizer.kind, state),), 300)
    assert encode_entry(entry) == record
    decoded = decode_entry(record)
    assert (decoded.id, decoded.values.tolist(), decoded.time_s) == (0x0102, [2.0], 300)
    if element:
        assert decoded.state[0].kind == optimizer.kind
        assert {name: numbers.tolist() for name, numbers in decoded.state[0].items()} == {
            name: numbers.tolist() for name, numbers in state.items()
        }
    else:
        assert decoded.state == ()


@pytest.mark.parametrize(("optimizer", "state", "element"), CASES)
def test_a_native_row_has_the_bytes_of_the_original(
    optimizer: Optimizer, state: dict[str, np.ndarray], element: str
) -> None:
    schema = schema_of(optimizer)
    record = ID + b"\x15" + TWO + opt(element) + TIME
    ids, times_s, rows, value_counts, consumed = decode(schema, record)
    assert (ids.tolist(), times_s.tolist(), value_counts.tolist()) == ([0x0102], [300], [1])
    assert consumed == len(record) + 16
    assert rows.shape == (1, schema.row_words)
    assert rows.dtype == np.float32
    assert rows[0, 0] == 2
    words = b"".join(numbers.tobytes() for numbers in state.values())
    assert rows[0, 1:].tobytes() == words  # the state above is spelled in memory order
    assert unframe(schema.encode(ids, times_s, rows)) == record


def test_two_slices_make_two_elements_and_floats_are_not_packed() -> None:
    record = (
        ID
        + b"\x15" + ONE + b"\x15" + TWO + b"\x15" + HALF
        + opt(f"0a02 1200 0a0c 0a0a 0d{ONE_HEX} 0d{HALF_HEX}")
        + bytes.fromhex("20 00")
    )  # fmt: skip
    schema = native.DumpSchema([(1, "sgd", Sgd().settings()), (2, "adagrad", Adagrad().settings())])
    ids, times_s, rows, _, _ = decode(schema, record)
    assert rows.tolist() == [[1, 2, 0.5, 1, 0.5]]
    assert unframe(schema.encode(ids, times_s, rows)) == record
    assert encode_entry(decode_entry(record)) == record


def test_packed_floats_are_read_too() -> None:
    record = ID + b"\x12\x04" + TWO + opt(f"0a08 0a06 0a04{HALF_HEX}")
    assert decode(schema_of(Adagrad()), record)[2].tolist() == [[2, 0.5]]
    assert decode_entry(record).state[0]["norm"].tolist() == [0.5]


def test_a_file_is_length_checksum_payload_checksum(tmp_path: Path) -> None:
    write_entry_dump(tmp_path / "t", [Entry(0x0102, f32(2), (), 300)])
    payload = ID + b"\x15" + TWO + TIME
    length = struct.pack("<Q", len(payload))
    crc = struct.Struct("<I")
    expected = length + crc.pack(masked(length)) + payload + crc.pack(masked(payload))
    assert (tmp_path / "t-00000-of-00001").read_bytes() == expected


def masked(data: bytes) -> int:
    """The checksum of a TFRecord, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def unsnap(block: bytes) -> bytes:
    """A raw snappy block of less than 128 bytes: its length, then short literals and short copies."""
    out, at = bytearray(), 1
    while at < len(block):
        tag = block[at]
        if tag & 3 == 0:
            size = (tag >> 2) + 1
            out += block[at + 1 : at + 1 + size]
            at += 1 + size
        else:
            size, back, width = (
                ((tag >> 2 & 7) + 4, tag >> 5 << 8 | block[at + 1], 2)
                if tag & 3 == 1
                else ((tag >> 2) + 1, int.from_bytes(block[at + 1 : at + 3], "little"), 3)
            )
            for _ in range(size):
                out.append(out[-back])
            at += width
    assert len(out) == block[0]
    return bytes(out)


def test_a_multi_table_file_is_big_endian_length_and_raw_snappy(tmp_path: Path) -> None:
    write_multi_entry_dump(tmp_path / "m", {"b": [Entry(0x0102, f32(2), (), 300)], "a": []})
    payload = ID + b"\x15" + TWO + TIME
    length = struct.pack("<Q", len(payload))
    stream = length + struct.pack("<I", masked(length)) + payload + struct.pack("<I", masked(payload))
    data = (tmp_path / "m-00000-of-00001").read_bytes()
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert unsnap(data[4:]) == stream
    meta = (tmp_path / "m.meta-00000-of-00001").read_bytes()
    records, _ = native.scan_records(meta, 0, "meta", 10, True)
    assert records == [bytes.fromhex("0a01 61 1000"), bytes.fromhex("0a01 62 1001")]


# Two equal records, written by TensorFlow 2.21's RecordWriter with compression "SNAPPY".
WRITTEN_BY_TENSORFLOW = bytes.fromhex(
    "000000246004200009011829eda950090201090d1015000000403a05001820ac02d82bc9f6be3000"
)


def test_a_file_written_by_tensorflow_is_read(tmp_path: Path) -> None:
    (tmp_path / "m-00000-of-00001").write_bytes(WRITTEN_BY_TENSORFLOW)
    (tmp_path / "m.meta-00000-of-00001").write_bytes(native.frame_metadata("t", 2))
    read = list(read_multi_entry_dump(tmp_path / "m"))
    assert [name for name, _ in read] == ["t", "t"]
    for _, entry in read:
        assert (entry.id, entry.values.tolist(), entry.time_s) == (0x0102, [2.0] * 4, 300)


def test_the_native_checksum_is_that_of_the_definition() -> None:
    assert native.crc32c(b"123456789") == 0xE3069283
    assert native.crc32c(b"6789", native.crc32c(b"12345")) == 0xE3069283
    assert native.masked_crc32c(b"123456789") == masked(b"123456789")
    assert native.crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283


def test_the_native_hash_gives_the_original_feature_ids() -> None:
    assert native.city_hash64(b"ios") == 0x19463DF5D8064574
    assert native.city_hash64(b"") == 0x9AE16A3B2F90404F


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ID + b"\x15" + TWO, r"slice 0 \(adagrad\) has no element"),
        (ID + b"\x15" + TWO + opt("0a02 4a00"), r"slice 0 \(adagrad\) finds the state of momentum"),
        (ID + b"\x15" + TWO + b"\x15" + TWO, "more than the table's 1 values"),
        (b"\x15" + TWO, "'id' is missing"),
    ],
)
def test_a_misfit_is_refused_with_its_place(record: bytes, reason: str) -> None:
    with pytest.raises(RecordCorrupt, match=r"^f: record at byte 100: .*" + reason):
        schema_of(Adagrad()).decode(native.frame_record(record), 100, "f", 10, False)


def test_missing_state_can_be_allowed() -> None:
    rows = decode(schema_of(Adagrad(initial_accumulator_value=0.25)), ID + b"\x15" + TWO, True)[2]
    assert rows.tolist() == [[2, 0.25]]


def test_arrays_of_other_sizes_are_refused() -> None:
    schema = schema_of(Adagrad())
    with pytest.raises(DimensionMismatch, match="a row has 2"):
        schema.encode(np.zeros(1, np.int64), np.zeros(1, np.uint32), np.zeros((1, 3), np.float32))
    with pytest.raises(ConfigError, match="unknown optimizer 'magic'"):
        native.DumpSchema([(1, "magic", {})])


def test_an_empty_buffer_gives_empty_arrays() -> None:
    ids, times_s, rows, value_counts, consumed = schema_of(Adagrad()).decode(b"", 0, "f", 10, False)
    assert (len(ids), len(times_s), rows.shape, len(value_counts), consumed) == (0, 0, (0, 2), 0, 0)
