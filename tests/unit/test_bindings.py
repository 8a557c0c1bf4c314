"""Promises of all bindings: paths in any bytes, and threads that outlive the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import monolith as mt
from monolith import _native
from monolith.core.errors import RecordCorrupt, SnapshotCorrupt
from monolith.data import Framing, RecordWriter, Schema, SparseFeature
from monolith.data.records.messages import Example
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter

SPEC = mt.TableSpec("user", [mt.SliceSpec(2, optimizer=mt.Sgd(learning_rate=0.5))])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name is not UTF-8."""
    made = tmp_path / os.fsdecode(b"caf\xe9 \xff")
    try:
        made.mkdir()
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    return made


def example(user: int) -> bytes:
    message = Example()
    message.named_feature.add(name="user").feature.fid_v2_list.value.append(user)
    message.label.append(1)
    return message.SerializeToString()


def test_a_table_is_saved_and_restored_in_a_folder_that_is_not_utf8(folder: Path) -> None:
    saved = mt.Table(SPEC)
    saved.assign([7], [[1, 2]])
    saved.save(folder / "table")
    restored = mt.Table(SPEC)
    restored.restore(folder / "table")
    assert restored.lookup([7]).tolist() == [[1, 2]]


def test_a_damaged_snapshot_in_a_folder_that_is_not_utf8_is_named(folder: Path) -> None:
    table = mt.Table(SPEC)
    table.assign([7], [[1, 2]])
    table.save(folder / "table")
    part = max((each for each in (folder / "table").rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)
    part.write_bytes(part.read_bytes()[:-3])
    with pytest.raises(SnapshotCorrupt, match="caf"):
        mt.Table(SPEC).restore(folder / "table")


def test_records_are_read_from_a_file_that_is_not_utf8(folder: Path) -> None:
    path = folder / os.fsdecode(b"\xe9.pb")
    with RecordWriter(path, framing=Framing()) as writer:
        for user in range(5):
            writer.write(example(user))
    schema = Schema(sparse=[SparseFeature("user")], labels=1)
    files = mt.data.files(str(path), record="example", framing=Framing(), schema=schema)
    assert sum(len(batch) for batch in files.batch(2)) == 5

    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordCorrupt, match="caf"):
        list(files.batch(2))


def test_an_event_log_lives_in_a_folder_that_is_not_utf8(folder: Path) -> None:
    topic = Topic.create(folder, "clicks", TopicSettings(partitions=2))
    with LogWriter(topic) as writer:
        for user in range(5):
            writer.write(example(user), key=b"%d" % user, time_ms=1_700_000_000_000)
    schema = Schema(sparse=[SparseFeature("user")], labels=1)
    batches = mt.data.event_log(folder, "clicks", until_end=True, schema=schema).batch(2)
    assert sum(len(batch) for batch in batches) == 5


def test_an_error_of_the_system_names_the_path_as_python_does(folder: Path) -> None:
    missing = folder / "absent"
    for spelling in (missing, str(missing), os.fsencode(missing)):
        with pytest.raises(FileNotFoundError) as caught:
            _native.read_delta_header(spelling)
        assert caught.value.filename == str(missing)


def test_a_path_of_another_type_is_refused() -> None:
    for wrong in (None, 7, "a\0b"):
        with pytest.raises(TypeError):
            _native.read_delta_header(wrong)  # type: ignore[arg-type]


def test_a_process_ends_while_its_daemon_threads_are_in_native_code() -> None:
    program = """
import threading
import numpy as np
from monolith import _native

running = threading.Barrier(5)

def work():
    ids = np.arange(200_000) % 1000
    running.wait(60)
    while True:
        _native.unique_ids(ids)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
running.wait(60)
"""
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stderr) == (0, "")
