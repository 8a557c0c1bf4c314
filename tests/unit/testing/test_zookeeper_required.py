"""Tests that need ZooKeeper are skipped without it, and fail where the environment requires it."""

from __future__ import annotations

import pytest

from monolith.core.errors import ConnectionFailed
from monolith.testing.processes import zookeeper_server


def test_a_missing_zookeeper_is_a_reason_to_skip_or_an_error_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zookeeper_server.shutil, "which", lambda name: None)
    monkeypatch.delenv(zookeeper_server.REQUIRED, raising=False)
    assert "java is not installed" in (zookeeper_server.why_no_zookeeper() or "")
    monkeypatch.setenv(zookeeper_server.REQUIRED, "1")
    with pytest.raises(ConnectionFailed, match="ZooKeeper cannot start: java is not installed"):
        zookeeper_server.why_no_zookeeper()
