from __future__ import annotations

from pathlib import Path

import pytest

from monolith.core.config_file import parse_value, read_config_file
from monolith.core.errors import ConfigError


def written(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_entries_know_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "# a job\nseed: 7\n\ncheckpoint:\n  save_checkpoints_steps: 100\n")
    seed, checkpoint = read_config_file(path)
    assert (seed.key, seed.value, seed.place, seed.entries) == ("seed", 7, f"{path}:2", None)
    assert checkpoint.value == {"save_checkpoints_steps": 100}
    assert checkpoint.entries is not None
    assert [(below.key, below.value, below.place) for below in checkpoint.entries] == [
        ("save_checkpoints_steps", 100, f"{path}:5")
    ]


def test_json_is_read_with_tabs_and_numbers_with_exponents(tmp_path: Path) -> None:
    path = written(tmp_path, '{\n\t"rate": 1e-3,\n\t"runtime": {"seed": 7}\n}', "job.json")
    rate, runtime = read_config_file(path)
    assert (rate.value, rate.place) == (0.001, str(path))
    assert runtime.entries is not None
    assert runtime.entries[0].value == 7


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
    assert [entry.key for entry in read_config_file(written(tmp_path, text))] == []


def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "seed: 1\nthreads: 2\nseed: 3\n")
    with pytest.raises(ConfigError, match=r"job\.yaml:3 sets 'seed', which .*job\.yaml:1 sets already"):
        read_config_file(path)


def test_a_key_that_stands_twice_in_a_section_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "runtime:\n  seed: 1\n  seed: 2\n")
    with pytest.raises(ConfigError, match=r"job\.yaml:3 sets 'seed'"):
        read_config_file(path)


def test_a_json_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '{"runtime": {"seed": 1, "seed": 2}}', "job.json")
    with pytest.raises(ConfigError, match=r"job\.json sets 'seed' twice"):
        read_config_file(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("job.yaml", "seed: [1", "is not YAML"),
        ("job.yaml", "seed: 1\n---\nseed: 2\n", "is not YAML"),
        ("job.yaml", "when: 2024-13-45\n", "is not YAML"),
        ("job.yaml", "seed: !!python/object:os.system {}\n", "is not YAML"),
        ("job.yaml", "a: " + "[" * 400, "is not YAML"),
        ("job.yaml", "- 1\n- 2\n", "holds no settings; write one 'key: value' per line"),
        ("job.yaml", "[a, b]: 1\n", r"job\.yaml:1 has a key that is not a name"),
        ("job.json", "{", "is not JSON"),
        ("job.json", "[1]", "holds no settings; write an object"),
        ("job.json", "[" * 100_000, "is not JSON"),
    ],
)
def test_an_invalid_file_is_refused_in_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_config_file(written(tmp_path, text, name))
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["job.yaml", "job.json"])
def test_bytes_other_than_text_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\xfa\x00\x80")
    with pytest.raises(ConfigError, match=name):
        read_config_file(path)


def test_a_file_that_is_not_there_is_an_os_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"absent\.yaml"):
        read_config_file(tmp_path / "absent.yaml")


def test_text_that_spells_no_value_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="expected the node content"):
        parse_value("{a: ")
