"""Golden vectors of summaries and of files of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from monolith.data import Batch
from monolith.data.prediction_files import PredictionFiles
from monolith.training.hooks import HeadResult
from monolith.training.metrics.insight_summaries import prepare_head
from monolith.training.metrics.prediction_messages import folder_by_day, prediction_messages, sampled_rows


def test_the_head_of_a_gating_summary() -> None:
    groups = [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]
    assert json.loads(prepare_head("gating", ["f1", "f2", "f3"], [3, 5, 9], groups)) == {
        "tag_type": "gating",
        "segment_names": ["f1", "f2", "f3"],
        "segment_sizes": [3, 5, 9],
        "group_index": [0, 0, 1],
    }


def test_sixty_four_rows_are_two_files_of_thirty_two_lines(tmp_path: Path) -> None:
    batch = Batch.from_arrays(label=np.zeros((64, 1)), uid=np.arange(1, 65), event_time_s=[1_664_236_800] * 64)
    half = np.full(64, 0.5, np.float32)
    head = HeadResult(name="ctr", predictions=half, label=np.ones(64, np.float32), mask=None, weight=None)
    files = PredictionFiles(tmp_path, lines_per_file=32, folder=folder_by_day)
    for message in prediction_messages(np.arange(64), batch, {"ctr": head}, model_name="test_model"):
        files.write(message)
    files.close()
    paths = sorted((tmp_path / "test_model" / "20220927" / "worker_0").iterdir())
    assert [path.name for path in paths] == ["part_000000.txt", "part_000001.txt"]
    assert [len(path.read_text().splitlines()) for path in paths] == [32, 32]
    assert paths[0].read_text().splitlines()[0] == '1664236800;gid;1;{"ctr": 0.5};{"ctr": 1.0}'


def test_one_percent_of_users_are_ten_buckets_of_a_thousand() -> None:
    kept = sampled_rows(np.arange(1, 100_001), 0.01) + 1
    assert len(kept) == 1000
    assert set((kept % 1000).tolist()) == set(range(10))
