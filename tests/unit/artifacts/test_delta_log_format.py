"""A reader made from docs/reference/delta-format.md alone finds the rows of the tables in a segment."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from monolith import _native
from monolith.artifacts.delta_log import DeltaWriter
from monolith.embedding import Adagrad, FixedR8, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.testing.fakes.clock import FakeClock

SPECS = [
    TableSpec("b", [SliceSpec(2, optimizer=Sgd(0.1)), SliceSpec(3, optimizer=Adagrad(0.1), compressor=FixedR8())]),
    TableSpec("a", [SliceSpec(1, optimizer=Adagrad(0.1))]),
]


class Cursor:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def bytes(self, count: int) -> bytes:
        self.at += count
        assert self.at <= len(self.content)
        return self.content[self.at - count : self.at]

    def one(self, form: str) -> Any:
        return struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))[0]

    def checked(self, count: int) -> bytes:
        piece = self.bytes(count)
        assert _native.crc32c(piece) == self.one("I")
        return piece


def parse(content: bytes) -> dict[str, Any]:
    cursor = Cursor(content)
    assert cursor.bytes(8) == b"MNLTDLTA"
    body = Cursor(cursor.checked(cursor.one("I")))
    names = ["version", "flavour", "index", "count", "log", "sequence", "previous"]
    names += ["wall_time_us", "newest_event_s", "hash", "marks", "tables"]
    header: dict[str, Any] = {name: body.one(form) for name, form in zip(names, "IIIIQQQqqIQI", strict=True)}
    hashed = b""
    header["tables"] = [parse_table_fields(body) for _ in range(header["tables"])]
    for table in header["tables"]:
        hashed += struct.pack("<I", len(table["name"])) + table["name"] + struct.pack("<I", len(table["slices"]))
        for piece in table["slices"]:
            hashed += struct.pack("<IIII", *piece["sizes"], len(piece["kind"])) + piece["kind"]
        table["rows"] = {}
        for _ in range(table["blocks"]):
            parse_block(cursor, table)
        assert len(table["rows"]) == table["upserts"]
        gone = cursor.checked(8 * table["tombstones"]) if table["tombstones"] else b""
        table["gone"] = np.frombuffer(gone, "<i8").tolist()
    assert body.at == len(body.content)
    assert _native.crc32c(hashed) == header["hash"]
    header["marks"] = cursor.checked(header["marks"]) if header["marks"] else b""
    assert cursor.at == len(content)
    return header


def parse_table_fields(body: Cursor) -> dict[str, Any]:
    names = ["name", "flags", "blocks", "upserts", "tombstones", "max_time_s", "turn"]
    table: dict[str, Any] = {name: body.one(form) for name, form in zip(names, "IIIQQqQ", strict=True)}
    table["name"] = body.bytes(table["name"])
    table["slices"] = []
    for _ in range(body.one("I")):
        sizes = tuple(body.one("I") for _ in range(3))
        kind_bytes, scale = body.one("I"), body.one("f")
        table["slices"].append({"sizes": sizes, "scale": scale, "kind": body.bytes(kind_bytes)})
    return table


def parse_block(cursor: Cursor, table: dict[str, Any]) -> None:
    rows = struct.unpack_from("<I", cursor.content, cursor.at)[0]
    widths = [width for piece in table["slices"] for width in piece["sizes"][1:] if width]
    block = Cursor(cursor.checked(4 + rows * (12 + sum(widths))))
    block.one("I")
    ids = np.frombuffer(block.bytes(8 * rows), "<i8").tolist()
    times = np.frombuffer(block.bytes(4 * rows), "<u4").tolist()
    columns = [[block.bytes(width) for _ in range(rows)] for width in widths]
    for place, fid in enumerate(ids):
        table["rows"][fid] = (times[place], [column[place] for column in columns])


def test_a_durable_segment_reads_as_documented(tmp_path: Path) -> None:
    tables = MultiTable(SPECS)
    with DeltaWriter(tmp_path, (1, 3), tables, clock=FakeClock(now_s=12.5), marks=lambda: b"who") as writer:
        tables["b"].assign([4, -2], [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], time_s=77)
        writer.write()
        tables["b"].apply_gradients([4, 7], np.ones((2, 5)), time_s=80)
        tables["b"].delete([-2])
        writer.write()
    first, second = (parse(file.read_bytes()) for file in sorted(tmp_path.iterdir()))
    assert [first[name] for name in ("version", "flavour", "index", "count", "sequence", "previous")] == [
        1,
        1,
        1,
        3,
        1,
        0,
    ]
    assert first["wall_time_us"] == 12_500_000
    assert first["marks"] == b"who"
    assert [table["name"] for table in first["tables"]] == [b"a", b"b"]
    assert [table["flags"] for table in first["tables"]] == [1, 1]
    assert (second["log"], second["sequence"], second["previous"]) == (first["log"], 2, 1)
    assert second["newest_event_s"] == 80
    before, after = first["tables"][1], second["tables"][1]
    assert [piece["kind"] for piece in before["slices"]] == [b"sgd", b"adagrad"]
    assert [piece["sizes"] for piece in before["slices"]] == [(2, 8, 0), (3, 12, 12)]
    assert list(before["rows"]) == [-2, 4]
    time_s, (low, high, state) = before["rows"][4]
    assert time_s == 77
    assert np.frombuffer(low + high, "<f4").tolist() == [1, 2, 3, 4, 5]
    assert np.frombuffer(state, "<f4").tolist() == np.full(3, 0.1, np.float32).tolist()
    assert after["gone"] == [-2]
    assert list(after["rows"]) == [4, 7]
    entry = tables["b"].entry(4)
    assert entry is not None
    assert np.array_equal(np.frombuffer(b"".join(after["rows"][4][1][:2]), "<f4"), entry.values)


def test_a_serving_segment_reads_as_documented(tmp_path: Path) -> None:
    tables = MultiTable(SPECS)
    with DeltaWriter(tmp_path, (0, 1), tables, clock=FakeClock(), flavour="serving") as writer:
        tables["b"].assign([4], [[1, 2, 0.5, -0.5, 0.25]], time_s=77)
        writer.write()
    header = parse((tmp_path / f"seg-{1:020d}.delta").read_bytes())
    assert header["flavour"] == 2
    table = header["tables"][1]
    assert [piece["kind"] for piece in table["slices"]] == [b"fp32", b"fixed_r8 r=1"]
    assert [piece["sizes"][2] for piece in table["slices"]] == [0, 0]
    ids, _, raw = tables["b"].to_serving()._native.raw_rows(np.array([4]))
    assert ids.tolist() == [4]
    stored = b"".join(table["rows"][4][1])
    assert raw[0].tobytes()[: len(stored)] == stored
