from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from monolith.core.clock import SystemClock
from monolith.data.sources.work_list import FilesReassigned
from monolith.ps import Security
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.shared_files import SharedFiles, finished_files, unread_files, worker_name
from monolith.training.cluster.worker_job import _Member
from monolith.training.cluster.worker_positions import WorkerPositions

FILES = ["a", "b", "c"]
ONE, TWO = worker_name(1), worker_name(2)


class Job:
    """Two workers of one folder, as two processes would have it."""

    def __init__(self, folder: Path) -> None:
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
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_files_are_given_out_once_and_in_order(job: Job) -> None:
    assert [job.one.claim(ONE), job.two.claim(TWO), job.one.claim(ONE)] == FILES
    for file, worker, name in (("a", job.one, ONE), ("b", job.two, TWO), ("c", job.one, ONE)):
        worker.done(name, file)
    assert job.one.claim(ONE) is job.two.claim(TWO) is None
    assert unread_files(job.one.state()) == []


def test_while_another_reads_a_file_may_follow_and_does_when_it_dies(job: Job) -> None:
    assert [job.one.claim(ONE), job.two.claim(TWO), job.two.claim(TWO)] == FILES
    job.one.done(ONE, "a")
    job.two.done(TWO, "b")  # read to its end, and not trained on
    assert job.one.claim(ONE) is None
    assert job.one.may_follow()
    job.two.close()
    assert [job.one.claim(ONE), job.one.claim(ONE)] == ["b", "c"]
    job.one.done(ONE, "b")
    job.one.done(ONE, "c")
    assert not job.one.may_follow()


def test_a_worker_that_starts_late_finds_its_files_unchanged(job: Job) -> None:
    assert job.two.claim(TWO) == "a"
    lease = job.two.lease(TWO)
    job.two.close()
    assert [job.one.claim(ONE), job.one.claim(ONE)] == ["b", "c"], "those of a dead worker come last"
    assert job.worker().take_back(TWO, lease) == ["a"]


def test_a_worker_whose_files_were_reassigned_starts_over(job: Job) -> None:
    assert [job.two.claim(TWO), job.two.claim(TWO), job.two.claim(TWO)] == FILES
    lease = job.two.lease(TWO)
    job.two.done(TWO, "a")
    job.two.close()
    assert job.one.claim(ONE) == "a"
    late = job.worker()
    with pytest.raises(FilesReassigned):
        late.take_back(TWO, lease)
    assert [late.claim(TWO), late.claim(TWO), late.claim(TWO)] == ["b", "c", None]


def test_a_worker_killed_before_its_first_position_reads_its_files_again(job: Job) -> None:
    assert [job.two.claim(TWO), job.two.claim(TWO)] == ["a", "b"]
    job.two.done(TWO, "a")
    job.two.close()
    again = job.worker()
    again.begin_worker(TWO)
    assert [again.claim(TWO), again.claim(TWO), again.claim(TWO)] == FILES


def test_files_that_a_dead_worker_had_trained_on_stay_done(job: Job) -> None:
    assert [job.two.claim(TWO), job.two.claim(TWO)] == ["a", "b"]
    job.two.done(TWO, "a")
    job.finished[2] = 1
    job.two.close()
    assert [job.one.claim(ONE), job.one.claim(ONE), job.one.claim(ONE)] == ["c", "b", None]


def test_removed_files_of_a_worker_that_is_through_are_not_read_again(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in FILES]
    for path in paths:
        path.touch()
    config = ClusterJobConfig(
        num_ps=1, num_workers=2, enable_dynamic_sharding=True, data=f"{tmp_path}/*.txt", model_dir=tmp_path / "model"
    )
    with ExitStack() as resources:
        chief, other = (
            _Member((), config, Security(), SystemClock(), resources, lambda: None, from_checkpoint=False)._files
            for _ in range(2)
        )
        assert chief is not None
        assert other is not None
        chief.begin(None)
        while (file := other.claim(ONE)) is not None:
            other.done(ONE, file)
        place = {"worker": ONE, "finished": len(paths)}
        WorkerPositions(tmp_path / "model").write(1, 0, place, is_through=True)
        other.close()
        paths[0].unlink()
        assert chief.claim(worker_name(0)) is None
        paths[1].unlink()
        paths[2].unlink()
        assert chief.claim(worker_name(0)) is None


def test_at_the_end_of_the_job_nothing_follows(job: Job) -> None:
    job.two.claim(TWO)
    job.is_over = True
    assert job.one.claim(ONE) is None
    assert not job.one.may_follow()


def test_a_checkpoint_s_list_continues_with_new_files_at_its_end(job: Job, caplog: pytest.LogCaptureFixture) -> None:
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
    assert "job ended with unread files" in caplog.text


def test_the_count_of_finished_files_is_found_wherever_a_place_keeps_it() -> None:
    place = {"at": {"before": [{"source": {"worker": ONE, "finished": 4}}, {"x": {"worker": ONE, "finished": 3}}]}}
    assert finished_files(place, ONE) == 3
    assert finished_files(place, TWO) == finished_files(None, ONE) == 0
