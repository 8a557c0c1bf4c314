"""Numbers that are not finite are refused by name."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.core.errors import ConfigError

SIZE = ["size", "--dim", "16", "--events-per-s", "1e5", "--ids-per-event", "30"]
JOIN = ["join", "--input", "log://absent/in", "--output", "log://absent/out", "--state", "absent"]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (SIZE, "--rows"),
        (JOIN, "--window-s"),
        (JOIN, "--horizon-s"),
        (JOIN, "--orphan-hold-s"),
        (JOIN, "--future-s"),
        (["experiment", "sync-interval"], "--hours"),
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(command: list[str], option: str, number: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is {number}, expected a finite number"):
        CliRunner().invoke(program.app, [*command, option, number], catch_exceptions=False)


def test_a_collision_rate_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ConfigError, match="--factor is inf, expected a finite number"):
        CliRunner().invoke(program.app, ["experiment", "collisions", "--factor", "inf"], catch_exceptions=False)


@pytest.mark.parametrize("intervals", ["nan", "60,inf", "-1"])
def test_intervals_that_are_not_finite_are_wrong_usage(intervals: str) -> None:
    result = CliRunner().invoke(program.app, ["experiment", "sync-interval", "--intervals", intervals])
    assert result.exit_code == 2
    assert "finite numbers" in " ".join(result.output.split())
