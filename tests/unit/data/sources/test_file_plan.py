"""A shared plan on a full disk."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.data.sources._file_plan import FULL_DISK_S, FixedPlan, SharedPlan
from monolith.data.sources.work_list import FolderWorkList
from monolith.testing import FakeClock


class FullDisk:
    """Fails the next ``failures`` syncs of files with ``number``, as a disk does."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self.number = errno.ENOSPC
        self.before_failure: Callable[[], object] = lambda: None
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self.sync)

    def sync(self, descriptor: int) -> None:
        if self.failures > 0:
            self.failures -= 1
            self.before_failure()
            raise OSError(self.number, os.strerror(self.number))
        self._fsync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def test_a_worker_retries_while_the_disk_of_the_list_is_full(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    plan = SharedPlan(FolderWorkList(tmp_path, ["a", "b"]), "one")
    plan.start()
    disk.failures = 2
    with caplog.at_level(logging.WARNING):
        assert plan.take() == "a"
    assert [record.getMessage().split(" error=")[0] for record in caplog.records] == [
        "work list not saved, retrying worker=one"
    ]
    disk.failures = 1
    plan.done("a")
    state = FolderWorkList(tmp_path).state()
    assert (state["claimed"], state["done"]) == ({"a": "one"}, ["a"]), "every change happened once"


def test_a_disk_that_stays_full_ends_the_worker(tmp_path: Path, disk: FullDisk) -> None:
    clock = FakeClock()
    disk.before_failure = lambda: clock.sleep_s(FULL_DISK_S / 2)
    plan = SharedPlan(FolderWorkList(tmp_path, ["a", "b"]), "one", clock)
    plan.start()
    disk.failures = 1_000
    with pytest.raises(OSError, match="No space left on device"):
        plan.take()
    assert disk.failures > 990, "the worker gave up after the deadline"


def test_another_error_of_the_disk_is_raised_without_a_retry(tmp_path: Path, disk: FullDisk) -> None:
    plan = SharedPlan(FolderWorkList(tmp_path, ["a"]), "one")
    plan.start()
    disk.failures, disk.number = 1, errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        plan.take()


def test_a_closed_plan_retries_no_more(tmp_path: Path, disk: FullDisk) -> None:
    plan = SharedPlan(FolderWorkList(tmp_path, ["a"]), "one")
    plan.start()
    disk.failures = 1_000
    plan.close()
    with pytest.raises(OSError, match="No space left on device"):
        plan.take()


def take_all(plan: FixedPlan, limit: int) -> list[str | None]:
    return [plan.take() for _ in range(limit)]


def test_a_fixed_plan_ends_after_its_passes_and_an_endless_one_never() -> None:
    assert take_all(FixedPlan(["a", "b"], 2), 6) == ["a", "b", "a", "b", None, None]
    assert take_all(FixedPlan(["a", "b"], None), 5) == ["a", "b", "a", "b", "a"]
