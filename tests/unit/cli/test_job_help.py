"""``--help`` of train, evaluate and predict: common options on two screens; ``--help-all`` lists every used option."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from monolith.cli._job_help import OF_EVALUATION, OF_TRAINING, TRAINING_ONLY
from monolith.cli.main import app
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.config.options import config_options

_TWO_SCREENS = 90
_SPECS = {spec.field: spec for spec in config_options(ClusterJobConfig)}


def _show(*arguments: str, columns: int = 80) -> str:
    done = CliRunner(env={"COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def _has(text: str, flag: str) -> bool:
    return re.search(rf"{flag}\s", text) is not None


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_the_short_help_is_task_data_and_run_on_two_screens(command: str) -> None:
    text = _show(command, "--help")
    assert re.findall(r"─ (\w+) options ─", text) == ["Task", "Data", "Run"]
    assert len(text.splitlines()) <= _TWO_SCREENS
    assert "--help-all lists every option" in text
    for name in OF_TRAINING if command == "train" else OF_EVALUATION:
        assert _has(text, _SPECS[name].flag), name


def test_the_full_help_of_train_lists_every_option_with_task_data_and_run_first() -> None:
    text = _show("train", "--task", "deepfm", "--help-all", columns=110)
    assert re.findall(r"─ (\w+) options ─", text)[:3] == ["Task", "Data", "Run"]
    for spec in _SPECS.values():
        assert _has(text, spec.flag), spec.flag


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_evaluate_and_predict_list_only_options_that_they_use(command: str) -> None:
    text = _show(command, "--help-all")
    for name in TRAINING_ONLY:
        if name.endswith(" options"):
            assert name not in text
        else:
            assert not _has(text, _SPECS[name].flag), name
    assert _has(text, "--checkpoint")
    assert _has(text, "--kafka-start")


def test_a_negated_switch_is_described_as_one() -> None:
    text = " ".join(re.sub(r"[│╭╰─╮╯]", " ", _show("train", "--help")).split())
    assert "--no-resume-data Turn off (on by default): Resume at the" in text
