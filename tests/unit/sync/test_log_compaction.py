"""The log of a local publisher stays bounded without a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.artifacts.delta_log import DeltaReader, shard_folder
from monolith.artifacts.delta_log.segment import segment_numbers
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.sync import Follower, LocalRowLog, Publisher
from monolith.sync import publisher as publisher_module
from monolith.testing.fakes.clock import FakeClock
from monolith.testing.fakes.published import FollowedTables

MAX_SEGMENTS = 5
IDS = np.arange(1, 9)
SPEC = TableSpec("item", [SliceSpec(2, optimizer=Sgd(learning_rate=0.5))])


class Trainer:
    """Learns two steps of every id per publish, so that deltas soon are as large as all rows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tables = MultiTable([SPEC])
        self.rows = LocalRowLog(root, self.tables, clock=FakeClock(), max_segments=MAX_SEGMENTS)
        self.publisher = Publisher(root, self.rows, dict, clock=FakeClock())

    def learn(self, ids: Any = IDS) -> None:
        self.tables.apply_gradients({"item": ids}, {"item": np.ones((len(ids), 2), np.float32)})

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.learn()
            self.publisher.publish()

    @property
    def segments(self) -> list[int]:
        return segment_numbers(shard_folder(self.root, 0, 1))


def follower_of(trainer: Trainer) -> tuple[Follower, FollowedTables]:
    target = FollowedTables(MultiTable([SPEC]).to_serving())
    return Follower(trainer.root, target, clock=FakeClock()), target


def assert_equal_rows(target: FollowedTables, trainer: Trainer) -> None:
    np.testing.assert_array_equal(target.tables["item"].lookup(IDS), trainer.tables["item"].lookup(IDS))


def test_a_log_without_checkpoints_stays_bounded_and_servers_old_and_new_show_the_newest_cut(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    early, early_target = follower_of(trainer)
    for _ in range(4 * MAX_SEGMENTS):
        trainer.publish(1)
        early.step()
        assert_equal_rows(early_target, trainer)
        assert len(trainer.segments) <= MAX_SEGMENTS + 1
    late, late_target = follower_of(trainer)
    late.step()
    assert_equal_rows(late_target, trainer)


def test_a_log_is_not_compacted_while_its_changes_are_smaller_than_all_rows(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.learn(np.arange(1, 5000))
    for _ in range(3 * MAX_SEGMENTS):
        trainer.learn([7])
        trainer.publisher.publish()
    assert len(trainer.segments) == 3 * MAX_SEGMENTS


def test_replaced_segments_stay_until_the_cut_that_replaces_them_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(tmp_path)
    trainer.publish(MAX_SEGMENTS + 1)
    published, before = trainer.tables["item"].lookup(IDS), trainer.segments

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publisher_module, "publish", fail)
        trainer.learn()
        with pytest.raises(OSError, match="no space"):
            trainer.publisher.publish()
    assert trainer.segments == [*before, before[-1] + 1]
    assert DeltaReader(shard_folder(tmp_path, 0, 1)).read(before[-1] + 1).is_complete
    follower, target = follower_of(trainer)
    follower.step()
    np.testing.assert_array_equal(target.tables["item"].lookup(IDS), published)

    trainer.publish(1)
    assert trainer.segments == [before[-1] + 1, before[-1] + 2]
    follower.step()
    assert_equal_rows(target, trainer)


def test_a_publisher_that_restarts_again_and_again_keeps_no_segments_of_earlier_starts(tmp_path: Path) -> None:
    early_target = FollowedTables(MultiTable([SPEC]).to_serving())
    early = Follower(tmp_path, early_target, clock=FakeClock())
    for _ in range(4):
        trainer = Trainer(tmp_path)
        trainer.publish(2)
        assert len(trainer.segments) == 2
        early.step()
        assert_equal_rows(early_target, trainer)
        late, late_target = follower_of(trainer)
        late.step()
        assert_equal_rows(late_target, trainer)
        trainer.publisher.close()
