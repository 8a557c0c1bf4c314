"""Failures between publisher and follower: many segments, damage, dead threads, half moves, two publishers."""

from __future__ import annotations

import dataclasses
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, publish, read_cut, writer
from monolith.artifacts.delta_log.publish import CUT
from monolith.core.clock import SystemClock
from monolith.core.durable_files import seal, unseal
from monolith.core.errors import CapacityExceeded, ConfigError, DeltaLogBroken, ManifestInvalid, VersionConflict
from monolith.embedding import Adagrad, Fp32, MultiTable, SliceSpec, TableSpec
from monolith.sync import DenseReader, DenseWriter, Follower, LocalRowLog, Publisher
from monolith.sync import publisher as publisher_module
from monolith.sync.dense_versions import DENSE
from monolith.sync.feed_messages import FollowRequest
from monolith.sync.feed_pieces import CutPieces
from monolith.sync.feed_server import FeedServer
from monolith.sync.push import RowPusher
from monolith.sync.push_targets import parse_targets
from monolith.sync.row_updates import MAX_OPEN, Move
from monolith.sync.subscription import Subscription
from monolith.testing.fakes.clock import FakeClock
from monolith.testing.fakes.published import FollowedTables, PublishedTables

SPEC = TableSpec("item", [SliceSpec(1, optimizer=Adagrad(learning_rate=0.5), compressor=Fp32())])
MANY = 3 * MAX_OPEN + 5


class Trainer(PublishedTables):
    def __init__(self, root: Path, clock: Any = None) -> None:
        super().__init__(root, [SPEC], {"w": [0.0]}, clock=clock or FakeClock(now_s=1000.0))
        self.root = root

    def publish(self, fid: int, value: float) -> None:
        self.tables["item"].assign([fid], [[value]])
        self.weights["w"][0] = value
        self.publish_now()


class Model(FollowedTables):
    def __init__(self) -> None:
        super().__init__(MultiTable([SPEC]).to_serving())

    def row(self, fid: int) -> float:
        return float(self.tables["item"].lookup([fid])[0, 0])


def eventually(is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s, "timeout"
        time.sleep(0.01)


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Limit this process to the descriptors that it has and a few more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_follower_needs_fewer_descriptors_than_a_log_has_segments(tmp_path: Path) -> None:
    trainer, follower = Trainer(tmp_path), None
    late, steady = Model(), Model()
    follower = Follower(tmp_path, steady, clock=FakeClock(now_s=1000.0))
    trainer.publish(1, 1.0)
    assert follower.step()
    for number in range(MANY):
        trainer.publish(2 + number, float(number))
    pusher = RowPusher(tmp_path, trainer.tables, parse_targets(["127.0.0.1:1"]), clock=SystemClock())
    with few_descriptors(MAX_OPEN + 40):
        assert follower.step(), "in place"
        assert Follower(tmp_path, late, clock=FakeClock(now_s=1000.0)).step(), "from the start"
        sent = list(CutPieces(tmp_path, {}).to(trainer.publisher.newest))  # type: ignore[arg-type]
        assert pusher.step()
    pusher.close()
    assert len([message for message in sent if message.path.startswith("log-")]) == MANY + 1
    for model in (late, steady):
        assert [model.row(2 + number) for number in range(MANY)] == [float(number) for number in range(MANY)]


def test_a_removed_segment_among_many_changes_nothing(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model()
    follower = Follower(tmp_path, model, clock=FakeClock(now_s=1000.0))
    trainer.publish(1, 1.0)
    assert follower.step()
    for number in range(MANY):
        trainer.publish(1, 2.0 + number)
    damaged = tmp_path / "shard-00000-of-00001" / f"seg-{MANY:020d}.delta"
    content = bytearray(damaged.read_bytes())
    content[-6] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DeltaLogBroken):
        follower.step()
    assert model.row(1) == 1.0


def test_an_unexpected_error_does_not_stop_a_follower_and_its_age_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(now_s=1000.0)
    trainer, model = Trainer(tmp_path, clock), Model()
    follower = Follower(tmp_path, model, clock=clock, poll_s=0.001)
    trainer.publish(1, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(model, "apply", lambda *_, **__: {}["missing"])
        follower.start()
        eventually(lambda: follower.status.failures > 2)
        assert follower.is_alive
        assert follower.status.error == "KeyError: 'missing'"
        assert caplog.text.count("cut not applied") == 1
    eventually(lambda: follower.status.applied is not None)
    assert (follower.status.error, model.row(1)) == ("", 1.0)
    clock.sleep_s(300.0)
    assert follower.status.age_s(clock.now_s()) == 300.0
    assert follower.status.lag_s(clock.now_s()) == 0.0, "a lag exists only while a newer cut waits"
    follower.close()
    assert not follower.is_alive


def test_a_cut_with_a_field_of_a_later_release_is_read(tmp_path: Path) -> None:
    Trainer(tmp_path).publish(1, 1.0)
    body = unseal((tmp_path / CUT).read_bytes())
    (tmp_path / CUT).write_bytes(seal({**body, "epoch": 7}))
    cut = read_cut(tmp_path)
    assert cut is not None
    assert cut.number == 1
    (tmp_path / CUT).write_bytes(seal({**body, "sequences": 7}))
    with pytest.raises(ManifestInvalid, match=CUT):
        read_cut(tmp_path)


def test_a_move_that_fails_in_the_middle_is_followed_by_a_full_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, model = Trainer(tmp_path), Model()
    follower = Follower(tmp_path, model, clock=FakeClock(now_s=1000.0))
    trainer.publish(1, 1.0)
    assert follower.step()
    trainer.publish(1, 2.0)
    trainer.publish(2, 2.0)
    replaced = []
    apply = Move.apply

    def fail(self: Move, tables: MultiTable) -> None:
        segments, self._segments = self._segments, self._segments[:1]
        apply(self, tables)
        self._segments = segments
        raise CapacityExceeded("table item is full")

    with monkeypatch.context() as patch:
        patch.setattr(Move, "apply", fail)
        assert not follower.try_step()
    before = model.tables
    assert follower.try_step()
    replaced.append(model.tables is not before)
    assert replaced == [True], "tables that changed in part must be replaced"
    assert (model.row(1), model.row(2)) == (2.0, 2.0)


def test_two_publishers_cannot_use_one_folder(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "a")
    other = MultiTable([SPEC])
    logs = LocalRowLog(tmp_path / "logs", other, clock=SystemClock())
    with pytest.raises(ConfigError, match="in use by another publisher"):
        Publisher(tmp_path / "a", logs, dict, clock=SystemClock())
    trainer.publisher.close()
    Publisher(tmp_path / "a", logs, dict, clock=SystemClock()).close()


def test_an_earlier_publisher_is_fenced_off_where_locks_do_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module.fcntl, "flock", lambda *_: None)
    folder = tmp_path / "published"
    first_logs = LocalRowLog(tmp_path / "a", MultiTable([SPEC]), clock=SystemClock())
    first = Publisher(folder, first_logs, dict, clock=SystemClock())
    first.publish()
    second_tables = MultiTable([SPEC])
    logs = LocalRowLog(tmp_path / "b", second_tables, clock=SystemClock())
    second = Publisher(folder, logs, dict, clock=SystemClock())
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(VersionConflict, match="another publisher uses the folder"):
        first.publish()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    second_tables["item"].assign([1], [[1.0]])
    second.publish()
    cut = read_cut(folder)
    assert cut is not None
    assert cut.epoch == 2
    with pytest.raises(VersionConflict, match="epoch of the publisher is 1, expected at least 2"):
        publish(folder, dataclasses.replace(cut, epoch=1), clock=SystemClock())
    first.close()
    second.close()


def test_a_damaged_cut_is_moved_aside_and_replaced_with_a_higher_number(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    for value in (1.0, 2.0, 3.0):
        trainer.publish(1, value)
    content = (tmp_path / CUT).read_bytes()
    (tmp_path / CUT).write_bytes(content[:-20])
    with pytest.raises(ManifestInvalid):
        read_cut(tmp_path)
    trainer.publish(1, 4.0)
    cut = read_cut(tmp_path)
    assert cut is not None
    assert cut.number > 3
    assert [path.read_bytes() for path in tmp_path.glob(f"{CUT}.corrupt-*")] == [content[:-20]]
    model = Model()
    assert Follower(tmp_path, model, clock=FakeClock(now_s=1000.0)).step()
    assert model.row(1) == 4.0


def test_a_segment_whose_folder_was_not_synced_is_written_again_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = MultiTable([SPEC])
    log = DeltaWriter(tmp_path, (0, 1), tables, clock=FakeClock())
    tables["item"].assign([1], [[1.0]])
    synced: list[Path] = []

    def fail(folder: Path) -> None:
        raise OSError(5, "Input/output error", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(writer, "sync_folder", fail)
        with pytest.raises(OSError, match="Input/output"):
            log.write()
        with pytest.raises(OSError, match="Input/output"):
            log.write()  # without new rows: the first segment is not durable yet
    path = tmp_path / f"seg-{1:020d}.delta"
    inode = path.stat().st_ino
    monkeypatch.setattr(writer, "sync_folder", synced.append)
    assert log.write() is None
    assert synced == [tmp_path]
    assert path.stat().st_ino != inode, "the segment must be written again"
    restored = MultiTable([SPEC])
    assert DeltaReader(tmp_path).replay(restored).sequence == 1
    assert restored["item"].lookup([1])[0, 0] == 1.0
    assert log.write() is None
    assert synced == [tmp_path]
    log.close()


def test_a_feed_server_without_a_cut_does_not_spin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr("monolith.sync.feed_server.read_cut", lambda root: looks.append(root))
    server = FeedServer(tmp_path, poll_s=0.05)

    class Context:
        def is_active(self) -> bool:
            return True

    thread = threading.Thread(target=lambda: list(server._follow(FollowRequest(), Context())))
    thread.start()
    time.sleep(0.5)
    server._ended.set()
    thread.join(60)
    assert 1 <= len(looks) <= 15


def test_a_damaged_cache_is_received_again(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "published", SystemClock())
    for value in (1.0, 2.0, 3.0):
        trainer.publish(1, value)
    with FeedServer(tmp_path / "published", poll_s=0.005) as server:
        subscription = Subscription(server.address, tmp_path / "cache")
        subscription.start()
        assert subscription.wait_for_first(60)
        first = next((tmp_path / "cache").glob(f"log-*/seg-{1:020d}.delta"))
        content = bytearray(first.read_bytes())
        content[-6] ^= 1
        first.write_bytes(content)
        model = Model()
        follower = Follower(tmp_path / "cache", model, clock=SystemClock(), poll_s=0.005, on_damaged=subscription.renew)
        follower.start()
        eventually(lambda: follower.status.applied is not None)
        assert model.row(1) == 3.0
        follower.close()
        subscription.close()


def test_a_cache_that_was_damaged_between_two_starts_is_received_again(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "published", SystemClock())
    trainer.publish(1, 1.0)
    trainer.publish(2, 2.0)
    with FeedServer(tmp_path / "published", poll_s=0.005) as server:
        for is_damaged in (False, True):
            if is_damaged:
                first = next((tmp_path / "cache").glob(f"log-*/seg-{1:020d}.delta"))
                content = bytearray(first.read_bytes())
                content[-6] ^= 1
                first.write_bytes(content)
            subscription = Subscription(server.address, tmp_path / "cache")
            subscription.start()
            assert subscription.wait_for_first(60)
            subscription.close()
    model = Model()
    assert Follower(tmp_path / "cache", model, clock=SystemClock()).step()
    assert (model.row(1), model.row(2)) == (1.0, 2.0)


def test_an_unexpected_error_does_not_stop_a_subscription(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tmp_path / "published", SystemClock())
    trainer.publish(1, 1.0)
    with FeedServer(tmp_path / "published", poll_s=0.005) as server:
        subscription = Subscription(server.address, tmp_path / "cache")
        with monkeypatch.context() as patch:
            patch.setattr(subscription._cache, "take", lambda message: {}["missing"])
            subscription.start()
            eventually(lambda: subscription.failures > 0)
            assert subscription.error == "KeyError: 'missing'"
            assert subscription.is_alive
        eventually(lambda: read_cut(tmp_path / "cache") is not None)
        subscription.close()


def test_dense_weights_are_read_although_newer_versions_replace_them_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = DenseWriter(tmp_path)
    weights.write({"a": np.array([1.0], np.float32), "b": np.array([1.0], np.float32)})
    weights.write({"a": np.array([1.0], np.float32), "b": np.array([2.0], np.float32)})
    reader = DenseReader(tmp_path)
    read = reader._read

    def remove_others_first(*args: Any) -> Any:
        for path in (tmp_path / DENSE).iterdir():
            path.unlink()
        return read(*args)

    monkeypatch.setattr(reader, "_read", remove_others_first)
    found, _ = reader.changes(2)
    assert {name: value.tolist() for name, value in found.items()} == {"a": [1.0], "b": [2.0]}


def test_a_failed_publish_is_repeated_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tmp_path)
    trainer.publish(1, 1.0)

    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("monolith.sync.publisher.publish", fail)
        with pytest.raises(OSError, match="No space"):
            trainer.publish(1, 2.0)
    trainer.publisher.publish()  # without another change
    model = Model()
    assert Follower(tmp_path, model, clock=FakeClock(now_s=1000.0)).step()
    assert model.row(1) == 2.0


def test_a_base_is_written_before_the_segments_it_contains_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(tmp_path)
    trainer.publish(1, 1.0)
    state = trainer.publisher.publish()
    order: list[str] = []
    monkeypatch.setattr("monolith.sync.publisher.write_base", lambda root, base: order.append("base"))
    monkeypatch.setattr(trainer.rows, "compact", lambda base: order.append("compact"))
    trainer.publisher.rebase(tmp_path / "checkpoint", state)
    assert order == ["base", "compact"]
