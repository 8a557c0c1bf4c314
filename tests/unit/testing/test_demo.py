import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.cli.main import app
from monolith.core.errors import ConfigError
from monolith.testing.demo import Demo


def test_the_demonstration_learns_and_says_how_near_it_came(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--folder", str(tmp_path), "--clicks", "30000", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert 0.55 < result["auc"] < result["best_auc"]
    assert 0.5 < result["calibration"] < 2
    assert result["ids"] > 1000
    assert (Path(result["checkpoint"]) / "manifest.json").is_file()
    assert result["checkpoint_bytes"] > 0


def test_too_small_a_demonstration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clicks is 10; give at least 1,000"):
        Demo(tmp_path, clicks=10)
