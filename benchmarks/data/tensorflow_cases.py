"""The case against TensorFlow, which runs in an environment and a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from data.arrays import Arrays, check_agreement
from data.parsing import UNIT, our_tf_arrays
from data.results import progress
from data.workload import DENSE_WIDTHS, SIGNATURE_BITS, Sizes, schema, write_tfrecords
from measure.results import PeerMissing, Result, compare, skipped
from measure.timing import interleave
from monolith.data import Schema

__all__ = ["tensorflow_cases"]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-compat" / "bin" / "python"
PROGRAM = Path(__file__).with_name("tensorflow_peer.py")


def tensorflow_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """A TFRecord file of tf.Examples, from the file to batches."""
    (case,) = cases
    progress(case)
    wanted = schema(sizes)
    with tempfile.TemporaryDirectory() as folder:
        path = write_tfrecords(Path(folder) / "rows.tfrecord", sizes, sizes.tf_rows)
        try:
            with _Peer(path, wanted, sizes) as peer:
                check_agreement(_as_tensorflow(_last(path, wanted, sizes), wanted), peer.arrays(folder), peer.name)
                yield _measured(case, path, wanted, sizes, peer)
        except PeerMissing as error:
            yield skipped(case, error)


def _measured(case: str, path: Path, wanted: Schema, sizes: Sizes, peer: _Peer) -> Result:
    own_seconds: list[float] = []
    turns = [lambda _: _last(path, wanted, sizes), lambda _: own_seconds.append(peer.seconds_of_pass())]
    seconds = interleave(turns, rounds=sizes.rounds, steps=sizes.steps)
    # The peer times itself: waking it up is not its work.
    theirs = np.reshape(own_seconds, (sizes.rounds, sizes.steps + 1))[:, 1:].mean(axis=1)
    extra: dict[str, Any] = {
        "peer_name": peer.name,
        "ns_per_feature": float(np.median(seconds[0])) / sizes.tf_rows / sizes.features * 1e9,
    }
    return compare(case, seconds[0], theirs, sizes.tf_rows / 1e3, UNIT, **extra)


def _last(path: Path, wanted: Schema, sizes: Sizes) -> Arrays:
    *_, last = our_tf_arrays(path, wanted, sizes)
    return last


def _as_tensorflow(arrays: Arrays, wanted: Schema) -> Arrays:
    """Take the slots off the ids: TensorFlow gives integers as they are written."""
    signatures = (1 << SIGNATURE_BITS) - 1
    return arrays | {each.name: arrays[each.name] & signatures for each in wanted.sparse_features}


class _Peer:
    """TensorFlow at work in another process, on the same core."""

    def __init__(self, path: Path, wanted: Schema, sizes: Sizes) -> None:
        if not PYTHON.exists():
            raise PeerMissing("TensorFlow is not installed; `make compat-setup` makes an environment for it")
        settings = {
            "path": str(path),
            "batch": sizes.batch,
            "sparse": [each.name for each in wanted.sparse_features],
            "dense": DENSE_WIDTHS,
        }
        self._process = subprocess.Popen(
            [str(PYTHON), str(PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name = "TensorFlow " + self._read()["tensorflow"]

    def seconds_of_pass(self) -> float:
        """Let it read the file once."""
        return float(self._ask("pass")["seconds"])

    def arrays(self, folder: str) -> Arrays:
        """Return the arrays of its last batch."""
        path = Path(folder) / "tensorflow.npz"
        self._ask(f"save {path}")
        with np.load(path) as saved:
            return dict(saved)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerMissing(f"TensorFlow's process ended with status {self._process.wait()}; see its errors above")
        answer: dict[str, Any] = json.loads(line)
        return answer
