from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from monolith.cli import bench
from monolith.core.errors import ConfigError

ECHO = """
import json, sys
print(json.dumps({"bench": "echo", "arguments": sys.argv[1:]}))
print("progress", file=sys.stderr)
sys.exit(3 if "--case" in sys.argv and "broken" in sys.argv else 0)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "bench_echo.py").write_text(ECHO)
    return tmp_path


def test_a_benchmark_is_found_by_name(checkout: Path) -> None:
    assert bench.find_program("echo", checkout) == checkout / "benchmarks" / "bench_echo.py"


def test_an_unknown_name_is_refused_with_those_there_are(checkout: Path) -> None:
    with pytest.raises(ConfigError, match=r"benchmark is 'dance', .*: echo"):
        bench.find_program("dance", checkout)


def test_results_go_to_standard_output_and_progress_to_standard_error(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status = bench.run_benchmark(bench.find_program("echo", checkout), ["--case", "a", "--quick"])
    shown = capfd.readouterr()
    assert status == 0
    assert shown.out == '{"bench": "echo", "arguments": ["--case", "a", "--quick"]}\n'
    assert shown.err == "progress\n"


def test_the_exit_status_is_that_of_the_benchmark(checkout: Path) -> None:
    assert bench.run_benchmark(bench.find_program("echo", checkout), ["--case", "broken"]) == 3


def test_outside_a_checkout_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("monolith.__file__", str(tmp_path / "lib" / "monolith" / "__init__.py"))
    with pytest.raises(ConfigError, match=r"source checkout.*make setup"):
        bench.checkout_root()


def test_options_reach_the_benchmark(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "checkout_root", lambda: checkout)
    with pytest.raises(typer.Exit) as ended:
        bench.bench("echo", case=["a"], threads=3, profile=checkout / "trace.json")
    assert ended.value.exit_code == 0
    arguments = json.loads(capfd.readouterr().out)["arguments"]
    assert arguments == ["--case", "a", "--profile", str(checkout / "trace.json"), "--threads", "3"]
