"""The examples run, are short, and do what they say; so does the code in pages."""

from __future__ import annotations

import doctest
import functools
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
PAGES = [
    "docs/guide/tables.md",
    "docs/guide/torch_modules.md",
    "docs/guide/data.md",
    "docs/guide/event_log.md",
    "docs/guide/training.md",
    "docs/guide/models.md",
    "docs/guide/tasks.md",
    "docs/guide/metrics.md",
    "docs/guide/checkpoints.md",
    "docs/guide/export.md",
    "docs/guide/freshness.md",
    "docs/guide/joiner.md",
    "docs/guide/configuration.md",
    "docs/guide/synchronous.md",
    "docs/guide/distributed.md",
    "docs/guide/serving.md",
    "docs/reference/hooks.md",
    "docs/reference/optimizers.md",
    "docs/reference/transforms.md",
]


@functools.cache
def run(name: str) -> str:
    """Run an example in an empty folder, once, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers_after(phrase: str, out: str) -> list[float]:
    return [float(number) for number in re.findall(rf"{phrase} (\d\.\d+)", out)]


def run_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one line of a page, ``VARIABLE=value monolith ...``, in this process: torch is slow to import."""
    words = shlex.split(command, comments=True)
    if not words:
        return
    begin = words.index("monolith")
    with monkeypatch.context() as context:
        for variable in words[:begin]:
            context.setenv(*variable.split("=", 1))
        done = CliRunner().invoke(program.app, words[begin + 1 :])
    assert done.exit_code == 0, f"{command}: {done.exception or done.output}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_is_short_and_ends_with_what_to_try_next(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 100
    assert "Next: " in run(example.name).splitlines()[-1]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_names_files_that_are_there(example: Path) -> None:
    for name in re.findall(r"(?:examples|docs)/[\w/.]+\.(?:py|md)", example.read_text()):
        assert (ROOT / name).is_file(), name


def test_the_first_example_learns_and_shows_the_life_of_a_row() -> None:
    out = run("01_local_table.py")
    losses = [float(loss) for loss in re.findall(r"-> (\d\.\d+)", out)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 < 0.693
    for phrase in ("is present", "below threshold", "expired after 30 days", "the same rows"):
        assert phrase in out


def test_movie_ranking_gets_better_with_every_epoch() -> None:
    found = numbers_after("AUC", run("03_movie_ranking.py"))
    assert found == sorted(found)
    assert len(found) == 3
    assert found[-1] > 0.8


def test_movie_ranking_reads_a_folder_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n1,Heat (1995),Action|Crime\n2,Toys,Comedy\n")
    rows = [f"{user},{movie},{4.5 if movie == 1 else 2.0},{user * 10 + movie}" for user in range(9) for movie in (1, 2)]
    rows += [f"{user},1,{2.0 if user % 2 else 5.0},{1000 + user}" for user in range(9)]
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(rows) + "\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "03_movie_ranking.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "18 ratings to learn from, 9 to be tested on" in done.stdout


def test_din_is_better_with_the_history_than_without_it() -> None:
    (without, with_history, best) = re.findall(r"0\.\d{4}", run("04_din_sequences.py"))
    assert 0.6 < float(without) < float(with_history) < float(best)


def test_mmoe_learns_both_labels() -> None:
    out = run("05_mmoe_two_tasks.py")
    reached, best = numbers_after("(?:click|like)  ? ?AUC", out), numbers_after("of at most", out)
    assert len(reached) == 4
    assert all(0.6 < auc < most for auc, most in zip(reached[-2:], best, strict=True))


def test_stream_training_continues_after_history_and_restart() -> None:
    out = run("11_stream_training.py")
    assert "then 2,000 live events: step 40" in out
    assert "none twice: step 60" in out


def test_the_local_predictor_shows_a_published_cut() -> None:
    assert "these are the same as the scores of the trainer" in run("12_local_predictor.py")


def test_the_client_gets_equal_scores_and_a_clear_error() -> None:
    out = run("13_grpc_client.py")
    assert "features and records give the same scores for 2 rows" in out
    assert "refused: " in out
    assert "prize" in out


def test_stock_prediction_finds_much_of_what_there_is_to_find() -> None:
    out = run("06_stock_prediction.py")
    (up, _), (best,) = numbers_after("AUC", out), numbers_after("it would be", out)
    assert 0.6 < up < best
    picked, average = (
        float(number) for number in re.findall(r"(-?\d+\.\d) basis points a bar, all (-?\d+\.\d)", out)[0]
    )
    assert picked > average + 5


def test_a_resumed_run_has_the_same_bytes() -> None:
    out = run("07_resume.py")
    assert out.count("the same, bit for bit") == 2
    assert "DIFFERENT" not in out


def test_a_custom_layer_passes_its_gradient_check_and_learns() -> None:
    out = run("08_custom_layer.py")
    assert "differences: True" in out
    (auc,), (best,) = numbers_after("AUC", out), numbers_after("of at most", out)
    assert 0.65 < auc < best


def test_servers_change_nothing_of_the_model() -> None:
    out = run("09_distributed.py")
    assert "500 rows of users the same as without servers, bit for bit" in out
    assert len(set(re.findall(r"auc (\d\.\d+)", out))) == 1


def test_a_served_model_scores_as_its_estimator_does() -> None:
    out = run("10_export_and_serve.py")
    assert out.count(", the same as the estimator") == 2
    assert len(set(re.findall(r"(?:gRPC|REST): ([\d., ]+), the", out))) == 1


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_in_order_and_shows_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "setup_logging", lambda level: None)
    text = (ROOT / page).read_text()
    blocks = list(re.finditer(r"^```(python|pycon|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    runner = doctest.DocTestRunner()
    for block in blocks:
        kind, code = block.groups()
        line = text.count("\n", 0, block.start(2))
        if kind == "python":
            exec(compile("\n" * line + code, str(ROOT / page), "exec"), names)
        elif kind == "sh":
            for command in code.replace("\\\n", " ").splitlines():
                run_command(command, monkeypatch)
        else:
            examples = doctest.DocTestParser().get_doctest(code, names, page, page, line)
            failed, _ = runner.run(examples, clear_globs=False)
            names = examples.globs  # a copy, with what the block has defined
            assert failed == 0, f"{page}, from line {line + 1}: the report is in the captured output"
