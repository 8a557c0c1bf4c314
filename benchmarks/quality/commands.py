"""The commands of the README on MovieLens-1M, with defaults: ``train`` and ``evaluate`` on Parquet and CSV files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from measure.results import PeerMissing, Result, skipped
from quality.movielens import ONE_VALUED, Ratings, load, split_last
from quality.results import progress
from quality.workload import TEST_SHARE, Sizes

__all__ = ["command_cases", "run_command", "run_commands", "write_files"]

FORMATS = ("parquet", "csv")
LIMIT_S = 1800.0


def command_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Train and evaluate once per file format; the lower AUC is the result."""
    (case,) = cases
    try:
        ratings = load()
        if sizes.users is not None:
            ratings = ratings.take(np.flatnonzero(ratings.user < sizes.users))
        with tempfile.TemporaryDirectory() as name:
            write_files(*split_last(ratings, TEST_SHARE), Path(name))
            aucs = {suffix: run_commands(Path(name), suffix) for suffix in FORMATS}
    except PeerMissing as error:
        yield skipped(case, error)
        return
    yield Result(
        case=case,
        ours=min(aucs.values()),
        peer=1.0,
        ratio=min(aucs.values()),
        unit="AUC",
        rounds=1,
        extra={
            "peer_name": "a perfect ranking, so that the ratio is the AUC itself",
            **{f"{suffix}_auc": auc for suffix, auc in aucs.items()},
        },
    )


def write_files(train: Ratings, test: Ratings, folder: Path) -> None:
    """Write both parts in both formats, a column per feature. Rows stay in the order of the data: by user.

    Raises:
        PeerMissing: pyarrow is missing.
    """
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise PeerMissing(f"files need pyarrow, which is missing ({error}); pip install pyarrow") from error
    for name, ratings in (("train", train), ("test", test)):
        columns = {column: getattr(ratings, column) for column in ONE_VALUED}
        columns |= {"time": ratings.time_s, "good": ratings.label.astype(np.int64)}
        lists = [ratings.genre_lists[movie] for movie in ratings.movie]
        texts = ["|".join(map(str, genres)) for genres in ratings.genre_lists]
        for suffix, genres in (("parquet", lists), ("csv", [texts[movie] for movie in ratings.movie])):
            table = pyarrow.table(columns | {"genres": genres})
            write = pyarrow.parquet.write_table if suffix == "parquet" else pyarrow.csv.write_csv
            write(table, folder / f"{name}.{suffix}")


def run_commands(folder: Path, suffix: str) -> float:
    """Train and evaluate with the defaults; return the AUC. Rows with an event time would keep their order.

    Raises:
        RuntimeError: A command failed; the text is the end of its output.
    """
    progress(f"monolith train and evaluate, {suffix}")
    run = ["--model-dir", f"run-{suffix}"]
    run_command(folder, "train", "--task", "deepfm", "--data", f"train.{suffix}", "--label-features", "good",
         "--exclude", "time", *run)  # fmt: skip
    lines = run_command(folder, "evaluate", *run, "--data", f"test.{suffix}", "--json").splitlines()
    auc: float = json.loads(lines[-1])["ctr/auc"]
    progress(f"AUC {auc:.4f}")
    return auc


def run_command(folder: Path, *arguments: str) -> str:
    """Run a ``monolith`` command in a folder; return its output.

    Raises:
        RuntimeError: The command failed; the text is the end of its output.
    """
    command = [sys.executable, "-m", "monolith", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"monolith {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return done.stdout
