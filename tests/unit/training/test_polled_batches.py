"""Batches of an idle stream: the loop's thread is called while it waits, and a close ends the wait."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from monolith.training.polled_batches import PolledBatches


class Stream:
    """Yields the items of ``put``, and waits for more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[int | Exception] = []
        self._is_closed = False
        self.threads: set[str] = set()

    def put(self, item: int | Exception) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def read(self) -> Generator[int, None, None]:
        while True:
            with self._changed:
                self.threads.add(threading.current_thread().name)
                assert self._changed.wait_for(lambda: self._items or self._is_closed, 60)
                if not self._items:
                    return
                item = self._items.pop(0)
            if isinstance(item, Exception):
                raise item
            yield item


def test_the_waiting_thread_is_called_until_a_batch_comes() -> None:
    stream, calls = Stream(), []

    def on_idle() -> bool:
        calls.append(threading.current_thread().name)
        if len(calls) == 3:
            stream.put(7)
        return True

    batches = PolledBatches(stream.read(), on_idle, stream.interrupt, poll_s=0.01)
    assert next(batches) == 7
    assert calls[:3] == [threading.current_thread().name] * 3
    assert threading.current_thread().name not in stream.threads
    batches.close()


def test_a_false_answer_ends_the_iteration_and_loses_no_batch_that_comes_later() -> None:
    stream, answers = Stream(), iter([True, False, True])
    batches = PolledBatches(stream.read(), lambda: next(answers), stream.interrupt, poll_s=0.01)
    with pytest.raises(StopIteration):
        next(batches)
    stream.put(1)
    assert next(batches) == 1, "the reader still waited for this batch"
    batches.close()


def test_an_error_of_the_source_is_raised_by_the_iterating_thread() -> None:
    stream = Stream()
    stream.put(ValueError("broken"))
    batches = PolledBatches(stream.read(), lambda: True, stream.interrupt, poll_s=0.01)
    with pytest.raises(ValueError, match="broken"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()


def test_a_close_interrupts_a_source_that_waits() -> None:
    stream = Stream()
    batches = PolledBatches(stream.read(), lambda: False, stream.interrupt, poll_s=0.01)
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()
    assert not any(thread.name == "stream-batches" for thread in threading.enumerate())
    batches.close()
