from __future__ import annotations

from pathlib import Path

import pytest

from monolith.testing import FakeClock
from monolith.training.distributed.shared_files import SharedFiles, finished_files, unread_files, worker_name

FILES = ["a", "b", "c"]
ONE, TWO = worker_name(1), worker_name(2)


class Job:
    """Two workers of one folder, as two processes would have it."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.finished: dict[int, int] = {}
        self.is_over = False
        self.folder = folder
        self.one, self.two = self.worker(), self.worker()
        self.one.begin(None)

    def worker(self) -> SharedFiles:
        return SharedFiles(
            self.folder,
            lambda: FILES,
            lambda index: self.finished.get(index, 0),
            is_over=lambda: self.is_over,
            clock=self.clock,
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_files_are_given_out_once_and_in_order(job: Job) -> None:
    assert [job.one.claim(ONE), job.two.claim(TWO), job.one.claim(ONE)] == FILES
    for file, worker, name in (("a", job.one, ONE), ("b", job.two, TWO), ("c", job.one, ONE)):
        worker.done(name, file)
    assert job.one.claim(ONE) is job.two.claim(TWO) is None
    assert job.clock.slept_s == []
    assert unread_files(job.one.state()) == []


def test_who_finds_nothing_waits_for_what_a_dead_worker_leaves(job: Job) -> None:
    assert [job.one.claim(ONE), job.two.claim(TWO), job.two.claim(TWO)] == FILES
    job.one.done(ONE, "a")
    job.two.done(TWO, "b")  # read to its end, and not trained on

    def die(seconds: float) -> None:
        job.two.close()

    job.clock.sleep_s = die  # type: ignore[method-assign]
    assert [job.one.claim(ONE), job.one.claim(ONE)] == ["b", "c"]


def test_what_a_dead_worker_had_trained_on_stays_done(job: Job) -> None:
    assert [job.two.claim(TWO), job.two.claim(TWO)] == ["a", "b"]
    job.two.done(TWO, "a")
    job.finished[2] = 1
    job.two.close()
    assert [job.one.claim(ONE), job.one.claim(ONE)] == ["b", "c"]


@pytest.mark.parametrize("how", ["the job is over", "its source is closed"])
def test_a_claim_that_waits_can_be_ended(how: str, job: Job) -> None:
    for _ in FILES:
        job.two.claim(TWO)

    def end(seconds: float) -> None:
        if how == "the job is over":
            job.is_over = True
        else:
            job.one.leave(ONE)

    job.clock.sleep_s = end  # type: ignore[method-assign]
    assert job.one.claim(ONE) is None


def test_a_checkpoint_s_list_goes_on_with_new_files_at_its_end(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.one.claim(ONE)
    state = job.one.state()
    job.one.claim(ONE)
    FILES.append("d")
    try:
        job.two.begin(state)
    finally:
        FILES.remove("d")
    assert unread_files(job.one.state()) == ["a", "b", "c", "d"]
    job.one.settle()
    assert "the job ends with files that were not read to their end" in caplog.text


def test_the_count_of_finished_files_is_found_wherever_a_place_keeps_it() -> None:
    place = {"at": {"before": [{"source": {"worker": ONE, "finished": 4}}, {"x": {"worker": ONE, "finished": 3}}]}}
    assert finished_files(place, ONE) == 3
    assert finished_files(place, TWO) == finished_files(None, ONE) == 0
