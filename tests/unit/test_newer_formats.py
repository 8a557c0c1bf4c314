"""Files of a newer release are refused with both versions and a remedy, and stay as they are."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from join_process import make_group
from monolith import _native
from monolith.artifacts.checkpoint_manifest import read_manifest as read_checkpoint_manifest
from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, read_cut
from monolith.artifacts.delta_log.publish import Cut, publish
from monolith.artifacts.export_manifest import read_export_manifest
from monolith.core.clock import SystemClock
from monolith.core.durable_files import seal, unseal
from monolith.core.errors import MonolithError
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.embedding import Adagrad, MultiTable, SliceSpec, TableSpec
from monolith.sync.base_snapshot import read_base
from monolith.sync.dense_versions import DenseReader, DenseWriter

Made = tuple[Callable[[], object], list[Path]]


def make_tables() -> MultiTable:
    tables = MultiTable([TableSpec("t", [SliceSpec(2, optimizer=Adagrad())])])
    tables["t"].assign([1, 2, 3], [[1.0, 2.0]] * 3)
    return tables


def change_seal(path: Path, field: str = "version") -> None:
    """Raise the version of a sealed manifest, and seal the manifest again."""
    body = unseal(path.read_bytes())
    body[field] += 7
    path.write_bytes(seal(body))


def change_header(path: Path, offset: int) -> None:
    """Raise the 32-bit version at the begin of a header (length before it, CRC after it), with a right checksum."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<I", content, offset - 4)
    content[offset : offset + 4] = struct.pack("<I", struct.unpack_from("<I", content, offset)[0] + 7)
    struct.pack_into("<I", content, offset + length, _native.crc32c(bytes(content[offset : offset + length])))
    path.write_bytes(content)


def make_checkpoint(root: Path) -> Made:
    (root / "manifest.json").write_bytes(seal({"format": "monolith.checkpoint", "version": 8}))
    return lambda: read_checkpoint_manifest(root), [root / "manifest.json"]


def make_export(root: Path) -> Made:
    (root / "manifest.json").write_bytes(seal({"format": "monolith.export", "format_version": 9}))
    return lambda: read_export_manifest(root), [root / "manifest.json"]


def make_snapshot(root: Path) -> Made:
    tables = make_tables()
    tables.save(root)
    change_seal(root / "manifest.json")
    return lambda: make_tables().restore(root), [root / "manifest.json"]


def make_snapshot_part(root: Path) -> Made:
    tables = make_tables()
    tables.save(root)
    (part,) = [path for path in root.rglob("*.rows") if path.stat().st_size > 200][:1]
    change_header(part, 12)
    return lambda: make_tables().restore(root), [part]


def make_image(root: Path) -> Made:
    make_tables().to_serving().save_images(root / "images")
    (manifest,) = root.rglob("*.json")
    change_seal(manifest)
    return lambda: MultiTable.load_images(root / "images"), [manifest]


def make_segment(root: Path) -> Made:
    tables = make_tables()
    with DeltaWriter(root, (0, 1), tables, clock=SystemClock()) as writer:
        writer.write()
    (segment,) = [path for path in root.iterdir() if path.stat().st_size > 100]
    change_header(segment, 12)
    return lambda: DeltaReader(root).replay(make_tables()), [segment]


def make_cut(root: Path) -> Made:
    publish(root, Cut(sequences={0: 1}, dense=0), clock=SystemClock())
    change_seal(root / "cut.json")
    return lambda: read_cut(root), [root / "cut.json"]


def make_cut_of_a_publisher(root: Path) -> Made:
    make_cut(root)
    return lambda: publish(root, Cut(sequences={0: 1}, dense=0), clock=SystemClock()), [root / "cut.json"]


def make_base(root: Path) -> Made:
    (root / "base.json").write_bytes(seal({"format": "monolith.base", "version": 8}))
    return lambda: read_base(root), [root / "base.json"]


def make_dense(root: Path) -> Made:
    version = DenseWriter(root).write({"w": np.ones(2, np.float32)})
    (path,) = (root / "dense").glob("*.json")
    change_seal(path)
    return lambda: DenseReader(root).changes(version), [path]


def make_topic(root: Path) -> Made:
    topic = Topic.create(root, "events")
    path = topic.folder / "topic.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 8}))
    return lambda: Topic.open(root, "events"), [path]


def change_log_segment(topic: Topic, *, content: bytes) -> Path:
    """Raise the version of the last segment, replace its batches, and forget HEAD, as after a reboot."""
    path = sorted(topic.partition_folder(0).glob("seg-*.log"))[-1]
    header = bytearray(path.read_bytes()[:64])
    struct.pack_into("<H", header, 8, 8)
    struct.pack_into("<I", header, 60, _native.crc32c(bytes(header[:60])))
    path.write_bytes(bytes(header) + content)
    return path


def make_log_segment(root: Path) -> Made:
    topic = Topic.create(root, "events")
    with LogWriter(topic) as writer:
        writer.write(b"first")
    path = change_log_segment(topic, content=b"batches of another form" * 10)
    (topic.partition_folder(0) / "HEAD").unlink()
    return lambda: topic.open_partition(0), [path]


def make_earlier_log_segment(root: Path) -> Made:
    topic = Topic.create(root, "events", TopicSettings(segment_bytes=4096))
    with LogWriter(topic) as writer:
        writer.write(b"first")
    source = EventLogSource(topic, "example", until_end=True)
    path = change_log_segment(topic, content=b"batches of another form" * 10)
    return source.read, [path]


def make_repaired_log_segment(root: Path) -> Made:
    _, paths = make_log_segment(root)
    topic = Topic.open(root, "events")
    return lambda: _native.EventLogPartition.repair(topic.native_settings(0)), paths


def make_join_state(root: Path) -> Made:
    for name in ("events", "examples", "examples.dead"):
        Topic.create(root, name)
    group = make_group(root)
    group.start()
    group.close()
    snapshots = sorted((root / "state").glob("snap-*/meta.json"))
    change_seal(snapshots[-1])
    return lambda: make_group(root).start(), snapshots


MAKERS = [
    make_checkpoint,
    make_export,
    make_snapshot,
    make_snapshot_part,
    make_image,
    make_segment,
    make_cut,
    make_cut_of_a_publisher,
    make_base,
    make_dense,
    make_topic,
    make_log_segment,
    make_earlier_log_segment,
    make_repaired_log_segment,
    make_join_state,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.removeprefix("make_"))
def test_a_file_of_a_newer_release_is_refused_and_stays(tmp_path: Path, make: Callable[[Path], Made]) -> None:
    read, paths = make(tmp_path)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(MonolithError, match=r"version.* (8|9)\b.*expected .*[12]; .*the release that wrote it"):
        read()
    assert [path.read_bytes() for path in paths] == before
