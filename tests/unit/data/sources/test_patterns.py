from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from monolith.core import storage
from monolith.core.errors import ConfigError
from monolith.data.sources.patterns import date_patterns, expand, expand_template, take_shard


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("part-2.pb", "part-10.pb", "part-1.pb", "deep/a/x.pb", "deep/y.pb", "odd[1].pb", ".hidden.pb", "a,b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_patterns_keep_their_order_and_files_are_sorted_within_each(folder: Path) -> None:
    assert expand("part-2.pb, part-*.pb") == ["part-2.pb", "part-1.pb", "part-10.pb"]
    assert expand(["deep/**/*.pb", "part-1.pb"]) == ["deep/a/x.pb", "deep/y.pb", "part-1.pb"]
    assert expand("part-1.pb,") == ["part-1.pb"]


def test_a_file_comes_once_however_it_is_spelled(folder: Path) -> None:
    assert expand(["./part-1.pb", "part-1.pb", str(folder / "part-1.pb"), "deep/../part-1.pb"]) == ["./part-1.pb"]


def test_names_with_special_characters_are_taken_as_they_stand(folder: Path) -> None:
    assert expand("odd[1].pb") == ["odd[1].pb"]
    assert expand(["a,b"]) == ["a,b"]
    assert expand(folder / "a,b") == [str(folder / "a,b")]
    assert "./.hidden.pb" not in expand("./*.pb")


def test_a_file_list_has_one_path_or_glob_per_line(folder: Path) -> None:
    (folder / "list.txt").write_text("# the parts\npart-2.pb\n\n  part-1*.pb  \n")
    assert expand("@list.txt, deep/y.pb") == ["part-2.pb", "part-1.pb", "part-10.pb", "deep/y.pb"]
    (folder / "bad.txt").write_text("part-1.pb\nnothing-*\n")
    with pytest.raises(ConfigError, match=r"bad.txt, line 2: no file matches 'nothing-\*'"):
        expand("@bad.txt")
    (folder / "nested.txt").write_text("@list.txt\n")
    with pytest.raises(ConfigError, match=r"nested.txt, line 1: '@list.txt' is another file list"):
        expand("@nested.txt")
    with pytest.raises(ConfigError, match=r"the file list 'missing.txt' cannot be read"):
        expand("@missing.txt")


def test_a_pattern_that_matches_nothing_is_named(folder: Path) -> None:
    for missing in ("nothing.pb", "none-*.pb", "deep/none/*.pb"):
        with pytest.raises(ConfigError, match="no file matches '" + missing.replace("*", r"\*")):
            expand(["part-1.pb", missing])
    with pytest.raises(ConfigError, match="'deep' is a folder; write 'deep/\\*'"):
        expand("deep")
    with pytest.raises(ConfigError, match="an empty pattern"):
        expand(" , ")
    with pytest.raises(ConfigError, match="no file matches"):
        expand(folder / "nothing")


def test_missing_ones_can_be_skipped_but_not_all(folder: Path) -> None:
    assert expand("nothing-*.pb, part-1.pb", missing="skip") == ["part-1.pb"]
    with pytest.raises(ConfigError, match=r"no file matches 'nothing-\*.pb', 'none'"):
        expand("nothing-*.pb, none", missing="skip")


def test_urls_are_matched_too(folder: Path) -> None:
    for name in ("b", "a"):
        made = storage.NewFile(f"memory://patterns/{name}.pb")
        made.publish()
    found = expand("memory://patterns/*.pb, part-1.pb")
    assert [name.rpartition("/")[2] for name in found] == ["a.pb", "b.pb", "part-1.pb"]
    assert expand(found[0]) == found[:1]
    with pytest.raises(ConfigError, match="memory://patterns/none"):
        expand("memory://patterns/none")


def test_templates_stand_for_dates_and_numbers_both_ends_included(folder: Path) -> None:
    assert expand("part-{INT(0,5)}.pb") == ["part-1.pb", "part-2.pb"]
    assert expand("part-{INT(9,10)}.pb, part-1.pb") == ["part-10.pb", "part-1.pb"]
    assert len(expand_template("{DATE(20201120,20201210)}")) == 21
    assert expand_template("x/{DATE(2022022823,2022030101)}/y") == [
        "x/2022022823/y",
        "x/2022030100/y",
        "x/2022030101/y",
    ]
    with pytest.raises(ConfigError, match=r"no file matches 'part-\{INT"):
        expand("part-{INT(50,60)}.pb")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("{DATE(20220230,20220301)}", "the date is"),
        ("{DATE(20220101,2022010100)}", "mixes days and hours"),
        ("{DATE(202201,202202)}", "the day is"),
        ("{DATE(20220102,20220101)}", "is empty"),
        ("{INT(5,4)}", "is empty"),
        ("{INT(0,1000000000000)}", "more than 100000"),
        ("{INT(0,999)}{INT(0,999)}", "more than 100000"),
    ],
)
def test_templates_that_make_no_sense_are_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        expand_template(pattern)


def test_date_folders_exclude_the_end() -> None:
    days = date_patterns("/data", "20220901", "20220920")
    assert len(days) == 19
    assert (days[0], days[-1]) == ("/data/20220901/*", "/data/20220919/*")
    hours = date_patterns("/data/", 2022090122, 2022090202, hourly=True)
    assert hours == [
        "/data/20220901/22*",
        "/data/20220901/23*",
        "/data/20220902/00*",
        "/data/20220902/01*",
    ]
    assert date_patterns("x", datetime.date(2024, 2, 28), datetime.datetime(2024, 3, 1), wildcard="*.pb") == [
        "x/20240228/*.pb",
        "x/20240229/*.pb",
    ]


@pytest.mark.parametrize(
    ("start", "end", "hourly"),
    [
        ("20220902", "20220902", False),
        ("20220903", "20220902", False),
        ("2022090100", "20220902", False),
        ("yesterday", "20220902", False),
        ("20221301", "20230101", False),
        (datetime.datetime(2022, 9, 1, 5), "20220902", False),
        (datetime.datetime(2022, 9, 1, 5, 30), "20220902", True),
    ],
)
def test_date_ranges_that_make_no_sense_are_refused(start: str, end: str, hourly: bool) -> None:
    with pytest.raises(ConfigError):
        date_patterns("x", start, end, hourly)


def test_shards_are_disjoint_and_complete() -> None:
    files = [str(number) for number in range(10)]
    shards = [take_shard(files, (index, 3)) for index in range(3)]
    assert sorted(file for shard in shards for file in shard) == files
    assert shards[0] == ["0", "3", "6", "9"]
    for wrong in ((3, 3), (-1, 3), (0, 0)):
        with pytest.raises(ConfigError, match="index < count"):
            take_shard(files, wrong)
    with pytest.raises(ConfigError, match="shard 10 of 11 gets none of 10 files"):
        take_shard(files, (10, 11))
