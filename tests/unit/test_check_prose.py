"""The prose check finds each phrase where it stands, and its baseline only falls."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_prose", ROOT / "scripts" / "check_prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_prose"] = module
    spec.loader.exec_module(module)
    return module


check_prose = load_script()


def names(text: str) -> list[str]:
    return [pattern.name for pattern in check_prose.PATTERNS if pattern.regex.search(text)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "scripts").mkdir()
    return tmp_path


def run(repository: Path, *arguments: str) -> int:
    status = check_prose.main(["--root", str(repository), *arguments])
    assert isinstance(status, int)
    return status


def write(repository: Path, name: str, text: str) -> Path:
    path = repository / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def lines(repository: Path, path: Path) -> list[tuple[int, str]]:
    return [(each.line, each.pattern.name) for each in check_prose.findings(repository, path)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Keep what the file holds.", "what"),
        ("Who dies leaves its files.", "who"),
        ("The lock is freed, and whoever waits takes it.", "who"),
        ("Files are shared. One that is open stays.", "one, others"),
        ("The row that nobody wrote.", "somebody"),
        ("The manifest says so.", "says"),
        ("'x' is no framing", "is no"),
        ("A name that is none.", "is none"),
        ("The run goes\non.", "go on"),
        ("It has a thread of its own.", "of its own"),
        ("Nothing here knows sockets.", "nothing knows"),
        ("The caller is told.", "told"),
        ("It is built anew.", "anew"),
        ("All at once.", "at once"),
        ("The lock is held; let it go.", "let go"),
        ("Workers stand still.", "stand still"),
        ("The push was taken back.", "take back"),
        ("No sign of life.", "sign of life"),
        ("The foreseen cut.", "foreseen"),
        ("The file cannot be believed.", "believed"),
        ("All but for the last.", "but for"),
        ("The rows were learnt.", "learnt"),
        ("The figures of a server.", "figures"),
        ("A server welcomes no stranger.", "welcome"),
    ],
)
def test_each_pattern_finds_its_phrase(text: str, name: str) -> None:
    assert name in names(text)


@pytest.mark.parametrize(
    "text",
    [
        "What does the server do?",
        "The user who reads the page.",
        "The value is None.",
        "There is no snapshot.",
        "The run is no longer alive.",
        "None of the rows is older.",
        "The table whose rows expire.",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert names(text) == []


def test_every_pattern_has_hints_that_its_phrases_contain() -> None:
    phrases = {
        "one, others": "Others have it.",
        "somebody": "Someone",
        "nothing knows": "It knows neither.",
        "welcome": "stranger",
        "go on": "went on",
    }
    for pattern in check_prose.PATTERNS:
        text = phrases.get(pattern.name, pattern.name)
        assert any(hint in f" {text.lower()} " for hint in pattern.hints), pattern.name


def test_python_is_read_in_docstrings_comments_and_messages(repository: Path) -> None:
    path = write(
        repository,
        "src/a.py",
        '"""Holds what is read."""\n\nwhat = 1\n# Begins\n# anew here.\n'
        'raise ValueError(f"the file {what} "\n    "says so")\nkey = "what"\n',
    )
    assert lines(repository, path) == [(1, "what"), (5, "anew"), (7, "says")]


def test_a_phrase_may_cross_the_end_of_a_line(repository: Path) -> None:
    path = write(repository, "src/a.py", "# The run goes\n# on.\nraise ValueError('it is '\n  'none')\n")
    assert lines(repository, path) == [(2, "go on"), (4, "is none")]


def test_strings_of_tests_are_data_and_their_names_are_prose(repository: Path) -> None:
    path = write(repository, "tests/test_a.py", "def test_who_is_late() -> None:\n    assert f() == 'what it says'\n")
    assert lines(repository, path) == [(1, "who")]


def test_cpp_is_read_in_comments(repository: Path) -> None:
    path = write(
        repository,
        "cpp/a.h",
        '// Opens the file\n// anew.\nauto text = "// what it says";  // at once\n/* of its\n own */\n',
    )
    assert lines(repository, path) == [(2, "anew"), (3, "at once"), (5, "of its own")]


def test_markdown_is_read_outside_code_and_in_the_comments_of_python(repository: Path) -> None:
    path = write(
        repository,
        "README.md",
        "Rows that `what` names.\n\n"
        "```python\nx = 'what it says'  # begins anew\n```\n\n```\nwhat\n```\n\nIt goes on.\n",
    )
    assert lines(repository, path) == [(4, "anew"), (11, "go on")]


def test_a_file_above_its_baseline_fails_with_its_lines(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(repository, "src/a.py", "# Built anew.\n")
    assert run(repository, "--update") == 0
    assert run(repository) == 0
    write(repository, "src/a.py", "# Built anew.\n# Whatever.\n")
    assert run(repository) == 1
    assert "src/a.py:2: 'Whatever" in capsys.readouterr().err


def test_a_file_without_baseline_may_have_no_finding(repository: Path) -> None:
    write(repository, "scripts/prose_baseline.json", "{}")
    write(repository, "src/a.py", "# Built again.\n")
    assert run(repository) == 0
    write(repository, "src/a.py", "# Built anew.\n")
    assert run(repository) == 1


def test_an_update_lowers_the_baseline_and_never_raises_it(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = write(repository, "scripts/prose_baseline.json", '{"src/a.py": 2}')
    write(repository, "src/a.py", "# Built anew.\n")
    assert run(repository) == 0
    assert "--update" in capsys.readouterr().out
    assert run(repository, "--update") == 0
    assert json.loads(baseline.read_text()) == {"src/a.py": 1}
    write(repository, "src/a.py", "# Built anew, at once.\n")
    assert run(repository, "--update") == 1
    assert json.loads(baseline.read_text()) == {"src/a.py": 1}


def test_a_renamed_file_takes_the_number_of_the_old_one(repository: Path) -> None:
    baseline = write(repository, "scripts/prose_baseline.json", '{"src/a.py": 1}')
    write(repository, "src/b.py", "# Built anew.\n")
    assert run(repository) == 1
    assert run(repository, "--update") == 0
    assert json.loads(baseline.read_text()) == {"src/b.py": 1}
    write(repository, "src/c.py", "# Built anew.\n")
    assert run(repository, "--update") == 1


def test_counts_are_printed_per_pattern_and_per_file(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(repository, "src/a.py", "# Built anew, and anew.\n")
    assert run(repository, "--count") == 0
    assert capsys.readouterr().out.split() == ["2", "anew", "in", "1", "files", "2", "in", "all", "2", "src/a.py"]


def test_the_repository_is_within_its_baseline() -> None:
    assert check_prose.main([]) == 0
