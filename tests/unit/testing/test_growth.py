from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from monolith.testing.suites.growth import Usage, growth, usage_of

MB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def usage(**figures: int) -> Usage:
    return Usage(**{"rss_bytes": 200 * MB, "threads": 10, "sockets": 5, "files": 20, **figures})


def test_a_process_is_measured() -> None:
    before = usage_of(os.getpid())
    assert before is not None
    assert before.rss_bytes > 10 * MB
    assert before.threads >= 1
    with socket.socket(), open(os.devnull) as opened:
        assert opened.fileno() > 0
        after = usage_of(os.getpid())
        assert after is not None
        assert (after.sockets, after.files) == (before.sockets + 1, before.files + 1)


def test_a_process_that_has_ended_has_no_usage() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert usage_of(process.pid) is None


def test_steady_usage_does_not_grow() -> None:
    assert growth([usage(rss_bytes=(200 + number % 7) * MB, threads=10 + number % 3) for number in range(60)]) == []


def test_a_peak_does_not_count_as_growth() -> None:
    assert growth([usage(rss_bytes=(900 if number in (50, 51) else 200) * MB) for number in range(60)]) == []


@pytest.mark.parametrize(
    ("name", "begin", "step"), [("rss_bytes", 200 * MB, MB), ("threads", 10, 1), ("sockets", 5, 1), ("files", 20, 1)]
)
def test_slow_growth_is_found(name: str, begin: int, step: int) -> None:
    samples = [usage(**{name: begin + step * number}) for number in range(40)]
    assert [text.split()[0] for text in growth(samples)] == [name]


def test_too_few_samples_tell_nothing() -> None:
    assert growth([usage(threads=10 * number) for number in range(8)]) == []
