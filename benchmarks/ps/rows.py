"""Cases about the rows of one table: recovered, looked up and pushed through a server, beside table and Redis."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from measure.results import PeerMissing, Result, compare, skipped
from measure.timing import Turn, interleave
from monolith.embedding import MultiTable, Table
from monolith.embedding.store import Ids, Rows
from monolith.ps import RemoteStore
from monolith.ps.transport import DataPlaneTransport
from ps.redis_peer import RedisTable
from ps.results import progress, seconds_result
from ps.server import Server
from ps.workload import BEGIN_S, TABLE, Sizes, Workload

__all__ = ["row_cases"]

CALL_S = 30.0

SCRATCH = Path(__file__).resolve().parents[2] / "build" / "bench"
"""On the disk of the checkout: a folder in memory would not be what a server recovers from."""


def row_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Fill a table here, and let servers recover it from a snapshot: one to talk to, others for the time it takes."""
    workload = Workload(sizes)
    progress(f"filling {sizes.rows:,} rows")
    tables = MultiTable([TABLE])
    for ids, rows in workload.first_rows():
        tables[TABLE.name].assign(ids, rows, BEGIN_S)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        folder = Path(scratch) / "tables"
        tables.snapshot(folder)
        few = workload.call(0)[:16]
        saved = tables[TABLE.name].lookup(few)  # pushes will change them
        if {"lookup_share", "push_share", "lookup_redis"} & set(cases):
            with Server(recover_from=folder) as server, RemoteStore([server.address], [TABLE]) as store:
                yield from _traffic(cases, workload, tables[TABLE.name], store)
        if "recover_10m_s" in cases:  # last: on virtual machines, memory that servers gave back is slow at first
            yield _recovery(sizes.recoveries, folder, few, saved)


def _recovery(times: int, folder: Path, ids: Ids, saved: Rows) -> Result:
    """Start servers on the snapshot, one after the other, until each has answered a pull."""
    seconds = []
    for number in range(times):
        progress(f"recovery {number + 1} of {times}")
        _forget(folder)
        begin = time.perf_counter()
        with Server(recover_from=folder) as server, RemoteStore([server.address], [TABLE]) as store:
            found = store.pull({TABLE.name: ids})[TABLE.name]
            seconds.append(time.perf_counter() - begin)
        if not np.array_equal(found, saved):
            raise RuntimeError("the recovered rows are not those that were saved")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return seconds_result("recover_10m_s", seconds, bytes=size)


def _forget(folder: Path) -> None:
    """Drop the files from the page cache, as after a restart of the machine."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _traffic(cases: Sequence[str], workload: Workload, table: Table, store: RemoteStore) -> Iterator[Result]:
    sizes = workload.sizes
    work = sizes.ids / 1e6

    def pull(call: int) -> object:
        return store.pull({TABLE.name: workload.call(call)})

    def push(call: int) -> object:
        ids, grads = {TABLE.name: workload.call(call)}, {TABLE.name: workload.gradient(call)}
        return store.push(ids, grads, time_s=BEGIN_S, step=call)

    def lookup(call: int) -> object:
        return table.lookup(workload.call(call))

    def apply(call: int) -> object:
        return table.apply_gradients(workload.call(call), workload.gradient(call), time_s=BEGIN_S, step=call)

    shared = {"peer_name": "the same table in this process", "transport": store.transport}
    if "lookup_share" in cases:
        progress("lookup_share")
        with RemoteStore(store.addresses, [TABLE], transport="grpc") as slow, closing(_over_tcp(store)) as tcp:
            turns: list[Turn] = [
                pull,
                lookup,
                lambda call: tcp.pull({0: workload.call(call)}, CALL_S),
                lambda call: slow.pull({TABLE.name: workload.call(call)}),
            ]
            ours, peer, by_tcp, by_grpc = interleave(turns, rounds=sizes.rounds, steps=sizes.steps)
        others = {"ratio_tcp": float(np.median(peer / by_tcp)), "ratio_grpc": float(np.median(peer / by_grpc))}
        yield compare("lookup_share", ours, peer, work, "M rows/s", **shared, **others, ms=1e3 * float(np.median(ours)))
    if "push_share" in cases:
        progress("push_share")
        ours, peer = interleave([push, apply], rounds=sizes.rounds, steps=sizes.steps)
        if not np.array_equal(store.pull({TABLE.name: workload.call(1)})[TABLE.name], table.lookup(workload.call(1))):
            raise RuntimeError("server and table disagree after the same pushes")
        yield compare("push_share", ours, peer, work, "M gradients/s", **shared, ms=1e3 * float(np.median(ours)))
    if "lookup_redis" in cases:
        yield _beside_redis(workload, table, pull)


def _over_tcp(store: RemoteStore) -> DataPlaneTransport:
    """Return the way that clients on other machines take."""
    greetings = store._greetings
    addresses = [next(one for one in greeting.data_plane if one.startswith("tcp:")) for greeting in greetings]
    return DataPlaneTransport(greetings, addresses, [TABLE.name], [TABLE.dim], timeout_s=CALL_S)


def _beside_redis(workload: Workload, table: Table, pull: Turn) -> Result:
    sizes = workload.sizes
    try:
        with RedisTable() as redis:
            progress(f"filling {redis.name}")
            for ids, _ in workload.first_rows():
                redis.fill(ids, table.lookup(ids))
            if not np.array_equal(redis.lookup(workload.call(0)), table.lookup(workload.call(0))):
                raise RuntimeError("Redis does not give back what it was given")
            redis.choose(workload.calls)
            progress("lookup_redis")
            turns = [pull, lambda call: redis.lookup(workload.call(call))]
            ours, peer = interleave(turns, rounds=max(3, sizes.rounds // 2), steps=max(1, sizes.steps // 3))
            extra = {"peer_name": redis.name, "socket": redis.socket, "keys_per_mget": redis.keys_per_mget}
            return compare("lookup_redis", ours, peer, sizes.ids / 1e6, "M rows/s", **extra)
    except PeerMissing as why:
        return skipped("lookup_redis", why)
