from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from monolith.core.config import load
from monolith.training.config import RunConfig
from monolith.training.config.report import print_config, report_json


def test_the_json_form_holds_the_source_of_values_and_the_overridden_ones(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("runtime:\n  seed: 1\nextra_fields_keys: [a, b]\n")
    loaded = load(RunConfig, command_line={"seed": "2"}, file=path)
    report = json.loads(json.dumps(report_json(loaded.report)))
    assert report["seed"] == {
        "value": 2,
        "section": "runtime",
        "from": "command line",
        "place": "--seed",
        "default": 0,
        "overrode": [{"value": 1, "from": "file", "place": f"{path}:2"}],
    }
    assert report["extra_fields_keys"]["value"] == ["a", "b"]
    assert report["clip_norm"]["from"] == "default"
    assert len(report) == len(loaded.report)


def test_the_table_has_a_line_for_every_field() -> None:
    loaded = load(
        RunConfig,
        command_line={"clip_norm": "5"},
        environment={"MONOLITH_CLIP_NORM": "7", "MONOLITH_MODEL_DIR": "runs/[a]"},
    )
    output = io.StringIO()
    print_config(loaded.report, Console(file=output, width=200))
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["clip_norm", "5.0", "--clip-norm", "7.0", "from", "MONOLITH_CLIP_NORM"] in lines
    assert ["model_dir", "runs/[a]", "MONOLITH_MODEL_DIR"] in lines
    assert ["seed", "0", "default"] in lines
    assert {line.field for line in loaded.report} <= {line[0] for line in lines if line}
