from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from fake_run import FakeRun
from monolith.testing import FakeClock
from monolith.training.hooks import ActionFileHook


def ask(folder: Path, text: str) -> None:
    (folder / "monolith_action").write_text(text)


def answer(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "monolith_action_response").read_text())
    return found


@pytest.mark.parametrize("text", ["action: STOP", "action:2\n", " action : STOP "])
def test_stop_ends_the_run_and_is_consumed(tmp_path: Path, text: str) -> None:
    ask(tmp_path, text)
    run = FakeRun(tmp_path, [ActionFileHook()])
    run.train(5)
    assert run.step == 1
    assert run.stop_reasons == ["asked for by monolith_action"]
    assert answer(tmp_path) == {"action": "STOP", "ok": True, "step": 1, "message": "the run ends with a checkpoint"}
    assert not (tmp_path / "monolith_action").exists()


def saving(run: FakeRun) -> threading.Thread:
    thread = threading.Thread(target=run.train, args=(10**9,))
    thread.start()
    return thread


def test_a_save_is_answered_when_it_is_safe(tmp_path: Path) -> None:
    ask(tmp_path, "action: TRIGGER_SAVE")
    run = FakeRun(tmp_path, [ActionFileHook()])
    thread = saving(run)
    run.wait(lambda: run.saved)
    run.stop("enough")
    thread.join()
    found = answer(tmp_path)
    assert (found["action"], found["ok"]) == ("TRIGGER_SAVE", True)
    assert found["message"] == str(tmp_path / f"step-{run.saved[0][0]}")


def test_a_save_that_fails_is_answered_too(tmp_path: Path) -> None:
    ask(tmp_path, "action: 1")
    run = FakeRun(tmp_path, [ActionFileHook()])
    run.save_error = OSError("No space left on device")
    thread = saving(run)
    run.wait(lambda: run.saved)
    run.stop("enough")
    thread.join()
    assert (answer(tmp_path)["ok"], answer(tmp_path)["message"]) == (False, "No space left on device")


@pytest.mark.parametrize("text", ["stop", "action: DANCE", "action: STOP now"])
def test_unknown_actions_are_answered_with_the_known_ones(tmp_path: Path, text: str) -> None:
    ask(tmp_path, text)
    run = FakeRun(tmp_path, [ActionFileHook()])
    run.train(2)
    assert run.step == 2
    assert not answer(tmp_path)["ok"]
    assert f"action is {text!r}, expected 'action: TRIGGER_SAVE'" in answer(tmp_path)["message"]


def test_the_folder_is_looked_at_every_minute_and_an_empty_file_is_waited_for(tmp_path: Path) -> None:
    clock = FakeClock()
    run = FakeRun(tmp_path, [ActionFileHook()], clock=clock)
    ask(tmp_path, "")
    run.take_step()
    assert (tmp_path / "monolith_action").exists()
    ask(tmp_path, "action: STOP")
    clock.advance_s(59)
    run.take_step()
    assert not run.stop_reasons
    clock.advance_s(1)
    run.take_step()
    assert run.stop_reasons


def test_a_file_that_cannot_be_read_is_answered_and_the_run_continues(tmp_path: Path) -> None:
    (tmp_path / "monolith_action").mkdir()
    run = FakeRun(tmp_path, [ActionFileHook()])
    run.train(2)
    assert run.step == 2
    assert not answer(tmp_path)["ok"]
    assert "monolith_action cannot be read" in answer(tmp_path)["message"]
