from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fake_run import FakeRun
from monolith.core.errors import ConfigError
from monolith.training.hooks import Hook, ProfilerHook, Run


class Adds(Hook):
    """Work that a trace shows."""

    def before_step(self, run: Run) -> None:
        torch.add(torch.ones(2), 1)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "profile").glob("*")) if (folder / "profile").exists() else []


def test_windows_are_traced_again_and_again(tmp_path: Path) -> None:
    hook = ProfilerHook(3, steps=2, every_steps=5)
    FakeRun(tmp_path, [hook, Adds()]).train(11)
    assert files(tmp_path) == ["steps-000000004-000000005.json", "steps-000000009-000000010.json"]
    trace = json.loads((tmp_path / "profile/steps-000000004-000000005.json").read_text())
    assert sum(event.get("name") == "aten::add" for event in trace["traceEvents"]) == 2


def test_a_resumed_run_traces_the_windows_that_are_left(tmp_path: Path) -> None:
    FakeRun(tmp_path, [ProfilerHook(3, steps=2, every_steps=5), Adds()], step=4).train(6)
    assert files(tmp_path) == ["steps-000000009-000000010.json"]


def test_a_window_that_the_end_cuts_is_written(tmp_path: Path) -> None:
    FakeRun(tmp_path, [ProfilerHook(1, steps=4, every_steps=9), Adds()]).train(3)
    assert files(tmp_path) == ["steps-000000002-000000003.json"]


def test_a_step_that_failed_leaves_the_profiler_stopped(tmp_path: Path) -> None:
    class Fails(Hook):
        def before_step(self, run: Run) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        FakeRun(tmp_path, [ProfilerHook(0, steps=1, every_steps=2), Fails()]).train(1)
    assert files(tmp_path) == []
    FakeRun(tmp_path, [ProfilerHook(0, steps=1, every_steps=2), Adds()]).train(1)
    assert files(tmp_path) == ["steps-000000001-000000001.json"]


@pytest.mark.parametrize("numbers", [(-1, 10, 20), (0, 0, 20), (0, 10, 10)])
def test_windows_that_make_no_sense_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="every_steps"):
        ProfilerHook(numbers[0], steps=numbers[1], every_steps=numbers[2])
