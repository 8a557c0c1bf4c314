from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith import _native


@pytest.fixture
def sizes() -> Any:
    from train.workload import QUICK

    return replace(QUICK, ids=26_000, batch=256, batches=4, rounds=2, steps=2, steps_between_saves=4, threads=1)


def test_both_sides_compute_the_same(sizes: Any) -> None:
    from train.contestants import Ours, PlainTorch, check_agreement
    from train.workload import DIM, Workload

    workload = Workload(sizes)
    examples = workload.examples()
    ours = Ours(workload, examples)
    peers = [PlainTorch(workload, examples), PlainTorch(workload, examples, widths=(DIM + 1,))]
    for side in (ours, *peers):
        side.fill(workload)
    with pytest.raises(RuntimeError, match="disagree before"):
        check_agreement(ours, peers)
    for peer in peers:
        peer.copy_dense(ours.model.network)
    check_agreement(ours, peers)


def test_rows_and_ids_name_the_same_thing(sizes: Any) -> None:
    from train.workload import SPARSE, Workload

    workload = Workload(sizes)
    every = np.concatenate([workload.ids(place) for place in range(len(SPARSE))])
    assert len(np.unique(every)) == sizes.ids
    example = workload.examples(1)[0]
    for place, name in enumerate(SPARSE):
        assert (example.ours.ids[name].values == every[example.rows[:, place]]).all()


def test_coverage_shows_every_id_once(sizes: Any) -> None:
    from train.workload import SPARSE, Workload

    workload = Workload(sizes)
    batches = []
    while (batch := workload.coverage(len(batches))) is not None:
        batches.append(batch)
    for place in (0, 25):
        shown = np.concatenate([batch.ids[SPARSE[place]].values for batch in batches])
        assert sorted(shown.tolist()) == sorted(workload.ids(place).tolist())


def test_the_speed_cases_give_their_lines(sizes: Any) -> None:
    from train.speed import speed_cases
    from train.stopwatch import PARTS

    before = _native.lookup_all
    speed, overhead = speed_cases(["deepfm_torch", "overhead_share"], sizes)
    assert _native.lookup_all is before
    assert speed.ratio is not None
    assert speed.ratio > 0
    assert overhead.ratio is not None
    assert overhead.ratio < 1
    assert all(overhead.extra[f"{part}_ms"] > 0 for part in PARTS)


def test_memory_counts_the_rows_of_every_id(sizes: Any) -> None:
    from train.memory import memory_cases

    (result,) = memory_cases(["bytes_per_id_overhead"], sizes)
    assert result.extra["payload_bytes"] == 4 * 17 * 2
    assert sizes.ids / 2 < result.extra["rows"] < sizes.ids


def test_pauses_are_measured_around_each_save(sizes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from train import pauses

    monkeypatch.setattr(pauses, "SCRATCH", tmp_path)
    (result,) = pauses.pause_cases(["checkpoint_pause_ms"], replace(sizes, saves=2, steps_between_saves=20))
    assert result.rounds == 2
    assert result.extra["rows"] == sizes.ids
    assert 0 < result.extra["cut_ms"] < 1e3 * result.extra["save_s"]
    assert result.extra["bytes"] > sizes.ids * 4 * 17 * 2
    assert list(tmp_path.iterdir()) == []


def test_gaps_of_a_save_begin_with_it_and_end_when_it_is_safe() -> None:
    from train.pauses import WARM_UP_STEPS, StepTimes

    times = StepTimes(saves=1)
    ends = [float(number) for number in range(20)]
    ends[15:] = [number + 4 for number in ends[15:]]  # the step after 14 takes 5
    times.ends, times.begun, times.safe = ends, [14.1], [20.5]
    calm, (during,) = times.gaps()
    assert during.tolist() == [5, 1, 1]
    assert calm.tolist() == [1] * (19 - WARM_UP_STEPS - 3)
