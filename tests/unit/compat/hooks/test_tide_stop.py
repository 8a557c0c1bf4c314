from __future__ import annotations

from pathlib import Path

from fake_run import FakeRun
from monolith.testing import FakeClock
from monolith.training.hooks import Hook, Run, TideStopHook


def test_a_run_ends_when_its_hours_are_over(tmp_path: Path) -> None:
    clock = FakeClock(now_s=1000.0)

    class Seconds(Hook):
        def before_step(self, run: Run) -> None:
            clock.advance_s(10)

    looks: list[float] = []

    def is_available(now_s: float) -> bool:
        looks.append(now_s)
        return now_s < 1100

    run = FakeRun(tmp_path, [Seconds(), TideStopHook(is_available)], clock=clock)
    run.train(1000)
    assert looks == [1010, 1070, 1130]
    assert run.step == 13
    assert run.stop_reasons == ["the run is outside its window of the day"]
