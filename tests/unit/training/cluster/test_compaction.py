"""Telling servers of checkpoints that are safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from monolith.core.errors import ShardUnavailable
from monolith.training.cluster.compaction import CompactionHook

RUN = cast(Any, None)


def test_every_durable_checkpoint_is_compacted() -> None:
    told: list[Path] = []
    hook = CompactionHook(told.append)
    for name in ("a", "b"):
        hook.after_save(RUN, Path(name))
    assert told == [Path("a"), Path("b")]


def test_a_failed_compaction_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    def away(path: Path) -> None:
        raise ShardUnavailable("nobody answers")

    CompactionHook(away).after_save(RUN, Path("a"))
    assert "delta logs not compacted path=a error=nobody answers" in caplog.text
