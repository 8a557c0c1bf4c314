from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.queue import QueueSource


def filled(*payloads: bytes, **options: Any) -> QueueSource:
    queue = QueueSource("example", **options)
    queue.put(payloads)
    queue.end()
    return queue


def drain(queue: QueueSource) -> list[bytes]:
    records = []
    while (lot := queue.read()) is not None:
        records.extend(lot[index] for index in range(len(lot)))
    return records


def test_records_come_out_in_order_with_their_numbers() -> None:
    queue = QueueSource("instance")
    queue.put([b"a", b"", b"c"])
    queue.put(_native.Records([b"d"]))
    lot = queue.read()
    assert lot is not None
    assert [lot[index] for index in range(len(lot))] == [b"a", b"", b"c", b"d"]
    assert (lot.offsets.tolist(), lot.source) == ([0, 1, 2, 3], "queue")
    assert (queue.record, queue.position()) == ("instance", {"records": 4})
    queue.end()
    assert queue.read() is None


def test_lots_are_bounded() -> None:
    queue = filled(*[b"x"] * 5000)
    lot = queue.read()
    assert lot is not None
    assert len(lot) == 4096
    assert queue.position() == {"records": 4096}


def test_a_full_queue_makes_the_writer_wait() -> None:
    queue = QueueSource("example", maxsize=3)
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(lambda: (queue.put([bytes([n]) for n in range(100)]), queue.end()))
        records, most = [], 0
        while (lot := queue.read()) is not None:
            most = max(most, len(lot))
            records.extend(lot[index] for index in range(len(lot)))
        writer.result()
    assert records == [bytes([n]) for n in range(100)]
    assert most <= 3


def test_a_reader_waits_for_the_first_record() -> None:
    queue = QueueSource("example")
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(drain, queue)
        queue.put([b"a"])
        queue.end()
        assert reader.result() == [b"a"]


def test_closing_ends_the_wait_of_readers_and_writers() -> None:
    queue = QueueSource("example", maxsize=1)
    started = threading.Event()

    def write() -> None:
        started.set()
        queue.put([b"a", b"b"])

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(write)
        started.wait()
        queue.close()
        with pytest.raises(ConfigError, match="queue is closed"):
            writer.result()
        other = QueueSource("example")
        reader = pool.submit(other.read)
        other.close()
        other.close()
        assert reader.result() is None
    assert queue.read() is None


def test_nothing_can_be_put_after_the_end() -> None:
    queue = filled(b"a", name="events")
    with pytest.raises(ConfigError, match="events is ended"):
        queue.put([b"b"])
    assert drain(queue) == [b"a"]


def test_a_producer_that_starts_again_can_be_resumed_anywhere() -> None:
    payloads = [bytes([n]) for n in range(5)]
    for place in range(6):
        again = QueueSource("example")
        again.resume(json.loads(json.dumps({"records": place})))
        assert again.position() == {"records": place}
        again.put(payloads)
        again.end()
        assert drain(again) == payloads[place:]
        late = filled(*payloads)
        late.resume({"records": place})
        assert drain(late) == payloads[place:]


def test_a_producer_that_resumes_names_its_first_record() -> None:
    queue = filled(b"d", first=3)
    queue.resume({"records": 3})
    lot = queue.read()
    assert lot is not None
    assert lot.offsets.tolist() == [3]


def test_a_place_that_is_gone_is_refused() -> None:
    queue = filled(b"d", first=3)
    with pytest.raises(DataError, match=r"at record 3 and cannot go back to record 2; .* first=2"):
        queue.resume({"records": 2})
    queue.committed(queue.position())


@pytest.mark.parametrize("arguments", [{"maxsize": 0}, {"first": -1}])
def test_wrong_arguments_are_named(arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        QueueSource("example", **arguments)
