"""A page serves metrics and health, and a client holds no more than one of few connections for a bounded time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from monolith.core.errors import ClusterError
from monolith.telemetry.page import MetricsPage

HOST = "127.0.0.1"
LONG_S = 30.0


def get(page: MetricsPage, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, page.port, timeout=LONG_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


@contextlib.contextmanager
def silent_clients(page: MetricsPage, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((HOST, page.port), LONG_S)) for _ in range(count)]


def test_a_page_serves_metrics_and_health() -> None:
    health = (True, "OK")
    with MetricsPage(lambda: "up 1\n", lambda: health, host=HOST) as page:
        assert get(page, "/metrics") == (200, "up 1\n")
        assert get(page, "/metrics?name=up") == (200, "up 1\n")
        assert get(page, "/healthz") == (200, "OK\n")
        health = (False, "UNHEALTHY full")
        assert get(page, "/healthz") == (503, "UNHEALTHY full\n")
        status, text = get(page, "/else")
        assert status == 404
        assert "/metrics" in text


def test_metrics_that_raise_give_500_and_the_page_stays() -> None:
    answers = iter([KeyError("x"), "up 1\n"])

    def text() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with MetricsPage(text, host=HOST) as page:
        assert get(page, "/metrics")[0] == 500
        assert get(page, "/metrics") == (200, "up 1\n")


def test_a_port_that_is_taken_is_refused() -> None:
    with MetricsPage(str, host=HOST) as page, pytest.raises(ClusterError, match=f"{HOST}:{page.port}"):
        MetricsPage(str, host=HOST, port=page.port)
    with pytest.raises(ClusterError, match="70000"):
        MetricsPage(str, host=HOST, port=70000)


def is_refused(page: MetricsPage) -> bool:
    try:
        return get(page, "/healthz")[0] == 503
    except (OSError, http.client.HTTPException):  # closed before the request was read
        return True


def test_connections_past_the_limit_are_refused_without_a_further_thread() -> None:
    with MetricsPage(str, host=HOST, connections=2, timeout_s=LONG_S) as page, silent_clients(page, 2):
        deadline_s = time.monotonic() + LONG_S
        while not is_refused(page):  # until both silent clients are accepted
            assert time.monotonic() < deadline_s
        before = threading.active_count()
        assert all(is_refused(page) for _ in range(20))
        assert threading.active_count() <= before


def test_a_client_that_drips_bytes_is_cut_off_at_its_deadline() -> None:
    with MetricsPage(str, host=HOST, connections=1, timeout_s=0.5) as page, silent_clients(page, 1) as (dripping,):
        started_s = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() < started_s + LONG_S:
                dripping.sendall(b"G")
                dripping.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    if not dripping.recv(1):
                        break
        assert time.monotonic() - started_s < 10
        deadline_s = time.monotonic() + LONG_S
        while is_refused(page):
            assert time.monotonic() < deadline_s


def test_closing_ends_all_threads_and_open_connections() -> None:
    page = MetricsPage(str, host=HOST)
    with silent_clients(page, 3):
        page.close()
        page.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("metrics")]
