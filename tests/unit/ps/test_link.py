from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from monolith.core.errors import ClusterError
from monolith.ps import messages
from monolith.ps.link import ServerLink


@pytest.mark.parametrize(("timeout_s", "limit"), [(None, None), (math.inf, None), (0.5, 0.5)])
def test_a_call_without_a_finite_timeout_has_no_limit(timeout_s: float | None, limit: float | None) -> None:
    link = ServerLink("127.0.0.1:1")
    link._calls = {"Health": SimpleNamespace(future=lambda request, timeout: timeout)}
    assert link.begin("Health", None, timeout_s) == limit
    link.close()


def test_a_call_over_a_closed_connection_is_an_error_that_names_the_server() -> None:
    link = ServerLink("127.0.0.1:1")
    link.close()
    with pytest.raises(ClusterError, match=r"GetJobState at 127\.0\.0\.1:1: the connection is closed"):
        link.call("GetJobState", messages.GetJobStateRequest(), 1.0)
