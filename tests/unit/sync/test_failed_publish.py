from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monolith.artifacts.delta_log import read_cut
from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.sync import publisher as publisher_module
from monolith.testing.fakes.published import PublishedTables

SPEC = TableSpec("item", [SliceSpec(1, optimizer=Sgd(learning_rate=1.0))])


def test_a_cut_that_could_not_be_published_is_published_by_the_next_call_without_further_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = PublishedTables(tmp_path, [SPEC], {"w": [1.0]})
    first = trainer.publish_now()
    trainer.tables["item"].assign([7], [[2.0]])

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publisher_module, "publish", fail)
        with pytest.raises(OSError, match="no space"):
            trainer.publisher.publish()
    assert read_cut(tmp_path) == first
    second = trainer.publish_now()
    assert second.number == first.number + 1
    assert second.sequences == {0: first.sequences[0] + 1}
    assert read_cut(tmp_path) == second
