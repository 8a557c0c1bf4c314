from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Self

import pytest

from monolith.core.errors import ClusterError

sys.path.insert(0, str(Path(__file__).parents[2] / "chaos"))

import soak


class Cluster:
    """A job of which nothing comes but an error."""

    error: BaseException

    def __init__(self, *given: Any, **options: Any) -> None:
        self.is_stopped = False
        made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.is_stopped = True

    def wait_for(self, name: str, text: str) -> None:
        raise self.error


made: list[Cluster] = []


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "with 0 times hold and 0 times kill: all is well"),
        (ClusterError("chief has said nothing"), 1, "0 times kill: 1 problems"),
    ],
)
def test_a_soak_ends_its_job_and_prints_its_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, said: str
) -> None:
    monkeypatch.setattr(soak, "LocalCluster", Cluster)
    monkeypatch.setattr(soak.tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/tmp")  # the soak sets both for its processes
    monkeypatch.setattr(Cluster, "error", error, raising=False)
    made.clear()
    assert soak.main(["--seconds", "5", "--seed", "1"]) == status
    assert [cluster.is_stopped for cluster in made] == [True]
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("soak interrupted after" if status == 130 else "soak ended after")
    assert said in last
