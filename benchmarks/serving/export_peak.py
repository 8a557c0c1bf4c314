"""The case of exporting: the memory of ``monolith export --layout distributed`` of a large checkpoint.

The result is the largest sum of the resident memory of all processes of the export that are alive together, as a share
of the bound: 1.3 times the serving size of one shard, and 300 MB for Python and torch. The sum is sampled every 20 ms;
pages that processes share count for each of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from measure.results import Result
from serving.exporting import scratch_folder
from serving.results import progress
from serving.workload import Sizes

__all__ = ["export_cases"]

_SHARDS = 4
_SHARD_FACTOR = 1.3
_FIXED_BYTES = 300_000_000

_TRAIN = """
import sys
from pathlib import Path

import numpy as np

from monolith.demo.world import World
from monolith.demo.world.files import write_parquet
from monolith.training.config.job import JobConfig
from monolith.training.runner import Job

folder, rows = Path(sys.argv[1]), int(sys.argv[2])
write_parquet(World(users=40, items=30, seed=4).clicks(200), folder / "clicks.parquet")
features = {"sparse": ["user_id", "item_id", "category"], "dense": ["price"], "dim": 16, "hidden": [64]}
job = Job(JobConfig(task="deepfm", task_options=features, data=str(folder / "clicks.parquet"), batch_size=50,
                    label_features=("click",), model_dir=str(folder / "run"), log_step_count_steps=0))
store = job.estimator.store
random = np.random.default_rng(1)
for name in store:
    for begin in range(0, rows // len(store), 250_000):
        ids = np.arange(begin, min(begin + 250_000, rows // len(store))) * 7919 + 1
        store[name].assign(ids, random.standard_normal((len(ids), store[name].dim), np.float32))
job.train()
"""

_SAMPLE_S = 0.02


def export_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Export one checkpoint, and measure its processes."""
    with scratch_folder() as folder:
        progress(f"training a checkpoint of {sizes.load_ids:,} rows")
        _run(_TRAIN, folder, sizes.load_ids)
        progress("export_peak_share")
        peak, largest = _export(folder / "run", folder / "served")
        shard = max(_size(path) for path in (folder / "served").glob("ps_*"))
    bound = _SHARD_FACTOR * shard + _FIXED_BYTES
    yield Result(
        case="export_peak_share",
        ours=peak / 1e6,
        peer=bound / 1e6,
        ratio=peak / bound,
        unit="MB",
        rounds=1,
        extra={
            "peer_name": "1.3 x the serving size of one shard + 300 MB",
            "ratio_low": peak / bound,
            "ratio_high": peak / bound,
            "rows": sizes.load_ids,
            "shards": _SHARDS,
            "shard_bytes": shard,
            "largest_process_bytes": largest,
        },
    )


def _export(run: Path, served: Path) -> tuple[int, int]:
    """Export; return the largest sum of memory of processes alive together, and the memory of the largest process."""
    command = [sys.executable, "-m", "monolith", "export", str(run), str(served), "--layout", "distributed"]
    peak = largest = 0
    with subprocess.Popen([*command, "--shards", str(_SHARDS)], stdout=sys.stderr) as started:
        process = psutil.Process(started.pid)
        while started.poll() is None:
            sizes = [_resident(each) for each in (process, *_children(process))]
            peak, largest = max(peak, sum(sizes)), max(largest, *sizes)
            time.sleep(_SAMPLE_S)
    if started.returncode != 0:
        raise RuntimeError(f"the export ended with status {started.returncode}")
    return peak, largest


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:  # it has ended
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def _run(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return printed.strip().rpartition("\n")[2]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
