"""A group of threads ends within its timeout, and raises the error of a thread."""

from __future__ import annotations

import threading

import pytest

from monolith.core.errors import MonolithError
from monolith.core.thread_group import ThreadGroup


def test_all_threads_run_at_the_same_time_under_their_names() -> None:
    together = threading.Barrier(3, timeout=30)
    names = set()

    def meet() -> None:
        names.add(threading.current_thread().name)
        together.wait()

    group = ThreadGroup({name: meet for name in ("a", "b", "c")})
    group.start()
    group.join(30)
    assert names == {"a", "b", "c"}


def test_the_error_of_a_thread_is_raised_after_the_end_of_all() -> None:
    ended = threading.Event()

    def fail() -> None:
        raise ValueError("no such page")

    group = ThreadGroup({"reader": fail, "writer": ended.set})
    group.start()
    with pytest.raises(MonolithError, match="thread reader failed: ValueError: no such page") as caught:
        group.join(30)
    assert isinstance(caught.value.__cause__, ValueError)
    assert ended.is_set()


def test_a_thread_that_does_not_end_is_named_at_the_timeout() -> None:
    end = threading.Event()
    group = ThreadGroup({"stuck": lambda: end.wait(60), "quick": lambda: None})
    group.start()
    with pytest.raises(MonolithError, match=r"threads stuck still run after 0\.05 s"):
        group.join(0.05)
    end.set()
    group.join(30)
