"""Item pools: looking into them, and their files beside checkpoints.

A pool file is a TFRecord file of ChannelCache messages, as the original writes it, with the channels in ascending order
and the items of each from the oldest to the newest. Files are named::

    <directory>/model.ckpt-<step>_item_pool_<worker>_<shard>_<workers>         the first pool of a pipeline
    <directory>/model.ckpt-<step>_item_pool.<n>_<worker>_<shard>_<workers>     its n-th pool, n from 1

How rows get into a pool is known to the native engine.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from monolith import _native
from monolith.core.errors import ConfigError

__all__ = ["ItemPool", "PooledItem", "pools_of", "restore_pools", "save_pools"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?:model\.ckpt-(\d+)_)?item_pool(?:\.(\d+))?_(\d+)_(\d+)_(\d+)")
_NO_STEP = -1  # of files that the original named before it put the step into the name


class PooledItem(NamedTuple):
    """One item of a pool."""

    id: int
    """As an int64 bit pattern."""
    seen: int
    """How often a row with it came by while it was in the pool."""
    sampled: int
    """How often it was drawn as a negative."""


class ItemPool:
    """Items seen lately, a queue per channel. Exclusive: look into it while its pipeline does not run.

    Args:
        feature_names: The features that belong to an item; others in a file are not taken over.
        max_items: Items per channel.
    """

    def __init__(self, feature_names: Sequence[str], max_items: int = 100_000) -> None:
        self._native = _native.ItemPool(list(feature_names), max_items)

    @classmethod
    def _of(cls, native: _native.ItemPool) -> ItemPool:
        pool = cls.__new__(cls)
        pool._native = native
        return pool

    def __len__(self) -> int:
        return len(self._native)

    @property
    def feature_names(self) -> list[str]:
        """The features that belong to an item."""
        return self._native.feature_names

    @property
    def channels(self) -> list[int]:
        """Ids of the channels, ascending."""
        return self._native.channels

    def items(self, channel: int) -> list[PooledItem]:
        """Return the items of a channel, oldest first."""
        return [PooledItem(*item) for item in self._native.items(channel)]

    def state(self, shard: int = 0, shards: int = 1) -> bytes:
        """Return the pool, or the share of it with the channels whose id modulo ``shards`` is ``shard``."""
        return self._native.state(shard, shards)

    def restore(self, *states: bytes, source: str = "item pool") -> None:
        """Replace the content by the merged content of the states.

        Raises:
            RecordCorrupt: A state is damaged; the pool is then as it was.
        """
        self._native.restore(states, source)


def pools_of(ops: Iterable[_native.RowOp]) -> list[ItemPool]:
    """Return the pools of a pipeline's operations, in their order."""
    return [ItemPool._of(pool) for op in ops for pool in op.pools]


def save_pools(
    ops: Iterable[_native.RowOp],
    directory: str | os.PathLike[str],
    step: int,
    worker: int,
    workers: int,
    *,
    shards: int = 1,
) -> list[Path]:
    """Write every pool of a pipeline, as one worker of several does with each checkpoint.

    A file appears under its name when it is complete, and the shard 0 of a pool last: where it is, the others are.

    Args:
        ops: The operations of the pipeline.
        directory: Where the checkpoints are.
        step: The checkpoint's global step.
        worker: This worker: 0 is the chief, worker i of a cluster with a chief is i + 1.
        workers: How many there are, the chief included.
        shards: Files per pool.

    Returns:
        The files, in the order written.
    """
    if step < 0 or shards < 1 or not 0 <= worker < workers:
        raise ConfigError(
            f"step {step}, worker {worker} of {workers}, {shards} shards; give a step from 0, a worker below workers, "
            "at least one shard"
        )
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, pool in enumerate(pools_of(ops)):
        for shard in reversed(range(shards)):
            name = f"model.ckpt-{step}_item_pool{f'.{number}' if number else ''}_{worker}_{shard}_{workers}"
            written.append(_write(folder / name, pool.state(shard, shards)))
    return written


def restore_pools(
    ops: Iterable[_native.RowOp], directory: str | os.PathLike[str], worker: int, *, step: int | None = None
) -> int | None:
    """Fill every pool of a pipeline from the newest files of at most ``step``.

    Workers may be more or fewer than those that saved: worker i takes the files of worker i modulo their number. Names
    without a step (of old releases of the original) are taken when no others fit.

    Returns:
        The step of the files; -1 for names without one; None without files; the pools then stay as they are.

    Raises:
        RecordCorrupt: A file is damaged.
    """
    found = _saved(Path(directory), step)
    if found is None:
        return None
    saved_step, workers, files = found
    for number, pool in enumerate(pools_of(ops)):
        paths = [files[key] for key in sorted(files) if key[:2] == (number, worker % workers)]
        if not paths:
            logger.warning("no item pool file dir=%s step=%d pool=%d worker=%d", directory, saved_step, number, worker)
            continue
        pool.restore(*(path.read_bytes() for path in paths), source=str(paths[0]))
    return saved_step


_Files = dict[tuple[int, int, int], Path]  # (pool, worker, shard) -> file


def _saved(directory: Path, step: int | None) -> tuple[int, int, _Files] | None:
    """Return the newest complete set of files: step, workers, files."""
    sets: dict[tuple[int, int], _Files] = {}
    for path in directory.iterdir() if directory.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        saved_step = _NO_STEP if match[1] is None else int(match[1])
        if step is None or saved_step <= step:
            files = sets.setdefault((saved_step, int(match[5])), {})
            files[int(match[2] or 0), int(match[3]), int(match[4])] = path
    complete = [key for key, files in sets.items() if any(shard == 0 for _, _, shard in files)]
    if not complete:
        return None
    saved_step, workers = max(complete)
    return saved_step, workers, sets[saved_step, workers]


def _write(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f"{path.name}-tmp-{secrets.token_hex(4)}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
