from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from monolith.core.config import Setting, changed_fields, load
from monolith.core.config_fields import config_fields
from monolith.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SaveConfig:
    every_steps: int | None = None
    """Steps between
    saves."""
    every_secs: float | None = 60.0
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"{type(self).__name__}.every_steps is {self.every_steps}; give at least 1")


@dataclass(frozen=True, kw_only=True)
class JobConfig(SaveConfig):
    """A job."""

    seed: int = 0
    rate: float = 0.1
    is_fast: bool = False
    kind: Literal["plain", "fancy", "none"] = "plain"
    names: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def test_each_layer_beats_the_lower_ones_and_the_report_shows_it(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "seed: 1\nrate: 0.5\nis_fast: true\nkind: fancy\n")
    loaded = load(
        JobConfig,
        code={"seed": 4},
        command_line={"seed": "3", "rate": "0.7"},
        environment={"MONOLITH_SEED": "2", "MONOLITH_RATE": "0.6", "MONOLITH_IS_FAST": "no"},
        file=path,
    )
    assert loaded.config == JobConfig(seed=4, rate=0.7, is_fast=False, kind="fancy")
    report = {line.field: line for line in loaded.report}
    assert list(report) == list(config_fields(JobConfig))
    assert (report["seed"].value, report["seed"].layer, report["seed"].place) == (4, "code", "code")
    assert report["seed"].overrode == (
        Setting(3, "command line", "--seed"),
        Setting(2, "environment", "MONOLITH_SEED"),
        Setting(1, "file", f"{path}:1"),
    )
    assert (report["rate"].layer, report["rate"].place) == ("command line", "--rate")
    assert (report["is_fast"].value, report["is_fast"].layer) == (False, "environment")
    assert (report["kind"].layer, report["kind"].place) == ("file", f"{path}:4")
    assert (report["names"].value, report["names"].layer, report["names"].overrode) == ((), "default", ())


def test_a_value_counts_because_it_was_given_even_if_it_is_the_default() -> None:
    loaded = load(JobConfig, code={"seed": 0}, environment={"MONOLITH_SEED": "9"})
    assert loaded.config.seed == 0


def test_with_nothing_given_all_is_default() -> None:
    loaded = load(JobConfig)
    assert loaded.config == JobConfig()
    assert {line.layer for line in loaded.report} == {"default"}


@pytest.mark.parametrize(
    "text",
    [
        "every_steps: 100\nseed: 3",
        "save: {every_steps: 100}\nseed: 3",
        "save.every_steps: 100\nseed: 3",
        "save:\n  every_steps: 100\njob:\n  seed: 3",
        "save: {every_steps: 100}\nseed: 3\njob:\n",
    ],
)
def test_fields_stand_at_the_top_or_in_their_section(tmp_path: Path, text: str) -> None:
    assert load(JobConfig, file=yaml_file(tmp_path, text)).config == JobConfig(every_steps=100, seed=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead: 1", r"job\.yaml:1 sets 'sead', which is not a field of JobConfig; did you mean 'seed'\?"),
        ("save: {sead: 1}", r"job\.yaml:1 sets 'sead'.* did you mean 'seed'"),
        ("save:\n  seed: 1", r"job\.yaml:2 sets 'seed' in section 'save'; it belongs into 'job'"),
        ("other.seed: 1", r"job\.yaml:1 sets 'seed' in section 'other'; it belongs into 'job'"),
        ("safe: {seed: 1}", r"job\.yaml:1 has the unknown section 'safe'; did you mean 'save'\?"),
        ("zzz: {seed: 1}", r"unknown section 'zzz'; there are job, save"),
        ("save: 5", r"job\.yaml:1: section 'save' is 5; put its fields below it"),
        ("seed: 1\njob: {seed: 2}", r"job\.yaml:2 sets 'seed', which .*job\.yaml:1 sets already; keep one"),
        ("seed: 1\njob.seed: 2", r"job\.yaml:2 sets 'seed', which .*job\.yaml:1 sets already; keep one"),
        ("seed: often", r"seed is 'often' in .*job\.yaml:1; give a whole number$"),
        ("seed: true", r"seed is True in .*job\.yaml:1; give a whole number$"),
        ("seed: 1.5", r"seed is 1\.5 in .*job\.yaml:1; give a whole number$"),
        ("seed:", r"seed is None in .*job\.yaml:1; give a whole number$"),
        ("is_fast: 2", r"is_fast is 2 in .*; give true or false$"),
        ("every_secs: soon", r"every_secs is 'soon' in .*; give a number or none$"),
        ("kind: fansy", r"kind is 'fansy' in .*; did you mean 'fancy'\?"),
        ("kind: 7", r"kind is 7 in .*; give one of plain, fancy, none$"),
        ("names: 7", r"names is 7 in .*; give a list$"),
        ("names: [1]", r"names is \[1\] in .*; give a list$"),
        ("options: 7", r"options is 7 in .*; give a mapping such as"),
        ("every_steps: 0", r"JobConfig\.every_steps is 0; give at least 1 \(every_steps from .*job\.yaml:1\)"),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(JobConfig, file=yaml_file(tmp_path, text))


def test_a_wrong_value_is_refused_even_where_it_is_overridden(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed is 'often'"):
        load(JobConfig, code={"seed": 1}, file=yaml_file(tmp_path, "seed: often"))


def test_a_number_that_yaml_takes_for_text_is_a_number(tmp_path: Path) -> None:
    assert load(JobConfig, file=yaml_file(tmp_path, "rate: 1e-3")).config.rate == 0.001


def test_a_word_of_a_file_is_not_taken_for_none(tmp_path: Path) -> None:
    config = load(JobConfig, file=yaml_file(tmp_path, "folder: none\nkind: none\nevery_secs: null")).config
    assert (config.folder, config.kind, config.every_secs) == ("none", "none", None)


@pytest.mark.parametrize("names", ["a, b,", "[a, b]", '["a", "b"]'])
def test_names_may_stand_between_commas_or_brackets(names: str) -> None:
    assert load(JobConfig, command_line={"names": names}).config.names == ("a", "b")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"every_secs": "none"}, JobConfig(every_secs=None)),
        ({"every_secs": ""}, JobConfig(every_secs=None)),
        ({"folder": "none"}, JobConfig(folder="none")),
        ({"options": "{a: 1}"}, JobConfig(options={"a": 1})),
        ({"options": '{"a": [1, 2]}'}, JobConfig(options={"a": [1, 2]})),
        ({"is_fast": True}, JobConfig(is_fast=True)),
        ({"is_fast": "yes"}, JobConfig(is_fast=True)),
    ],
)
def test_the_text_of_flags_is_converted(flags: dict[str, Any], expected: JobConfig) -> None:
    assert load(JobConfig, command_line=flags).config == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"seed": ""}, r"seed is '' in --seed; give a whole number"),
        ({"options": "{a: "}, r"options is '\{a: ' in --options; give a mapping"),
        ({"every_stepz": "1"}, r"--every-stepz sets 'every_stepz'.* did you mean 'every_steps'\?"),
        ({"every_steps": "-1"}, r"every_steps is -1; .* \(every_steps from --every-steps\)"),
    ],
)
def test_wrong_flags_are_refused_by_name(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(JobConfig, command_line=flags)


def test_code_may_give_paths_and_lists() -> None:
    config = load(JobConfig, code={"folder": Path("a"), "names": ["x"]}).config
    assert (config.folder, config.names) == (Path("a"), ("x",))


def test_a_wrong_value_of_code_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"seed is \[1\] in code; give a whole number"):
        load(JobConfig, code={"seed": [1]})


def test_variables_of_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"MONOLITH_METRIC_PREFIX": "x", "PATH": "/bin", "SEED": "4", "monolith_seed": "5", "MONOLITH_": "6"}
    with caplog.at_level(logging.WARNING):
        assert load(JobConfig, environment=environment).config == JobConfig()
    assert not caplog.records


def test_an_empty_variable_is_not_set() -> None:
    assert load(JobConfig, environment={"MONOLITH_SEED": "", "MONOLITH_EVERY_SECS": ""}).config == JobConfig()


def test_a_variable_that_is_almost_a_field_is_remarked_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(JobConfig, environment={"MONOLITH_EVERY_STEP": "4"})
    assert "did you mean MONOLITH_EVERY_STEPS? name=MONOLITH_EVERY_STEP" in caplog.text


def test_a_retired_field_is_refused_in_every_layer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    retired = {"speed": "use is_fast"}
    for text in ("speed: 1", "speed: {a: 1}", "save: {speed: 1}"):
        with pytest.raises(ConfigError, match=r"job\.yaml:1 sets 'speed', which is retired: use is_fast"):
            load(JobConfig, file=yaml_file(tmp_path, text), retired=retired)
    with pytest.raises(ConfigError, match="code sets 'speed', which is retired"):
        load(JobConfig, code={"speed": 1}, retired=retired)
    with caplog.at_level(logging.WARNING):
        load(JobConfig, environment={"MONOLITH_SPEED": "1"}, retired=retired)
    assert "use is_fast name=MONOLITH_SPEED" in caplog.text


def test_a_field_that_came_back_is_not_retired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    retired = {"seed": "never again"}
    with caplog.at_level(logging.WARNING):
        assert load(JobConfig, environment={"MONOLITH_SEED": "1"}, retired=retired).config.seed == 1
        assert load(JobConfig, file=yaml_file(tmp_path, "seed: 2"), retired=retired).config.seed == 2
    assert not caplog.records


@dataclass(frozen=True, kw_only=True)
class NeedyConfig:
    task: str


def test_a_field_without_a_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match="task is missing; give --task, MONOLITH_TASK or a file that has it"):
        load(NeedyConfig)
    assert load(NeedyConfig, environment={"MONOLITH_TASK": "x"}).config == NeedyConfig(task="x")


def test_a_type_other_than_a_dataclass_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a dataclass"):
        load(int)


def test_fields_know_their_section_and_their_help() -> None:
    fields = config_fields(JobConfig)
    assert (fields["every_steps"].section, fields["every_steps"].help) == ("save", "Steps between saves.")
    assert (fields["seed"].section, fields["seed"].help) == ("job", "")


def test_changed_fields_are_those_that_differ_from_their_defaults() -> None:
    assert changed_fields(JobConfig(seed=3, every_secs=None, options={})) == {"seed": 3, "every_secs": None}


LAYERS = ("code", "command line", "environment", "file")


@pytest.mark.parametrize("count", range(len(LAYERS) + 1))
def test_the_highest_layer_that_speaks_wins(tmp_path: Path, count: int) -> None:
    file = yaml_file(tmp_path, "seed: 4")
    for spoken in itertools.combinations(LAYERS, count):
        loaded = load(
            JobConfig,
            code={"seed": 1} if "code" in spoken else None,
            command_line={"seed": "2"} if "command line" in spoken else None,
            environment={"MONOLITH_SEED": "3"} if "environment" in spoken else None,
            file=file if "file" in spoken else None,
        )
        seed = next(line for line in loaded.report if line.field == "seed")
        assert loaded.config.seed == (LAYERS.index(spoken[0]) + 1 if spoken else 0)
        assert [seed.layer, *(lost.layer for lost in seed.overrode)] == (list(spoken) or ["default"])
