"""Receipts of forgotten rows and the errors of disks: a run continues, and the next checkpoint completes them."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_run import FakeRun
from monolith.artifacts import CheckpointFolder, CheckpointManifest, Retention
from monolith.artifacts.delta_log import Cut, segment_path
from monolith.artifacts.forget_receipts import ForgetLedger, ForgottenRow, Receipt
from monolith.core.config_sections import build_section
from monolith.training.config import CheckpointConfig
from monolith.training.hooks.forget import ForgetHook


def make_run(folder: Path) -> FakeRun:
    run = FakeRun(folder)
    run.config = SimpleNamespace(
        checkpoint=build_section(CheckpointConfig), export=SimpleNamespace(export_dir_base="exports"), model_dir=folder
    )
    return run


def open_receipt(folder: Path) -> None:
    """Write the receipt of a run that was killed before its checkpoint."""
    row = ForgottenRow(table="user", id=7, value="7", had_row=True)
    ForgetLedger(folder).begin(Receipt(requested_at_s=1.0, rows=(row,)))


def save(run: FakeRun, hook: ForgetHook, step: int) -> None:
    run.step = step
    hook.before_save(run)
    header = CheckpointManifest(step=step, number=0, kind="full", saved_at_s=0.0, reason="test", package_version="0")
    folder = CheckpointFolder(run.model_dir / "checkpoints")
    saved = folder.add(header, lambda place: {}, retention=Retention(), started_at_s=0.0)
    hook.after_save(run, saved.path)


def is_complete(folder: Path) -> bool:
    return all(receipt.is_complete for receipt in ForgetLedger(folder).all())


def test_a_publish_that_fails_leaves_the_receipt_to_the_next_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_receipt(tmp_path)
    run, hook = make_run(tmp_path), ForgetHook()
    disk = {"is_full": True}

    def publish() -> Cut:
        if disk["is_full"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return Cut(sequences={0: 1}, dense=0, number=3)

    hook.publish, hook.published = publish, tmp_path / "published"
    hook.on_start(run)
    save(run, hook, 10)
    assert not is_complete(tmp_path)
    assert "No space left" in caplog.text
    disk["is_full"] = False
    save(run, hook, 20)
    assert is_complete(tmp_path)
    (receipt,) = ForgetLedger(tmp_path).all()
    assert (receipt.cut, receipt.checkpoint_number) == (3, 2)


def test_a_segment_that_is_compacted_meanwhile_does_not_hold_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_receipt(tmp_path)
    run, hook = make_run(tmp_path), ForgetHook()
    log = tmp_path / "published/shard-00000-of-00001"
    log.mkdir(parents=True)
    segment_path(log, 1).write_bytes(b"segment")
    monkeypatch.setattr("monolith.training.hooks.forget.segment_path", removed_path)
    cut = Cut(sequences={0: 2}, dense=0, number=3, folders=(log.name,))
    hook.publish, hook.published = lambda: cut, tmp_path / "published"
    hook.on_start(run)
    save(run, hook, 10)
    assert is_complete(tmp_path)
    assert not any(place.kind == "segment" for receipt in ForgetLedger(tmp_path).all() for place in receipt.remaining)


def removed_path(folder: Path, number: int) -> Any:
    path = segment_path(folder, number)
    path.unlink()
    return path
