"""Telling servers of checkpoints that are safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from monolith.artifacts.delta_log import LogPosition
from monolith.core.errors import ShardUnavailable
from monolith.sync.base_snapshot import BaseSnapshot, write_base
from monolith.training.cluster.compaction import CompactionHook, published_only

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


def test_only_the_published_base_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Path] = []
    hook = CompactionHook(published_only(told.append, tmp_path / "published"))
    (tmp_path / "published").mkdir()
    hook.after_save(RUN, tmp_path / "run" / "a")
    write_base(
        tmp_path / "published", BaseSnapshot(tables=tmp_path / "run" / "b" / "tables", positions={0: LogPosition(1, 2)})
    )
    hook.after_save(RUN, tmp_path / "run" / "a")
    assert told == []
    assert caplog.text.count("which was not published") == 2
    monkeypatch.chdir(tmp_path)
    hook.after_save(RUN, Path("run/b"))
    assert told == [Path("run/b")]
