from __future__ import annotations

import errno
import logging
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import checkpoint_runs as runs
from checkpoint_runs import content_of, make_checkpointer, make_state, save_run, train
from monolith.artifacts import read_manifest, verify_files
from monolith.core.errors import ArtifactError, ConfigError
from monolith.testing import FakeClock
from monolith.training.checkpoints import Checkpointer, files
from monolith.training.config import CheckpointConfig
from monolith.training.config.tide import SaveTimer


def test_a_resumed_run_ends_with_the_same_bytes_as_one_that_never_stopped(tmp_path: Path) -> None:
    np.random.seed(1)
    whole = make_state()
    train(whole, 7)
    np.random.seed(1)
    save_run(tmp_path, (4,))
    np.random.seed(99)
    random.seed(99)
    resumed = make_state(seed=99)
    restored = make_checkpointer(tmp_path).restore(resumed)
    assert restored is not None
    assert (restored.step, resumed.step) == (4, 4)
    train(resumed, 3)
    assert content_of(resumed) == content_of(whole)


def test_the_loop_gets_back_what_it_handed_over(tmp_path: Path) -> None:
    saved = save_run(tmp_path, (3,))
    restored = make_checkpointer(tmp_path).restore(make_state(seed=5))
    assert restored is not None
    assert restored.path == tmp_path / "checkpoints/step-000000003"
    assert (restored.data, restored.metrics, restored.extra) == (saved.data, saved.metrics, saved.extra)
    assert restored.report is not None
    assert restored.report.restored == ("item", "user")


def test_random_generators_of_python_numpy_and_torch_continue(tmp_path: Path) -> None:
    random.gauss(0, 1)
    np.random.standard_normal()
    save_run(tmp_path)
    wanted = [random.gauss(0, 1), random.random(), np.random.standard_normal(3).tolist(), torch.rand(3).tolist()]
    random.seed(0)
    np.random.seed(0)
    make_checkpointer(tmp_path).restore(make_state())
    assert wanted == [
        random.gauss(0, 1),
        random.random(),
        np.random.standard_normal(3).tolist(),
        torch.rand(3).tolist(),
    ]


def test_without_rng_the_generators_are_left_alone(tmp_path: Path) -> None:
    save_run(tmp_path)
    state = make_state()
    state.rng = False
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    make_checkpointer(tmp_path).restore(state)
    assert torch.equal(torch.rand(2), wanted)


def test_nothing_to_restore_is_none(tmp_path: Path) -> None:
    assert make_checkpointer(tmp_path).restore(make_state()) is None


def test_a_checkpoint_names_every_file_with_size_and_checksum(tmp_path: Path) -> None:
    state = save_run(tmp_path, (3,))
    folder = tmp_path / "checkpoints/step-000000003"
    manifest = read_manifest(folder)
    on_disk = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {file.name for file in manifest.files} == on_disk - {"manifest.json"}
    assert {"dense.safetensors", "optimizer.safetensors", "optimizer.json", "state.json"} < on_disk
    assert (manifest.step, manifest.kind, manifest.reason) == (3, "full", "test")
    assert dict(manifest.tables) == {name: len(state.store[name]) for name in ("item", "user")}  # type: ignore[index]
    verify_files(folder, manifest)


class GatedCut:
    """A cut that is written when the test allows."""

    def __init__(self, cut: Any, gate: threading.Event) -> None:
        self._cut, self._gate = cut, gate

    def write(self, path: Any) -> Any:
        assert self._gate.wait(30)
        return self._cut.write(path)

    def drop(self) -> None:
        self._cut.drop()


def gate_cuts(state: Any, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    gate, take = threading.Event(), state.store.cut
    monkeypatch.setattr(state.store, "cut", lambda: GatedCut(take(), gate))
    return gate


def test_training_goes_on_while_files_are_written_and_does_not_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state()
    train(state, 2)
    wanted = content_of(state)
    gate = gate_cuts(state, monkeypatch)
    checkpointer = make_checkpointer(tmp_path)
    pending = checkpointer.save(state, reason="test")
    train(state, 3)
    assert not pending.is_done
    gate.set()
    assert pending.wait() == tmp_path / "checkpoints/step-000000002"
    checkpointer.close()
    again = make_state(seed=9)
    make_checkpointer(tmp_path).restore(again)
    assert content_of(again) == wanted


def test_a_second_save_waits_for_the_first_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = make_state()
    train(state, 1)
    gate = gate_cuts(state, monkeypatch)
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.save(state, reason="one")
    train(state, 1)
    waits = threading.Event()

    class Opener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for the save under way" in record.getMessage():
                waits.set()
                gate.set()

    logger = logging.getLogger("monolith.training.checkpoints.pending")
    opener = Opener()
    logger.addHandler(opener)
    try:
        with caplog.at_level(logging.INFO, logger=logger.name):
            checkpointer.save(state, reason="two").wait()
    finally:
        logger.removeHandler(opener)
    assert waits.is_set()
    assert [saved.step for saved in checkpointer.folder.saved()] == [1, 2]
    checkpointer.close()


def test_without_background_a_save_is_safe_when_it_returns(tmp_path: Path) -> None:
    state = make_state()
    train(state, 1)
    checkpointer = make_checkpointer(tmp_path, background_save=False)
    pending = checkpointer.save(state, reason="test")
    assert pending.is_done
    assert pending.wait() == tmp_path / "checkpoints/step-000000001"


class EveryThird(SaveTimer):
    def __init__(self) -> None:
        super().__init__()
        self.saved: list[tuple[int, float]] = []

    def is_due(self, step: int, now_s: float) -> bool:
        return step % 3 == 0

    def mark_saved(self, step: int, now_s: float) -> None:
        self.saved.append((step, now_s))


def test_timers_decide_and_hear_of_every_save(tmp_path: Path) -> None:
    timer, dense_timer = EveryThird(), EveryThird()
    clock = FakeClock(now_s=50)
    checkpointer = Checkpointer(tmp_path, CheckpointConfig(), clock=clock, timer=timer, dense_timer=dense_timer)
    state = make_state()
    train(state, 3)
    assert checkpointer.is_due(3)
    assert not checkpointer.is_due(4)
    assert checkpointer.is_dense_due(3)
    checkpointer.save(state, reason="due").wait()
    assert not checkpointer.is_dense_due(3), "a full save was made at this step"
    assert checkpointer.is_dense_due(6)
    checkpointer.save_dense(state, reason="due").wait()
    assert timer.saved == dense_timer.saved == [(3, 50)]
    checkpointer.close()
    assert not make_checkpointer(tmp_path).is_due(3)


def test_requested_saves_that_fail_do_not_postpone_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = SaveTimer(every_steps=10)
    timer.start(0, 0.0)
    checkpointer = Checkpointer(tmp_path, CheckpointConfig(), clock=FakeClock(), timer=timer)
    state = make_state()
    train(state, 1)

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_dense", refuse)
        for step in (8, 9):
            state.step = step
            with pytest.raises(ArtifactError, match="No space left"):
                checkpointer.save(state, reason="requested").wait()
    assert not checkpointer.is_due(9)
    assert checkpointer.last_step is None
    assert checkpointer.is_due(10)
    state.step = 10
    checkpointer.save(state, reason="by schedule").wait()
    assert not checkpointer.is_due(10)
    assert (checkpointer.last_step, checkpointer.is_due(20)) == (10, True)
    checkpointer.close()


def test_dense_only_checkpoints_have_their_own_folder_and_retention(tmp_path: Path) -> None:
    state = make_state()
    checkpointer = make_checkpointer(tmp_path, checkpoints_max_to_keep=2)
    train(state, 1)
    checkpointer.save(state, reason="test").wait()
    for _ in range(3):
        train(state, 1)
        checkpointer.save_dense(state, reason="test").wait()
    assert [saved.step for saved in checkpointer.folder.saved()] == [1]
    checkpointer.close()
    assert sorted(path.name for path in (tmp_path / "dense_only").iterdir()) == ["step-000000003", "step-000000004"]
    manifest = read_manifest(tmp_path / "dense_only/step-000000004")
    assert manifest.kind == "dense_only"
    assert not any(file.name.startswith("tables/") for file in manifest.files)
    fresh = make_state(seed=7)
    restored = make_checkpointer(tmp_path).restore(fresh)
    assert restored is not None
    assert restored.step == 1, "a run goes on from a full checkpoint"


def test_a_dense_only_checkpoint_can_be_asked_for(tmp_path: Path) -> None:
    state = make_state()
    train(state, 2)
    checkpointer = make_checkpointer(tmp_path / "a")
    checkpointer.save_dense(state, reason="test").wait()
    checkpointer.close()
    fresh = make_state(seed=7)
    restored = make_checkpointer(tmp_path / "b", restore_dir=str(tmp_path / "a/dense_only")).restore(fresh)
    assert restored is not None
    assert restored.report is not None
    assert restored.report.missing == ("item", "user")
    assert torch.equal(fresh.model.state_dict()["norm.weight"], state.model.state_dict()["norm.weight"])


def test_expired_rows_leave_the_tables_with_a_save(tmp_path: Path) -> None:
    spec = runs.TableSpec("user", [runs.SliceSpec(1, optimizer=runs.Adagrad(0.1))], expire_days=1)
    for evicts, left in ((False, 2), (True, 1)):
        state = make_state(net=torch.nn.Linear(1, 1), specs=[spec])
        one = np.ones((1, 1), np.float32)
        state.store.push({"user": np.array([1])}, {"user": one}, time_s=1)
        state.store.push({"user": np.array([2])}, {"user": one}, time_s=2 * 86400)
        checkpointer = make_checkpointer(tmp_path / str(evicts), feature_eviction_on_save=evicts)
        path = checkpointer.save(state, reason="test").wait()
        checkpointer.close()
        assert len(state.store["user"]) == left  # type: ignore[index]
        assert dict(read_manifest(path).tables) == {"user": 1}


def test_what_cannot_be_saved_is_refused_at_once_by_name(tmp_path: Path) -> None:
    state = make_state()
    train(state, 1)
    checkpointer = make_checkpointer(tmp_path)
    state.extra = {"when": object()}
    with pytest.raises(ConfigError, match=r"TrainingState\.extra"):
        checkpointer.save(state, reason="test")
    assert not (tmp_path / "checkpoints").exists()


def test_a_model_that_was_never_called_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="call the model once"):
        make_checkpointer(tmp_path).save(make_state(), reason="test")


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    state = save_run(tmp_path, (2,))
    state.extra = {"note": "second"}
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.save(state, reason="again").wait()
    checkpointer.close()
    restored = make_checkpointer(tmp_path).restore(make_state())
    assert restored is not None
    assert restored.extra == {"note": "second"}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000002"]


def test_a_store_that_cannot_be_cut_is_written_before_save_returns(tmp_path: Path) -> None:
    state = make_state()
    train(state, 1)
    tables = state.store

    class Uncut:
        specs, pull, push, snapshot, restore = (
            tables.specs, tables.pull, tables.push, tables.snapshot, tables.restore,
        )  # fmt: skip

    state.store = Uncut()
    checkpointer = make_checkpointer(tmp_path)
    pending = checkpointer.save(state, reason="test")
    assert pending.is_done
    assert (pending.wait() / "tables/manifest.json").is_file()
    restored = make_checkpointer(tmp_path).restore(state)
    assert restored is not None
