from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import ExpiryRefused
from monolith.embedding import Adagrad, SliceSpec, TableSpec
from monolith.ps import RemoteStore, Security, ServerConfig
from monolith.testing import FakeClock
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.server_memory import ServerMemoryHook

SPEC = TableSpec("t", [SliceSpec(16, optimizer=Adagrad())])


class Run:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.stop_reason: str | None = None
        self.is_paused = False

    def stop(self, reason: str) -> None:
        self.stop_reason = reason

    def pause(self) -> bool:
        self.is_paused = True
        return True


def watch(action: Any, *, evict_helps: bool = False, full: bool = True) -> tuple[Run, int]:
    """One look at a server that is nearly full; return the run, and how often rows were evicted."""
    run, evictions = Run(), 0
    with PsServers(1, ServerConfig(memory_limit_bytes=1 << 30)) as servers:
        (server,) = servers.servers

        def evict() -> int:
            nonlocal evictions
            evictions += 1
            if evict_helps:
                server.health.limit.limit_bytes = 1 << 30
            return 5

        with RemoteStore(servers.addresses, [SPEC]) as store:
            store.push({"t": np.arange(1000)}, {"t": np.ones((1000, 16), np.float32)})
            if full:
                server.health.limit.limit_bytes = server.tables.memory_bytes * 100 // 95
            hook = ServerMemoryHook(servers.addresses, Security(), action, evict=evict)
            hook.on_start(run)  # type: ignore[arg-type]
            hook.after_step(run, SimpleNamespace(step=1))  # type: ignore[arg-type]
            hook.on_end(run, None)  # type: ignore[arg-type]
    return run, evictions


def test_a_job_continues_while_the_servers_have_room() -> None:
    run, evictions = watch("stop", full=False)
    assert (run.stop_reason, run.is_paused, evictions) == (None, False, 0)


def test_a_server_that_is_nearly_full_ends_the_job_with_a_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    run, _ = watch("stop")
    assert run.stop_reason is not None
    assert "server 0: tables use" in run.stop_reason
    assert "give more memory, or more servers" in caplog.text


def test_expired_rows_make_room_and_if_not_the_job_ends(caplog: pytest.LogCaptureFixture) -> None:
    run, evictions = watch("evict", evict_helps=True)
    assert (run.stop_reason, evictions) == (None, 1)
    assert "expired rows removed rows=5" in caplog.text
    run, evictions = watch("evict")
    assert run.stop_reason is not None
    assert evictions == 1


def test_workers_can_be_held_instead(caplog: pytest.LogCaptureFixture) -> None:
    run, _ = watch("hold")
    assert run.is_paused
    assert run.stop_reason is None
    assert "workers paused" in caplog.text


@pytest.mark.parametrize("action", ["stop", "evict", "hold"])
def test_a_delta_log_that_is_not_written_does_not_count_as_full_memory(tmp_path: Path, action: Any) -> None:
    run, config = Run(), ServerConfig(delta_log=tmp_path, memory_limit_bytes=1 << 30)
    with PsServers(1, config) as servers, RemoteStore(servers.addresses, [SPEC]):
        (server,) = servers.servers
        assert server.tables.log is not None
        server.tables.log.error = "No space left on device"
        assert server.health.of().status == "DEGRADED"
        hook = ServerMemoryHook(servers.addresses, Security(), action, evict=lambda: pytest.fail("rows were evicted"))
        hook.on_start(run)  # type: ignore[arg-type]
        hook.after_step(run, SimpleNamespace(step=1))  # type: ignore[arg-type]
        hook.on_end(run, None)  # type: ignore[arg-type]
        server.tables.log.error = ""
    assert (run.stop_reason, run.is_paused) == (None, False)


def test_an_eviction_that_is_refused_ends_the_job_with_a_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> int:
        raise ExpiryRefused("most rows of table 't' have expired")

    run = Run()
    with PsServers(1, ServerConfig(memory_limit_bytes=1 << 30)) as servers:
        with RemoteStore(servers.addresses, [SPEC]) as store:
            store.push({"t": np.arange(1000)}, {"t": np.ones((1000, 16), np.float32)})
        (server,) = servers.servers
        server.health.limit.limit_bytes = server.tables.memory_bytes
        hook = ServerMemoryHook(servers.addresses, Security(), "evict", evict=refuse)
        hook.on_start(run)  # type: ignore[arg-type]
        hook.after_step(run, SimpleNamespace(step=1))  # type: ignore[arg-type]
        hook.on_end(run, None)  # type: ignore[arg-type]
    assert run.stop_reason is not None
    assert "eviction refused error=most rows" in caplog.text


def test_servers_that_do_not_answer_are_logged_and_end_no_job(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    hook = ServerMemoryHook(["127.0.0.1:1"], Security(), "stop", evict=lambda: 0)
    hook.on_start(run)  # type: ignore[arg-type]
    hook.after_step(run, SimpleNamespace(step=1))  # type: ignore[arg-type]
    hook.on_end(run, None)  # type: ignore[arg-type]
    assert run.stop_reason is None
    assert "server health unknown" in caplog.text
