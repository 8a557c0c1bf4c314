"""Model servers for the tests of this folder, with linear models; they live as long as the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from monolith.testing.fakes.linear_model import write_version
from monolith.testing.processes.linear_server import LinearServer


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., LinearServer]]:
    with ExitStack() as stack:

        def start(weights: dict[int, float] | None = None, **settings: Any) -> LinearServer:
            if not (tmp_path / "m").exists():
                write_version(tmp_path / "m", 1, bias=0.5, age_weight=0.25, weights=weights or {7: 2.0, 8: 4.0})
            served = LinearServer(tmp_path, **settings)
            stack.callback(served.server.stop, 0.0)
            served.start()
            return served

        yield start
