"""One suite for work lists, in memory and in a folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.work_list import FilesReassigned, FolderWorkList, Lease, MemoryWorkList, WorkList

FILES = [f"part-{number}" for number in range(6)]
Make = Callable[[list[str]], WorkList]


@pytest.fixture(params=["memory", "folder"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "memory":
        return MemoryWorkList
    return lambda files: FolderWorkList(tmp_path / "shared", files)


def test_it_satisfies_the_protocol(make: Make) -> None:
    assert isinstance(make(FILES), WorkList)


def test_files_are_given_once_in_order(make: Make) -> None:
    shared = make(FILES)
    assert [shared.claim("ab"[number % 2]) for number in range(7)] == [*FILES, None]


def test_a_file_of_a_dead_worker_comes_next(make: Make) -> None:
    shared = make(FILES)
    assert [shared.claim("slow"), shared.claim("dead"), shared.claim("dead")] == FILES[:3]
    assert shared.requeue("dead") == FILES[1:3]
    assert shared.requeue("dead") == []
    assert [shared.claim("slow"), shared.claim("slow"), shared.claim("slow")] == FILES[1:4]


def test_only_the_holder_can_be_done(make: Make) -> None:
    shared = make(FILES)
    file = shared.claim("a")
    assert file is not None
    with pytest.raises(DataError, match="held by 'a'"):
        shared.done("b", file)
    shared.done("a", file)
    with pytest.raises(DataError, match="'part-0' is done"):
        shared.done("a", file)
    with pytest.raises(DataError, match="is waiting"):
        shared.done("a", FILES[3])
    assert shared.requeue("a") == []


def test_a_restarted_worker_reclaims_files_that_no_other_worker_holds(make: Make) -> None:
    shared = make(FILES)
    for _ in range(2):
        shared.claim("a")
    shared.claim("b")
    assert shared.reclaim("a", FILES[0])
    shared.requeue("a")
    assert shared.reclaim("a", FILES[1])
    assert not shared.reclaim("a", FILES[2])
    assert not shared.reclaim("a", "unknown")
    assert shared.claim("b") == FILES[0]


def test_the_state_is_json_and_brings_everything_back(make: Make, tmp_path: Path) -> None:
    shared = make(FILES)
    first = shared.claim("a")
    assert first is not None
    shared.claim("b")
    shared.done("a", first)
    saved = json.loads(json.dumps(shared.state()))
    rest = [shared.claim("c") for _ in range(5)]
    shared.restore(saved)
    assert shared.state() == saved
    assert [shared.claim("c") for _ in range(5)] == rest
    assert shared.requeue("b") == [FILES[1]]


@pytest.mark.parametrize(
    "state",
    [None, {}, {"waiting": ["a"], "claimed": {"a": "w"}, "done": []}, {"waiting": [1], "claimed": {}, "done": []}],
)
def test_an_invalid_state_is_refused(make: Make, state: object) -> None:
    with pytest.raises(DataError, match="not the state of a work list"):
        make(FILES).restore(state)  # type: ignore[arg-type]


def test_wrong_files_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="twice"):
        make(["a", "b", "a"])
    with pytest.raises(ConfigError, match="a list of files"):
        make("a,b")  # type: ignore[arg-type]


def test_threads_share_every_file_out_exactly_once(make: Make) -> None:
    shared = make([str(number) for number in range(60)])
    taken: dict[str, list[str]] = {name: [] for name in "abcd"}

    def work(name: str) -> None:
        while (file := shared.claim(name)) is not None:
            taken[name].append(file)
            shared.done(name, file)

    threads = [threading.Thread(target=work, args=(name,)) for name in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((file for files in taken.values() for file in files), key=int) == [
        str(number) for number in range(60)
    ]
    assert len(shared.state()["done"]) == 60


def test_a_worker_that_resumes_gets_back_files_finished_since_its_position(make: Make) -> None:
    shared = make(["a", "b", "c", "d", "e"])
    assert [shared.claim("one") for _ in range(4)] == ["a", "b", "c", "d"]
    for file in ("a", "c", "b"):
        shared.done("one", file)
    assert shared.take_back("one", Lease(1, 0)) == ["b", "c", "d"], "in the order of the claims"
    assert shared.state()["done"] == ["a"]
    assert shared.claim("two") == "e"
    assert shared.claim("two") is None, "what was taken back is held"
    shared.done("one", "c")


def test_a_worker_whose_files_were_reassigned_cannot_resume_and_loses_nothing(make: Make) -> None:
    shared = make(["a", "b", "c"])
    assert [shared.claim("one"), shared.claim("one")] == ["a", "b"]
    saved = shared.lease("one")
    shared.done("one", "a")
    assert shared.lease("one") == saved._replace(finished=1)
    shared.requeue("one")
    assert shared.claim("two") == "b"
    with pytest.raises(FilesReassigned, match="'one'"):
        shared.take_back("one", saved)
    assert [shared.claim("one"), shared.claim("one"), shared.claim("one")] == ["a", "c", None]
    assert shared.take_back("one", shared.lease("one")) == ["a", "c"], "the lease of the new epoch is valid"


def test_a_list_that_was_saved_without_epochs_is_read(make: Make) -> None:
    shared = make(["a", "b"])
    shared.restore({"waiting": ["b"], "claimed": {"a": "one"}, "done": []})
    assert shared.take_back("one", Lease(0, 0)) == ["a"]
