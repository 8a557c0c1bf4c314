from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monolith import _native
from monolith.core import storage
from monolith.core.errors import ConfigError, DataError, RecordCorrupt
from monolith.data.records.codecs import CODECS, Codec
from monolith.data.records.framing import Framing
from monolith.data.records.reader import CHUNK_BYTES, CHUNK_RECORDS, RecordReader, read_records
from monolith.data.records.tfrecord import TfRecordWriter, read_tfrecords
from monolith.data.records.writer import RecordWriter

RECORDS = [b"r%d" % number * (number % 7) for number in range(50)]


def write(path: Path | str, records: list[bytes] = RECORDS, **options: object) -> None:
    with RecordWriter(path, **options) as writer:  # type: ignore[arg-type]
        for record in records:
            writer.write(record)


def fail_while_writing(path: Path | str) -> None:
    try:
        with RecordWriter(path) as writer:
            writer.write(b"x")
            raise RuntimeError
    except RuntimeError:
        pass


@pytest.mark.parametrize("codec", CODECS)
def test_reading_can_begin_after_any_record(codec: Codec, tmp_path: Path) -> None:
    path = tmp_path / "records"
    write(path, compression=codec)
    offset = 0
    for number, record in enumerate(RECORDS):
        with RecordReader(path, offset=offset, record=number) as reader:
            assert list(reader) == RECORDS[number:]
            assert reader.records == len(RECORDS)
        offset += len(Framing().frame(record))
    with RecordReader(path, offset=offset) as reader:
        assert reader.read() is None
    with pytest.raises(DataError, match=f"cannot resume at byte {offset + 1}"):
        RecordReader(path, offset=offset + 1)


def test_lots_end_at_4096_records_or_1_mib(tmp_path: Path) -> None:
    write(tmp_path / "many", [b"x"] * (CHUNK_RECORDS + 10))
    with RecordReader(tmp_path / "many") as reader:
        lots = [reader.read(), reader.read(), reader.read()]
    assert [lot and len(lot) for lot in lots] == [CHUNK_RECORDS, 10, None]
    write(tmp_path / "large", [bytes(CHUNK_BYTES // 2), bytes(CHUNK_BYTES // 2), b"x", bytes(3 * CHUNK_BYTES), b"y"])
    with RecordReader(tmp_path / "large") as reader:
        sizes = []
        while (lot := reader.read()) is not None:
            sizes.append([len(lot[index]) for index in range(len(lot))])
    assert sizes == [[CHUNK_BYTES // 2] * 2, [1], [3 * CHUNK_BYTES], [1]]


def test_errors_name_the_stream_and_the_record(tmp_path: Path) -> None:
    path = tmp_path / "records.gz"
    write(path)
    reader = RecordReader(path, framing=Framing.tfrecord())
    with pytest.raises(RecordCorrupt, match=r"records.gz \(uncompressed\): record 0 at byte 0: the checksum"):
        reader.read()
    reader.close()
    reader.close()


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_file_that_is_cut_behind_a_record_while_it_is_read_is_an_error(codec: Codec, tmp_path: Path) -> None:
    path = tmp_path / "records"
    write(path, compression=codec)
    half = path.read_bytes()
    path.write_bytes(half + half)  # a gzip file may have several members
    assert list(read_records(path)) == RECORDS + RECORDS
    with RecordReader(path) as reader:
        os.truncate(path, len(half))
        found = reader.read()
        assert found is not None
        assert [found[index] for index in range(len(found))] == RECORDS
        with pytest.raises(RecordCorrupt, match=f"records ends at byte {len(half)}, expected {2 * len(half)} bytes"):
            reader.read()


def test_a_bare_file_is_one_record(tmp_path: Path) -> None:
    write(tmp_path / "one", [b"message"], framing=Framing.bare())
    assert (tmp_path / "one").read_bytes() == b"message"
    assert list(read_records(tmp_path / "one", framing=Framing.bare())) == [b"message"]
    with pytest.raises(ConfigError, match="contains one record"):
        write(tmp_path / "two", [b"a", b"b"], framing=Framing.bare())


def test_nothing_appears_before_the_end_and_nothing_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"old")
    with RecordWriter(path) as writer:
        writer.write(bytes(3 << 20))
        assert path.read_bytes() == b"old"
    assert len(path.read_bytes()) == 16 + (3 << 20)
    fail_while_writing(path)
    dropped = RecordWriter(path)
    dropped.write(b"x")
    del dropped
    assert len(path.read_bytes()) == 16 + (3 << 20)
    assert os.listdir(tmp_path) == ["records"]


def test_a_closed_writer_refuses_records(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "records")
    writer.close()
    writer.close()
    with pytest.raises(ConfigError, match="is closed"):
        writer.write(b"x")
    with pytest.raises(FileNotFoundError):
        RecordWriter(tmp_path / "no folder" / "records")


def test_a_killed_writer_leaves_no_file_under_the_name(tmp_path: Path) -> None:
    code = f"""
import os, signal
from monolith.data.records.writer import RecordWriter
writer = RecordWriter({str(tmp_path / "records")!r})
writer.write(bytes(3 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "records").exists()


def test_lots_can_be_written_again_with_their_data_source(tmp_path: Path) -> None:
    framing = Framing(lagrangex_header=True)
    with RecordWriter(tmp_path / "a", framing=framing) as writer:
        writer.write(b"x", source=256)
        writer.write(b"y", source=512)
    with RecordReader(tmp_path / "a", framing=framing) as reader, RecordWriter(tmp_path / "b", framing=framing) as copy:
        lot = reader.read()
        assert lot is not None
        copy.write_lot(lot)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with RecordWriter(tmp_path / "c", framing=Framing.tfrecord()) as other:
        other.write_lot(lot)
    assert list(read_tfrecords(tmp_path / "c")) == [b"x", b"y"]


def test_urls_go_through_fsspec(tmp_path: Path) -> None:
    url = "memory://folder/part-0.pb.zst"
    write(url)
    assert list(read_records(url)) == RECORDS
    assert [name.rpartition("/")[2] for name in storage.find_files("memory://folder/*.zst")] == ["part-0.pb.zst"]
    fail_while_writing("memory://folder/part-1")
    assert len(storage.find_files("memory://folder/*")) == 1
    write(f"file://{tmp_path}/local")
    assert list(read_records(tmp_path / "local")) == RECORDS
    with pytest.raises(ConfigError, match="nosuchscheme://x' has the scheme"):
        storage.open_file("nosuchscheme://x")


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB", "gzip"])
def test_tfrecords_are_read_and_written_in_tensorflows_compressions(compression: str, tmp_path: Path) -> None:
    with TfRecordWriter(tmp_path / "x.tfrecord", compression) as writer:
        for record in RECORDS:
            writer.write(record)
    assert list(read_tfrecords(tmp_path / "x.tfrecord", compression)) == RECORDS
    assert list(read_tfrecords(tmp_path / "x.tfrecord")) == RECORDS
    if not compression:
        assert (tmp_path / "x.tfrecord").read_bytes() == b"".join(map(_native.frame_record, RECORDS))


def test_compressions_that_tensorflow_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'GZIP', 'ZLIB'"):
        TfRecordWriter(tmp_path / "x", "ZSTD")
    with pytest.raises(ConfigError, match="TensorFlow cannot read"):
        TfRecordWriter(tmp_path / "x.zst", "auto")
    with TfRecordWriter(tmp_path / "x.gz", "auto") as writer:
        writer.write(b"x")
    assert (tmp_path / "x.gz").read_bytes()[:2] == b"\x1f\x8b"
