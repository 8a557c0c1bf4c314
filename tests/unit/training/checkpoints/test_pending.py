from __future__ import annotations

from pathlib import Path

import pytest

from monolith.core.errors import ArtifactError
from monolith.training.checkpoints.pending import BackgroundWriter


def fail() -> Path:
    raise ArtifactError("the disk is full")


def test_close_raises_the_error_of_a_last_save_that_no_caller_waited_for() -> None:
    writer = BackgroundWriter()
    writer.begin(1, "test", 0.0, fail)
    with pytest.raises(ArtifactError, match="disk is full"):
        writer.close()


def test_close_does_not_repeat_an_error_that_a_caller_has_received() -> None:
    writer = BackgroundWriter()
    pending = writer.begin(1, "test", 0.0, fail)
    with pytest.raises(ArtifactError, match="disk is full"):
        pending.wait(30)
    writer.close()


def test_a_later_save_does_not_hide_the_error_of_an_earlier_one(tmp_path: Path) -> None:
    writer = BackgroundWriter()
    writer.begin(1, "test", 0.0, fail).settle(30)
    writer.begin(2, "test", 0.0, lambda: tmp_path).wait(30)
    with pytest.raises(ArtifactError, match="disk is full"):
        writer.close()
