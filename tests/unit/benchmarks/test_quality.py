from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Shell
from monolith import data
from monolith.training.cluster.launch.local import Ended

CASES = ["distributed_gap_auc", "ml1m_deepfm_auc", "collision_gap_auc"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small world in the form of MovieLens: users like the movies whose number has their parity."""
    random = np.random.default_rng(0)
    users = [f"{user}::{'FM'[user % 2]}::{18 + user % 7}::{user % 5}::{48000 + user}" for user in range(1, 41)]
    movies = [f"{movie}::Movie {movie}::{'Drama|War' if movie % 2 else 'Comedy'}" for movie in range(1, 61)]
    ratings = []
    for user in range(1, 41):
        for when, movie in enumerate(random.permutation(np.arange(1, 61))[:40]):
            ratings.append(f"{user}::{movie}::{5 if (user + movie) % 2 else 2}::{1000 + when // 3}")
    for name, lines in (("users", users), ("movies", movies), ("ratings", ratings)):
        (tmp_path / f"{name}.dat").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_ratings_are_read_with_ids_that_count_from_0(folder: Path) -> None:
    from quality.movielens import load

    ratings = load(folder)
    assert len(ratings) == 1600
    assert ratings.counts == {"user": 40, "movie": 60, "gender": 2, "age": 7, "occupation": 5, "zip": 1, "genres": 3}
    assert all(getattr(ratings, name).max() < count for name, count in ratings.counts.items() if name != "genres")
    assert set(np.unique(ratings.label)) == {0, 1}


def test_the_last_fifth_of_each_user_is_split_off(folder: Path) -> None:
    from quality.movielens import load, split_last

    train, test = split_last(load(folder), 0.2)
    assert (len(train), len(test)) == (1280, 320)
    for user in range(40):
        assert (test.user == user).sum() == 8
        assert train.time_s[train.user == user].max() <= test.time_s[test.user == user].min()


def test_batches_hold_every_rating_once_and_each_movies_genres(folder: Path) -> None:
    from quality.batches import shuffled
    from quality.movielens import load

    ratings = load(folder)
    batches = list(shuffled(ratings, 600, seed=1, epoch=0))
    assert [batch.size for batch in batches] == [600, 600, 400]
    pairs = np.concatenate([np.stack([each.ids["user"].values, each.ids["movie"].values], 1) for each in batches])
    assert len(np.unique(pairs, axis=0)) == 1600
    batch = batches[0]
    for row in (0, 7, 599):
        first, last = batch.ids["genres"].offsets[row : row + 2]
        expected = ratings.genre_lists[batch.ids["movie"].values[row]]
        assert batch.ids["genres"].values[first:last].tolist() == expected.tolist()


def test_renamed_ids_change_their_feature_alone(folder: Path) -> None:
    from quality.batches import ordered
    from quality.movielens import load

    ratings = load(folder)
    (plain,), (renamed,) = (
        list(ordered(ratings, 2000, renamed=renamed)) for renamed in (None, {"movie": np.arange(60) // 2})
    )
    assert (renamed.ids["movie"].values == plain.ids["movie"].values // 2).all()
    assert (renamed.ids["user"].values == plain.ids["user"].values).all()
    assert (renamed.ids["genres"].values == plain.ids["genres"].values).all()


@pytest.mark.parametrize(("count", "share"), [(6040, 0.0773), (3883, 0.0286)])
def test_the_share_of_colliding_ids_is_met(count: int, share: float) -> None:
    from monolith.demo.experiments.colliding_ids import collide

    found = collide(count, share)
    _, sizes = np.unique(found.ids, return_counts=True)
    assert found.share == pytest.approx(sizes[sizes > 1].sum() / count)
    assert found.share == pytest.approx(share, abs=0.0005)
    assert (found.ids == collide(count, share).ids).all()


def test_both_models_learn_what_users_like(folder: Path) -> None:
    from quality.models import train_ours, train_peer
    from quality.movielens import load, split_last

    train, test = split_last(load(folder), 0.2)
    assert train_ours(train, test, seed=0, epochs=40, threads=1) > 0.9
    assert train_peer(train, test, seed=0, epochs=40, threads=1) > 0.9


def test_every_case_has_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from quality import ranking, results
    from quality.movielens import load
    from quality.workload import Sizes

    monkeypatch.setattr(ranking, "load", lambda: load(folder))
    sizes = Sizes(seeds=(0,), epochs=1, peer_epochs=1, threads=1, quick=True)
    out = StringIO()
    for result in ranking.ranking_cases(CASES, sizes):
        results.write(result, sizes, out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["case"] for line in lines] == CASES
    job, alone, collided = lines
    assert job["gap"] == job["ratio"] == pytest.approx(abs(job["ours"] - job["peer"]), abs=2e-3)
    assert (job["must"], job["ok"]) == (0.003, job["gap"] <= 0.003)
    assert alone["ratio"] == alone["ours"] == job["peer"]
    assert alone["must"] == 0.808
    assert collided["gap"] == pytest.approx(collided["ours"] - collided["peer"], abs=2e-3)


def test_data_that_cannot_be_had_is_said_for_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    from measure.results import PeerMissing
    from quality import ranking
    from quality.workload import QUICK

    def missing() -> None:
        raise PeerMissing("no network")

    monkeypatch.setattr(ranking, "load", missing)
    found = list(ranking.ranking_cases(CASES, QUICK))
    assert [(each.case, each.skipped) for each in found] == [(case, "no network") for case in CASES]


def test_parquet_files_hold_what_batches_hold(folder: Path, tmp_path: Path) -> None:
    from quality.batches import FEATURES, ordered
    from quality.job import write_parquet
    from quality.movielens import load
    from quality.ranker import Ranker

    ratings = load(folder)
    write_parquet(ratings, tmp_path / "all.parquet")
    (expected,) = ordered(ratings, len(ratings))
    (found,) = data.parquet(tmp_path / "all.parquet", schema=Ranker(1).declaration.schema()).batch(len(ratings))
    for name in FEATURES:
        assert (found.ids[name].values & ((1 << 48) - 1)).tolist() == expected.ids[name].values.tolist(), name
        assert found.ids[name].offsets.tolist() == expected.ids[name].offsets.tolist(), name
    assert found.label.tolist() == expected.label.tolist()
    assert found.event_time_s.tolist() == expected.event_time_s.tolist()


def test_a_job_that_dies_ends_the_benchmark_and_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quality import job
    from quality.movielens import load, split_last

    class DyingJob:
        def __init__(self, command: list[str], **options: Any) -> None:
            assert (options["num_ps"], options["num_workers"]) == (2, 2)

        def __enter__(self) -> DyingJob:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def wait(self, timeout_s: float) -> Ended:
            return Ended(name="worker 1", status=-9, last_lines=("a line", "out of memory"))

    monkeypatch.setattr(job, "LocalJob", DyingJob)
    monkeypatch.setattr(job, "SCRATCH", folder)
    train, test = split_last(load(folder), 0.2)
    with pytest.raises(RuntimeError, match=r"worker 1 was ended by SIGKILL; its last line: out of memory\na line"):
        job.train_job(train, test, seed=0, epochs=1, threads=1)


def test_files_that_cannot_be_written_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from measure.results import PeerMissing
    from quality import ranking
    from quality.movielens import load
    from quality.workload import QUICK

    def missing(*arguments: Any, **options: Any) -> float:
        raise PeerMissing("no pyarrow")

    monkeypatch.setattr(ranking, "load", lambda: load(folder))
    monkeypatch.setattr(ranking, "train_job", missing)
    (found,) = ranking.ranking_cases(["distributed_gap_auc"], QUICK)
    assert (found.case, found.skipped) == ("distributed_gap_auc", "no pyarrow")


def test_the_commands_of_the_readme_train_and_evaluate_csv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quality import commands
    from quality.movielens import load
    from quality.workload import QUICK

    monkeypatch.setattr(commands, "load", lambda: load(folder))
    monkeypatch.setattr(commands, "FORMATS", ("csv",))
    monkeypatch.setattr(commands, "run_command", lambda folder, *arguments: Shell(folder).run(*arguments))
    (result,) = commands.command_cases(["ml1m_commands_auc"], QUICK)
    assert result.ours == result.extra["csv_auc"]
    assert 0 < result.extra["csv_auc"] <= 1


def test_a_command_that_fails_ends_the_benchmark_with_its_error(tmp_path: Path) -> None:
    from quality import commands

    with pytest.raises(RuntimeError, match=r"monolith train --task deepfm .* failed: .*no file matches 'train.csv'"):
        commands.run_commands(tmp_path, "csv")
