from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from monolith.ps.link import ServerLink


@pytest.mark.parametrize(("timeout_s", "limit"), [(None, None), (math.inf, None), (0.5, 0.5)])
def test_a_call_without_a_finite_timeout_has_no_limit(timeout_s: float | None, limit: float | None) -> None:
    link = ServerLink("127.0.0.1:1")
    link._calls = {"Health": SimpleNamespace(future=lambda request, timeout: timeout)}
    assert link.begin("Health", None, timeout_s) == limit
    link.close()
