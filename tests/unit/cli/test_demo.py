"""``monolith demo``: a table after a quarter of the time, and one at the end."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.cli.demo import _show
from monolith.demo import demo
from monolith.demo.demo import DemoOptions, DemoResult


def result(seconds: float) -> DemoResult:
    numbers: dict[str, Any] = {each.name: 1.0 for each in dataclasses.fields(DemoResult)}
    return DemoResult(**{**numbers, "seconds": seconds, "stages_s": {"join": 0.5}})


class ShortDemo:
    """Yields results without a loop."""

    def __init__(self, options: DemoOptions, progress: Callable[[str], None]) -> None:
        self._seconds = options.seconds

    @contextmanager
    def run(
        self, on_dashboard: Callable[[str], None], on_quarter: Callable[[DemoResult], None]
    ) -> Iterator[DemoResult]:
        on_quarter(result(self._seconds / 4))
        yield result(self._seconds)


@pytest.mark.parametrize(("seconds", "tables"), [("60", ["15", "60"]), ("12", ["12"])])
def test_a_long_demonstration_shows_a_table_after_a_quarter_too(
    monkeypatch: pytest.MonkeyPatch, seconds: str, tables: list[str]
) -> None:
    monkeypatch.setattr(demo, "Demo", ShortDemo)
    shown = CliRunner().invoke(program.app, ["demo", "--seconds", seconds]).stdout
    lines = [line.split()[-2] for line in shown.splitlines() if "The real-time loop in" in line]
    assert lines == tables
    answer = CliRunner().invoke(program.app, ["demo", "--seconds", seconds, "--json"]).stdout
    assert json.loads(answer)["seconds"] == float(seconds)


def test_a_result_without_a_dashboard_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    _show(dataclasses.replace(result(60), first_chart_s=math.nan), as_json=True)
    report = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (report["first_chart_s"], report["seconds"]) == (None, 60)
