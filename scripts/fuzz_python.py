"""Fuzz the parsers in Python: payloads of agents in ZooKeeper, and messages of a feed of cuts.

    python scripts/fuzz_python.py 60                   half of a minute for each target
    python scripts/fuzz_python.py 60 stream_message    one target
    python scripts/fuzz_python.py --count 500 --seed 3 so many executions of each target

A target changes sound inputs at random. The parser must accept the result, or raise an error of Monolith; any other
outcome ends the run with the seed and the number of the execution, which repeat it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from monolith import _native
from monolith.agent.records import (
    ContainerServiceInfo,
    ModelMeta,
    PublishMeta,
    Record,
    RecordInvalid,
    ReplicaMeta,
    ResourceSpec,
    SavedModelDeployConfig,
)
from monolith.core.clock import SystemClock
from monolith.core.errors import ArtifactError
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.sync import LocalRowLog, Publisher
from monolith.sync.feed_cache import FeedCache
from monolith.sync.feed_messages import FollowResponse
from monolith.sync.feed_pieces import CutPieces

Random = random.Random
Run = Callable[[Random], None]

RECORDS: tuple[type[Record], ...] = (
    ModelMeta,
    ResourceSpec,
    PublishMeta,
    ReplicaMeta,
    SavedModelDeployConfig,
    ContainerServiceInfo,
)
_WORDS = (b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 25, b'"\\ud800"', b"[", b"{", b"}", b'"', b"\x00", b"\xff")


def expect(holds: bool, reason: str) -> None:
    """Raise an error unless a rule holds."""
    if not holds:
        raise AssertionError(reason)


def mutate(content: bytes, draw: Random, words: tuple[bytes, ...] = ()) -> bytes:
    """Return bytes with one to four random changes: flipped, removed, inserted, repeated or moved."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at, end = sorted(draw.randint(0, len(changed)) for _ in range(2))
        end = min(end, at + 64)
        kind = draw.randrange(5 if words else 4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del changed[at:end]
        elif kind == 2:
            changed[at:at] = draw.randbytes(draw.randint(1, 8))
        elif kind == 3:
            changed[at:at] = changed[at:end]
        elif kind == 4:
            changed[at:end] = draw.choice(words)
    return bytes(changed)


class AgentPayload:
    """Contents of nodes: a record that comes back as it was, or ``RecordInvalid``."""

    def __init__(self, folder: Path) -> None:
        self._values = json.dumps(
            {
                name: draw
                for kind, draw in zip(RECORDS, itertools.cycle((1, "a", None, 0.5, True, {"a": "b"}, ["a"])))
                for name in kind.__dataclass_fields__
            }
        ).encode()

    def run(self, draw: Random) -> None:
        """Read one changed payload."""
        kind = draw.choice(RECORDS)
        sound = draw.choice((kind().to_bytes() if _has_defaults(kind) else b"{}", self._values, b"{}"))
        content = mutate(sound, draw, _WORDS)
        try:
            record = kind.from_bytes(content)
        except RecordInvalid as error:
            expect(bool(str(error)), "an error has no text")
            return
        expect(kind.from_bytes(record.to_bytes()) == record, "another record comes back")


def _has_defaults(kind: type[Record]) -> bool:
    try:
        kind()
    except TypeError:
        return False
    return True


class StreamMessage:
    """Messages of a feed, one per execution: a damaged transfer raises ``ArtifactError``, a sound one completes a cut.

    A damaged message comes at any place of a transfer. The next transfer starts after a refusal or after the last
    message.
    """

    def __init__(self, folder: Path) -> None:
        tables = MultiTable([TableSpec("item", [SliceSpec(2, optimizer=Sgd(learning_rate=1.0))])])
        weights = {"w": np.zeros(3, np.float32)}
        logs = LocalRowLog(folder / "published", tables, clock=SystemClock())
        publisher = Publisher(folder / "published", logs, lambda: weights, clock=SystemClock())
        for step in range(3):
            tables["item"].assign([step, 7], [[step, 1.0], [2.0, step]])
            publisher.publish()
        assert publisher.newest is not None
        self._number = publisher.newest.number
        self._sound = [each.SerializeToString() for each in CutPieces(folder / "published", {}).to(publisher.newest)]
        publisher.close()
        self._folder = folder / "cache"
        self._cache = FeedCache(self._folder)
        self._at, self._is_sound = 0, True

    def run(self, draw: Random) -> None:
        """Take the next message of a transfer, changed in one of four executions."""
        content = self._sound[self._at]
        self._at += 1
        if draw.random() < 0.25:
            content, self._is_sound = self._change(content, draw), False
        cut = None
        try:
            cut = self._cache.take(FollowResponse.FromString(content))
        except (DecodeError, ArtifactError) as error:  # the subscription reconnects
            expect(bool(str(error)) and not self._is_sound, f"a sound transfer is refused: {error}")
            self._at = len(self._sound)
        if self._at < len(self._sound):
            return
        if self._is_sound:
            expect(cut is not None and cut.number == self._number, "a sound transfer does not complete its cut")
            expect(bool(self._cache.positions()), "a complete cache has no positions")
        if draw.random() < 0.05:  # a restart of the process
            self._cache.close()
            self._cache = FeedCache(self._folder)
        self._cache.begin()
        self._cache.positions()
        self._at, self._is_sound = 0, True

    def _change(self, content: bytes, draw: Random) -> bytes:
        kind = draw.randrange(3)
        if kind == 0:  # a lost message, or one out of place
            return draw.choice(self._sound)
        if kind == 1:
            return mutate(content, draw)
        message = FollowResponse.FromString(content)  # damage behind a right checksum
        message.content = mutate(message.content, draw, _WORDS)
        message.size = message.size if draw.random() < 0.3 else len(message.content)
        message.crc32c = _native.crc32c(message.content)
        return message.SerializeToString()


TARGETS: dict[str, type[AgentPayload | StreamMessage]] = {
    "agent_payload": AgentPayload,
    "stream_message": StreamMessage,
}


def fuzz(name: str, seed: int, seconds: float, count: int) -> int:
    """Run a target for some seconds, or ``count`` times if that is not 0; return the number of executions."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files in memory: several times the executions
    with tempfile.TemporaryDirectory(prefix="monolith-fuzz-", dir=memory) as folder:
        target = TARGETS[name](Path(folder))
        end_s = time.monotonic() + seconds
        executions = 0
        while executions < count if count else time.monotonic() < end_s:
            try:
                target.run(Random(f"{name} {seed} {executions}"))
            except Exception as error:
                raise RuntimeError(f"{name} failed: seed {seed}, execution {executions}") from error
            executions += 1
    return executions


def main() -> None:
    """Run the targets and print their executions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("target", nargs="?", choices=sorted(TARGETS))
    parser.add_argument("--count", type=int, default=0, help="executions per target, instead of a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    chosen = [arguments.target] if arguments.target else sorted(TARGETS)
    for name in chosen:
        started_s = time.process_time()
        executions = fuzz(name, arguments.seed, arguments.seconds / len(chosen), arguments.count)
        rate = executions / max(1e-9, time.process_time() - started_s)
        print(f"{name:16} {executions} executions, {rate:.0f} per processor second, seed {arguments.seed}, ok")


if __name__ == "__main__":
    sys.exit(main())
