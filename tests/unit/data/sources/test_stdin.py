from __future__ import annotations

import io
import os
import threading

import pytest

from monolith import _native
from monolith.core.errors import ConfigError, DataError, RecordCorrupt, SchemaMismatch
from monolith.data.records.codecs import CODECS, Codec
from monolith.data.records.compressors import compressor
from monolith.data.records.framing import Framing
from monolith.data.sources.stdin import StdinSource

INSTANCE = bytes.fromhex(
    "0a10 0100000000000000 0200000000000000 1a08 00000000 0000803f 2a03 320101 4a0d 0a0161 1208 0300000000000000"
)


def packed(data: bytes, codec: Codec) -> io.BytesIO:
    made = compressor(codec)
    return io.BytesIO(made.compress(data) + made.flush())


def payloads(source: StdinSource) -> list[bytes]:
    found: list[bytes] = []
    while (lot := source.read()) is not None:
        found += [lot[index] for index in range(len(lot))]
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_is_read_with_every_codec(codec: Codec) -> None:
    source = StdinSource(packed(Framing().frame(INSTANCE) * 500, codec), record="instance")
    assert payloads(source) == [INSTANCE] * 500
    source.close()


def test_an_empty_stream_has_no_records() -> None:
    assert payloads(StdinSource(io.BytesIO(), record="instance")) == []


@pytest.mark.parametrize("written", [Framing(kafka_dump=True), Framing(sort_id=False), Framing.tfrecord()], ids=repr)
def test_wrong_flags_are_a_clear_error_and_never_an_empty_stream(written: Framing) -> None:
    source = StdinSource(io.BytesIO(written.frame(INSTANCE) * 9), record="instance")
    for _ in range(2):
        with pytest.raises(RecordCorrupt, match=r"^stdin: .*; the file reads well with Framing"):
            payloads(source)


def test_a_record_cut_by_the_end_is_an_error() -> None:
    stream = Framing().frame(INSTANCE, b"user") * 3
    for cut in (1, 40, 60):
        source = StdinSource(io.BytesIO(stream[:-cut]), record="instance")
        with pytest.raises(RecordCorrupt, match="stdin: record 2 at byte 136: the stream ends inside a record"):
            payloads(source)


def test_another_message_is_named() -> None:
    source = StdinSource(io.BytesIO(Framing().frame(INSTANCE)), record="example")
    with pytest.raises(SchemaMismatch, match="give record='instance'"):
        source.read()
    with pytest.raises(ConfigError, match="record is 'csv'"):
        StdinSource(io.BytesIO(), record="csv")  # type: ignore[arg-type]


def test_records_of_a_pipe_come_as_soon_as_they_are_complete() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        source = StdinSource(stream, record="instance")
        for _ in range(3):
            os.write(writing, Framing().frame(INSTANCE) * 2)
            lot = source.read()
            assert lot is not None
            assert len(lot) == 2
        os.close(writing)
        assert source.read() is None


def test_closing_ends_a_read_that_waits_in_another_thread() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb"):
        source = StdinSource(stream, record="instance")
        found: list[_native.Records | None] = []
        thread = threading.Thread(target=lambda: found.append(source.read()))
        thread.start()
        source.close()
        thread.join(timeout=60)
        assert found == [None]
        assert source.read() is None


def test_a_position_past_the_end_is_refused() -> None:
    framed = Framing().frame(INSTANCE)
    source = StdinSource(io.BytesIO(framed), record="instance")
    source.resume({"offset": len(framed) + 5, "records": 2})
    with pytest.raises(DataError, match="stdin ends 5 bytes before the position"):
        source.read()
    other = StdinSource(io.BytesIO(framed), record="instance")
    with pytest.raises(DataError, match="not the position of a stream"):
        other.resume({"offset": "x"})
    other.read()
    with pytest.raises(ConfigError, match="before the first read"):
        other.resume({"offset": 0, "records": 0})
