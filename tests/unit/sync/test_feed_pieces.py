from __future__ import annotations

from pathlib import Path

import numpy as np

from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.sync.feed_messages import FollowResponse
from monolith.sync.feed_pieces import CutPieces
from monolith.testing.fakes.published import PublishedTables

SPEC = TableSpec("item", [SliceSpec(1, optimizer=Sgd(learning_rate=1.0))])


class Trainer(PublishedTables):
    """Learns one row per publish."""

    def publish_row(self) -> None:
        self.tables.apply_gradients({"item": [7]}, {"item": np.ones((1, 1), np.float32)})
        self.publish_now()

    def rebase(self, folder: Path) -> None:
        self.tables.save(folder)
        self.publisher.rebase(folder, self.publisher.publish())

    def send(self, pieces: CutPieces) -> list[FollowResponse]:
        return list(pieces.to(self.publish_now()))


def test_a_subscriber_learns_of_a_base_that_is_newer_than_its_start(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "published", [SPEC], {})
    trainer.publish_row()
    trainer.publish_row()
    trainer.rebase(tmp_path / "first")
    trainer.publish_row()
    pieces = CutPieces(trainer.root, {})
    messages = trainer.send(pieces)
    assert any(message.path.startswith("base") for message in messages), "the subscriber starts from the base"
    assert not messages[-1].has_newer_base
    trainer.rebase(tmp_path / "second")
    trainer.publish_row()
    assert trainer.send(pieces)[-1].has_newer_base


def test_a_transfer_that_takes_longer_than_many_publishes_still_ends_with_its_cut(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "published", [SPEC], {"w": np.zeros(2)})
    trainer.publish_row()
    messages = CutPieces(trainer.root, {}).to(trainer.publish_now())
    received = [next(messages)]
    for number in range(20):
        trainer.weights["w"] += 1
        trainer.publish_row()
        assert trainer.publisher.newest is not None
        assert trainer.publisher.newest.number == number + 2
    received += messages
    assert received[-1].path == "cut.json"
    assert [message.path for message in received if message.path.startswith("dense/")] == [
        "dense/dense-00000000000000000001.safetensors",
        "dense/dense-00000000000000000001.json",
    ]
