"""The contestants: a topic of the event log, and a Redis stream. Each appends here and is read by another process.

Redis runs without persistence, on a Unix socket, with pipelined ``XADD`` and large ``XREAD``: its fastest setting. The
event log writes to the checkout's disk with its default durability.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure.results import PeerMissing
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter

__all__ = ["append_log", "append_redis", "new_topic", "read_log", "read_redis", "redis_server"]

SCRATCH = Path(__file__).resolve().parents[2] / "build" / "bench"
PIPELINE = 1000
READ = 4000
START_S = 10.0


@contextmanager
def new_topic() -> Iterator[str]:
    """Yield the folder of topics on the checkout's disk."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        yield folder


def append_log(folder: str, name: str, messages: Iterable[tuple[bytes, bytes]]) -> None:
    """Append all messages to a topic."""
    writer = LogWriter(Topic.create(folder, name, TopicSettings()))
    write = writer.write
    for key, value in messages:
        write(value, key)
    writer.close()


def read_log(folder: str, name: str, count: int) -> int:
    """Tail a topic until ``count`` records came; return the bytes of their values."""
    source = EventLogSource(Topic.create(folder, name, TopicSettings()), "example")
    total = 0
    while count > 0 and (records := source.read()) is not None:
        count -= len(records)
        total += records.nbytes
    source.close()
    return total


@contextmanager
def redis_server() -> Iterator[str]:
    """Yield the socket of a server of this benchmark.

    Raises:
        PeerMissing: Redis or its client is not installed.
    """
    program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if program is None:
        raise PeerMissing("there is no redis-server; as root: apt-get install redis-tools")
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        path = os.path.join(folder, "redis.sock")
        arguments = ["--unixsocket", path, "--port", "0", "--save", "", "--appendonly", "no", "--dir", folder]
        child = subprocess.Popen(
            ["redis-server", *arguments], executable=program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _await(path)
            yield path
        finally:
            child.kill()
            child.wait()


def _await(path: str) -> None:
    client = connect_redis(path)
    from redis.exceptions import ConnectionError as NotYet

    deadline_s = time.monotonic() + START_S
    while True:
        try:
            client.ping()
            client.close()
            return
        except NotYet as error:
            if time.monotonic() > deadline_s:
                raise PeerMissing(f"redis-server does not start: {error}") from None
            time.sleep(0.02)


def connect_redis(path: str) -> Any:
    """Return a client.

    Raises:
        PeerMissing: The client is not installed.
    """
    try:
        import hiredis  # noqa: F401  redis-py finds it by itself
        import redis
    except ImportError as error:
        raise PeerMissing(f"{error}; pip install --no-deps -r requirements-bench.lock") from None
    return redis.Redis(unix_socket_path=path)


def append_redis(path: str, name: str, messages: Iterable[tuple[bytes, bytes]]) -> None:
    """Append all messages to a stream."""
    client = connect_redis(path)
    pipe = client.pipeline(transaction=False)
    for number, (key, value) in enumerate(messages, 1):
        pipe.xadd(name, {key: value})
        if number % PIPELINE == 0:
            pipe.execute()
    pipe.execute()
    client.close()


def read_redis(path: str, name: str, count: int) -> int:
    """Tail a stream until ``count`` records came; return the bytes of their values."""
    client = connect_redis(path)
    last, total = b"0", 0
    while count > 0:
        answer = client.xread({name: last}, count=READ, block=1000)
        entries = (answer.get(name) or answer.get(name.encode()) or [[]])[0] if isinstance(answer, dict) else []
        if isinstance(answer, list) and answer:
            entries = answer[0][1]
        if entries:
            last = entries[-1][0]
            count -= len(entries)
            total += sum(len(value) for _, fields in entries for value in fields.values())
    client.close()
    return total
