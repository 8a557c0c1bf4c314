"""Behaviours of the original's checkpoints (saver, restore hooks, runner_utils), in our folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monolith.core.config_sections import build_section
from monolith.embedding import Adagrad, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.testing import FakeClock
from monolith.training.checkpoints import Checkpointer, TrainingState
from monolith.training.config import CheckpointConfig


def make_state(specs: list[TableSpec] | None = None) -> TrainingState:
    return TrainingState(step=0, model=torch.nn.Linear(1, 1), optimizers={}, store=MultiTable(specs or []), rng=False)


def save_at(checkpointer: Checkpointer, state: TrainingState, *steps: int) -> None:
    for state.step in steps:
        checkpointer.save(state, reason="test").wait()


def steps_of(checkpointer: Checkpointer) -> list[int]:
    return [saved.step for saved in checkpointer.folder.saved()]


def make(path: Path, clock: FakeClock | None = None, **settings: Any) -> Checkpointer:
    return Checkpointer(
        path, build_section(CheckpointConfig, **{"background_save": False, **settings}), clock=clock or FakeClock()
    )


def test_expired_rows_do_not_come_back_and_adagrad_rows_do(tmp_path: Path) -> None:
    spec = TableSpec(
        "t",
        [SliceSpec(5, optimizer=Adagrad(0.001, initial_accumulator_value=1.0))],
        slot_expire_days={1: 0, 2: 1},
    )
    ids = np.array([1 << 48, (1 << 48) + 1, 2 << 48, (2 << 48) + 1])
    state = make_state([spec])
    state.store.push({"t": ids}, {"t": np.ones((4, 5), np.float32)}, time_s=100)
    save_at(make(tmp_path), state, 1)
    again = make_state([spec])
    make(tmp_path).restore(again)
    pooled = again.store.lookup_pooled({"t": (ids, np.array([0, 2, 4]))})["t"]  # type: ignore[attr-defined]
    assert pooled[0].tolist() == [0.0] * 5
    assert pooled[1] == pytest.approx([-0.001414] * 5, abs=1e-6)


@pytest.mark.parametrize(
    ("expire_days", "times", "kept"),
    [
        (1, [10_000_000 - 86400 - 1, 10_000_000 - 86400 + 1, 10_000_000], [1, 2]),
        (1, [0, 0, 0], [0, 1, 2]),
        (0, [0, 0, 0], []),
    ],
)
def test_the_boundary_of_expiry(tmp_path: Path, expire_days: int, times: list[int], kept: list[int]) -> None:
    spec = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))], expire_days=expire_days)
    state = make_state([spec])
    for fid, time_s in enumerate(times):
        state.store.push({"t": np.array([fid])}, {"t": np.ones((1, 1), np.float32)}, time_s=time_s)
    save_at(make(tmp_path), state, 1)
    again = make_state([spec])
    make(tmp_path).restore(again)
    assert [fid for fid in range(3) if again.store["t"].contains([fid])[0]] == kept  # type: ignore[index]


def test_exempt_checkpoints_survive_retention(tmp_path: Path) -> None:
    checkpointer, state = make(tmp_path, checkpoints_max_to_keep=3), make_state()
    save_at(checkpointer, state, 10)
    checkpointer.folder.exempt("step-000000010")
    save_at(checkpointer, state, 20)
    checkpointer.folder.exempt("step-000000020")
    save_at(checkpointer, state, 30, 40, 50)
    assert steps_of(checkpointer) == [10, 20, 30, 40, 50]
    save_at(checkpointer, state, 60)
    assert steps_of(checkpointer) == [10, 20, 40, 50, 60]


def test_one_checkpoint_is_spared_every_n_hours(tmp_path: Path) -> None:
    clock = FakeClock()
    checkpointer = make(tmp_path, clock, checkpoints_max_to_keep=2, keep_checkpoint_every_n_hours=0.7 / 3600)
    clock.advance_s(0.75)
    save_at(checkpointer, make_state(), 1, 2, 3, 4)
    assert steps_of(checkpointer) == [1, 3, 4], "the first survives, the second is deleted"


def test_checkpoints_that_are_gone_are_dropped(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, checkpoints_max_to_keep=2)
    save_at(checkpointer, make_state(), 1, 2)
    shutil.rmtree(tmp_path / "checkpoints/step-000000001")
    again = make(tmp_path, checkpoints_max_to_keep=2)
    assert steps_of(again) == [2]
    save_at(again, make_state(), 3)
    assert steps_of(again) == [2, 3]


def test_restore_dir_leaves_its_marker(tmp_path: Path) -> None:
    save_at(make(tmp_path / "old"), make_state(), 7)
    restored = make(tmp_path / "new", restore_dir=str(tmp_path / "old")).restore(make_state())
    assert restored is not None
    assert restored.step == 7
    assert (tmp_path / "new/restore_ckpt").is_file()


def test_a_different_set_of_tables_restores_the_common_tables_and_clears_newer_rows(tmp_path: Path) -> None:
    def spec(name: str) -> TableSpec:
        return TableSpec(name, [SliceSpec(1, optimizer=Sgd(1.0))])

    state = make_state([spec("common"), spec("removed")])
    one = np.ones((1, 1), np.float32)
    state.store.push({"common": np.array([1]), "removed": np.array([1])}, {"common": one, "removed": one})
    save_at(make(tmp_path), state, 1)
    again = make_state([spec("added"), spec("common")])
    again.store.push({"common": np.array([2])}, {"common": one})
    restored = make(tmp_path).restore(again)
    assert restored is not None
    assert restored.report is not None
    report = restored.report
    assert (report.restored, report.skipped, report.missing) == (("common",), ("removed",), ("added",))
    assert again.store.pull({"common": np.array([1, 2])})["common"].tolist() == [[-1.0], [0.0]]
