"""Ranks movies with a DeepFM on CSV ratings in the shape of MovieLens: will this user give four stars or more?

Run it with ``python examples/03_movie_ranking.py``: the ratings are generated. With ``ml-latest-small`` from
https://grouplens.org/datasets/movielens unpacked, pass its folder as the argument.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np

import monolith as mt
from monolith.demo.world import World

GENRES = ["Action", "Comedy", "Drama", "Horror", "Romance", "Sci-Fi", "Thriller", "War"]


def write_ratings(folder: Path) -> None:
    """Write ``movies.csv`` and ``ratings.csv``; users rate items higher that they would rather click."""
    views = World(users=600, items=300, categories=28, seed=7).clicks(40_000)
    stars = np.clip(np.round(1.5 + 5 * views.click_probability + 0.5 * views.click), 1, 5)
    with (folder / "movies.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["movieId", "title", "genres"])
        for movie, category in dict(zip(views.item_id.tolist(), views.category.tolist(), strict=True)).items():
            out.writerow([movie, f"Movie {movie}", f"{GENRES[category % 8]}|{GENRES[(category // 8 + category) % 8]}"])
    with (folder / "ratings.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["userId", "movieId", "rating", "timestamp"])
        out.writerows(zip(views.user_id, views.item_id, stars, views.event_time_s, strict=True))


def read_ratings(folder: Path) -> tuple[dict[str, list], dict[str, list]]:
    """Return the columns of the training rows and, the last fifth of each user's ratings, of the test rows."""
    with (folder / "movies.csv").open() as file:
        genres = {row["movieId"]: row["genres"].split("|") for row in csv.DictReader(file)}
    with (folder / "ratings.csv").open() as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["timestamp"]))
    total = dict.fromkeys((row["userId"] for row in rows), 0)
    for row in rows:
        total[row["userId"]] += 1
    seen = dict.fromkeys(total, 0)
    parts: tuple[dict[str, list], dict[str, list]] = ({}, {})
    for row in rows:
        user = row["userId"]
        seen[user] += 1
        columns = {
            "user_id": int(user),
            "movie_id": int(row["movieId"]),
            "genres": genres[row["movieId"]],
            "__LABEL__": float(float(row["rating"]) >= 4),
            "__REQ_TIME__": int(row["timestamp"]),
        }
        for name, value in columns.items():
            parts[seen[user] > 0.8 * total[user]].setdefault(name, []).append(value)
    return parts


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(name)
        if len(sys.argv) == 1:
            write_ratings(folder)
        train, test = read_ratings(folder)
    print(f"{len(train['user_id']):,} ratings to learn from, {len(test['user_id']):,} to be tested on")

    model = mt.models.DeepFM(sparse={"user_id": 1, "movie_id": 2, "genres": 3}, dim=8, hidden=[32])
    est = mt.Estimator(model, mt.RunConfig(dense_learning_rate=0.005))
    for epoch in range(3):
        est.train(mt.data.frame(train).shuffle(20_000, seed=epoch).batch(256))
        found = est.evaluate(mt.data.frame(test).batch(4096))
        print(f"epoch {epoch + 1}: AUC {found['ctr/auc']:.4f}, loss {found['loss']:.4f}, step {est.step}")

    user = {name: values[-5:] for name, values in test.items()}
    chances = next(est.predict(mt.data.frame(user).batch(5)))["ctr"]
    print(
        "chance of four stars:", ", ".join(f"movie {m} {c:.2f}" for m, c in zip(user["movie_id"], chances, strict=True))
    )
    print("Next: the same features with attention over a history, examples/04_din_sequences.py")


if __name__ == "__main__":
    main()
