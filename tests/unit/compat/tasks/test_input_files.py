from __future__ import annotations

import pytest

from monolith.compat.tasks import files_between, finished_files
from monolith.core.errors import ConfigError

FOLDER = "gs://bucket/records/"
FILES = [f"{FOLDER}{day}/{hour}/part" for day, hour in [("20200501", "00"), ("20200502", "00"), ("20200502", "01")]]


@pytest.mark.parametrize("folder", [FOLDER, FOLDER.rstrip("/")])
@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [
        ("20200502", "20200502", [1, 2]),
        ("20200501", "20200502", [0, 1, 2]),
        ("20200401", "20200505", [0, 1, 2]),
        (None, "20200501", [0]),
        ("20200502", None, [1, 2]),
        (None, None, [0, 1, 2]),
        ("20210101", None, []),
    ],
)
def test_both_dates_are_included(folder: str, start: str | None, end: str | None, kept: list[int]) -> None:
    assert files_between(FILES, folder, start, end) == [FILES[place] for place in kept]


@pytest.mark.parametrize(
    ("files", "start", "end", "message"),
    [
        (["in/tmp/part"], None, None, r"'in/tmp/part' has no date YYYYMMDD after 'in/'"),
        (["out/20200501/part"], None, None, "has no date"),
        (["in/20200501/part"], "2020-05-01", None, "start_date is '2020-05-01'; write YYYYMMDD"),
        (["in/20200501/part"], "20200502", "20200501", "start_date 20200502 is after end_date 20200501"),
    ],
)
def test_an_invalid_date_is_named(files: list[str], start: str | None, end: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        files_between(files, "in", start, end)


def test_a_host_has_finished_the_files_that_fit_into_its_rows() -> None:
    # Each host read 4 · 5 · 8 = 160 examples; host 0 has files of 100, 60, 10 and host 1 of 100, 70, 10.
    assert finished_files([100, 100, 60, 70, 10, 10], 2, steps=5, batch_per_replica=4) == [2, 1]


def test_a_file_behind_one_that_does_not_fit_is_not_finished() -> None:
    assert finished_files([100, 100, 1], 1, steps=1, batch_per_replica=15) == [1]


def test_nothing_is_finished_before_the_first_step_but_empty_files() -> None:
    assert finished_files([1, 1], 3, steps=0, batch_per_replica=4) == [0, 0, 0]
    assert finished_files([0, 1], 1, steps=0, batch_per_replica=4) == [1]
    assert finished_files([], 2, steps=7, batch_per_replica=4) == [0, 0]


def test_replicas_are_counted() -> None:
    assert finished_files([10, 10], 1, steps=5, batch_per_replica=2, replicas_per_host=1) == [1]


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"batch_per_replica": 0}, {"replicas_per_host": 0}, {"hosts": 0}])
def test_bad_numbers_are_named(wrong: dict[str, int]) -> None:
    settings = {"hosts": 1, "steps": 1, "batch_per_replica": 1} | wrong
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        finished_files([1], **settings)
