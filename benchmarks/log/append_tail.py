"""Cases of one writer and one reader process: seconds from the first write until the reader has every message."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from log.results import progress
from log.streams import append_log, append_redis, new_topic, read_log, read_redis, redis_server
from log.workload import Sizes, make_messages
from measure.results import PeerMissing, Result, compare, skipped

__all__ = ["append_tail_cases"]

PATIENCE_S = 600.0
_VALUE_BYTES = {"log_redis": 256, "log_redis_4096": 4096}


def append_tail_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Yield the results of the cases ``log_redis`` and ``log_redis_4096``."""
    for case in cases:
        try:
            with new_topic() as folder, redis_server() as path:
                yield _measure(case, sizes, folder, path)
        except PeerMissing as error:
            yield skipped(case, error)


def _measure(case: str, sizes: Sizes, folder: str, path: str) -> Result:
    value_bytes = _VALUE_BYTES[case]
    count = sizes.megabytes * 1_000_000 // value_bytes
    messages = make_messages(value_bytes)
    ours, peer = [], []
    for number in range(sizes.rounds):
        progress(f"{case}, round {number + 1} of {sizes.rounds}")
        name = f"round-{number}"
        turns = [
            lambda name=name: ours.append(_turn(append_log, read_log, folder, name, messages, count)),
            lambda name=name: peer.append(_turn(append_redis, read_redis, path, name, messages, count)),
        ]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    return compare(
        case,
        np.array(ours),
        np.array(peer),
        count * value_bytes / 1e6,
        "MB/s",
        peer_name="Redis Streams, no persistence, Unix socket, pipelines of 1000",
    )


def _turn(
    append: Callable[..., None],
    read: Callable[..., int],
    place: str,
    name: str,
    messages: Sequence[tuple[bytes, bytes]],
    count: int,
) -> float:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_read, args=(there, read, place, name, count), daemon=True)
    child.start()
    if not here.poll(PATIENCE_S) or here.recv() != "ready":
        raise RuntimeError("the reader does not start")
    begin = time.perf_counter()
    append(place, name, itertools.islice(itertools.cycle(messages), count))
    if not here.poll(PATIENCE_S):
        raise RuntimeError(f"the reader of {name} has not read all messages")
    total = here.recv()
    seconds = time.perf_counter() - begin
    child.join()
    if total != count * len(messages[0][1]):
        raise RuntimeError(f"the reader got {total} bytes, expected {count * len(messages[0][1])}")
    return seconds


def _read(pipe: Any, read: Callable[..., int], place: str, name: str, count: int) -> None:
    pipe.send("ready")
    pipe.send(read(place, name, count))
