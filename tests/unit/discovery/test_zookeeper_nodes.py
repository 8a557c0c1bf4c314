from __future__ import annotations

from collections.abc import Iterator

import pytest

from monolith.discovery.zookeeper_nodes import delete_own, put_ephemeral
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble


@pytest.fixture
def ensemble() -> Iterator[MemoryEnsemble]:
    with MemoryEnsemble() as ensemble:
        yield ensemble


def test_only_the_session_of_an_ephemeral_node_deletes_it(ensemble: MemoryEnsemble) -> None:
    old, new = ensemble.open(), ensemble.open()
    put_ephemeral(old, "/a", b"old")
    put_ephemeral(new, "/a", b"new")
    delete_own(old, "/a")
    assert new.get("/a")[0] == b"new"
    delete_own(new, "/a")
    assert new.exists("/a") is None
    delete_own(new, "/a")


def test_a_session_that_replaces_a_node_of_another_one_names_it_in_the_log(
    ensemble: MemoryEnsemble, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = ensemble.open(), ensemble.open()
    put_ephemeral(old, "/a", b"old")
    put_ephemeral(old, "/a", b"changed")
    assert caplog.text == ""
    put_ephemeral(new, "/a", b"new")
    assert f"node of another session replaced path=/a owner=0x{old.session_id:x}" in caplog.text
