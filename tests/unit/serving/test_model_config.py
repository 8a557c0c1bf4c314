"""Model configs: the text of TensorFlow Serving, policies, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError
from monolith.serving import ModelConfig, VersionPolicy
from monolith.serving.versions.model_config import found_versions, parse_model_configs

TEXT = """
model_config_list {
  config {
    name: "clicks:entry" base_path: "/models/clicks" model_platform: "tensorflow"
    model_version_policy { specific { versions: 7 versions: 3 } }
    version_labels { key: "stable" value: 3 }
    version_labels { key: "canary" value: 7 }
    logging_config { sampling_config { sampling_rate: 0.5 } log_collector_config { filename_prefix: "/logs/c" } }
  }
  config { name: "a" base_path: "/models/a" model_version_policy { latest { num_versions: 2 } } }
  config { name: "b" base_path: "/models/b" model_version_policy { all {} } }
  config { name: "c" base_path: "/models/c" model_version_policy { latest_once {} } }
  config { name: "d" base_path: "/models/d" }
}
"""


def test_a_config_file_names_models_and_versions() -> None:
    clicks, a, b, c, d = parse_model_configs(TEXT, "models.conf")
    assert clicks == ModelConfig(
        name="clicks:entry",
        base_path=Path("/models/clicks"),
        policy=VersionPolicy(kind="specific", versions=(3, 7)),
        labels={"stable": 3, "canary": 7},
        log_rate=0.5,
        log_prefix="/logs/c",
    )
    assert [each.policy for each in (a, b, c, d)] == [
        VersionPolicy(count=2),
        VersionPolicy(kind="all"),
        VersionPolicy(kind="latest_once"),
        VersionPolicy(),
    ]
    assert parse_model_configs("model_config_list {}", "empty") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model_config_list { config { nam: 'x' } }", "models.conf.*nam"),
        ("hello", "model_config_list"),
        ("model_config_list { config { base_path: '/x' } }", "name is empty"),
        ("model_config_list { config { name: 'x' } }", "base_path of model 'x'"),
        (
            "model_config_list { config { name: 'x' base_path: '/x' } config { name: 'x' base_path: '/y' } }",
            "several entries for 'x'",
        ),
        (
            "model_config_list { config { name: 'x' base_path: '/x' model_version_policy { specific {} } } }",
            "has no versions",
        ),
        (
            "model_config_list { config { name: 'x' base_path: '/x' model_version_policy { specific { versions: -1 } }"
            " } }",
            "expected numbers from 0",
        ),
        (
            "model_config_list { config { name: 'x' base_path: '/x' logging_config { sampling_config { "
            "sampling_rate: 2 } } } }",
            "is 2.0, expected 0 to 1",
        ),
        (
            "model_config_list { config { name: 'x' base_path: '/x' version_labels { key: '' value: 1 } } }",
            "label ''",
        ),
        ("custom_model_config { type_url: 'x' }", "custom_model_config"),
    ],
)
def test_a_config_that_cannot_be_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_model_configs(text, "models.conf")


@given(st.lists(st.integers(0, 50), unique=True), st.integers(1, 5), st.lists(st.integers(0, 50), min_size=1))
def test_policies_choose_among_the_versions_on_disk(found: list[int], count: int, named: list[int]) -> None:
    assert VersionPolicy(kind="all").choose(found) == tuple(sorted(found))
    assert VersionPolicy(count=count).choose(found) == tuple(sorted(found))[-count:]
    assert set(VersionPolicy(kind="specific", versions=named).choose(found)) == set(named) & set(found)


def test_versions_are_folders_with_a_number_for_a_name(tmp_path: Path) -> None:
    for name in ("1", "000012", "temp-3", "4.tmp", "-5", "²", "99999999999999999999"):
        (tmp_path / name).mkdir()
    (tmp_path / "6").write_text("a file")
    assert found_versions(tmp_path) == {1: tmp_path / "1", 12: tmp_path / "000012"}
    assert found_versions(tmp_path / "absent") == {}
