"""The case against PyFlink, which runs in a separate environment: wall time of one thread beside a whole Flink job."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from join.results import progress
from join.speed import NativeJoin
from join.workload import OUT_OF_ORDER_MS, WINDOW_MS, Sizes, make_batches
from measure.results import PeerMissing, Result, skipped
from monolith import _native
from monolith.testing.processes.linked_package import link_package

__all__ = ["flink_cases"]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-flink" / "bin" / "python"
PROGRAM = Path(__file__).with_name("flink_peer.py")
LONGEST_S = 600


def flink_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Join the same records by both. The start of Flink does not count: two sizes give the time per event."""
    (case,) = cases
    try:
        yield _measure(case, sizes)
    except PeerMissing as error:
        yield skipped(case, error)


def _measure(case: str, sizes: Sizes) -> Result:
    if not PYTHON.exists():
        raise PeerMissing(f"{PYTHON} is absent; run `make flink-setup`")
    rounds, events = (1, 13_000) if sizes.quick else (3, 20_000)
    batches = list(make_batches(events))
    chunks = [_native.Records(batch) for batch in batches]
    values = [value for batch in batches for value in batch]
    few = len(values) // 10
    ours, peer = [], []
    with tempfile.TemporaryDirectory() as folder:
        environment = link_package(Path(folder) / "package")
        for number in range(rounds):
            progress(f"{case}, round {number + 1} of {rounds}")
            native = NativeJoin()
            started_s = time.monotonic()
            assert sum(native.join(chunk) for chunk in chunks) > 0
            ours.append(len(values) / (time.monotonic() - started_s))
            long_s, short_s = (_flink_seconds(values[:count], folder, environment) for count in (len(values), few))
            peer.append((len(values) - few) / (long_s - short_s))
    return Result(
        case=case,
        ours=float(np.median(ours)),
        peer=float(np.median(peer)),
        ratio=float(np.median(np.array(ours) / np.array(peer))),
        unit="events/s",
        rounds=rounds,
        extra={"events": len(values), "peer_name": "the same rules as a PyFlink job, parallelism 1, all cores"},
    )


def _flink_seconds(values: list[bytes], folder: str, environment: Mapping[str, str]) -> float:
    path = Path(folder) / "records"
    path.write_text("".join(f"{value.hex()}\n" for value in values))
    command = [str(PYTHON), str(PROGRAM), str(path), str(WINDOW_MS), str(OUT_OF_ORDER_MS)]
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"PyFlink ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])
