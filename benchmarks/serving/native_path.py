"""Cases of the native request path: both interfaces, the processor time of a request, the interpreter, many cores.

The server runs in another process. The kernel counts its processor time, so other load changes it little.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from measure.results import Result, skipped
from monolith import _native
from monolith.embedding import set_threads
from monolith.serving.servable.native_model import find_onnx_library
from monolith.serving.servable.servable import Servable
from serving.exporting import Exported, scratch_folder
from serving.results import progress
from serving.servers import Generator, Load, Ours, Target, first_request
from serving.workload import Sizes, Workload

__all__ = ["native_cases"]

_BUSY_THREADS = 4
_WARM_CONNECTIONS = 20
_IDLE_CONNECTIONS = 900
_FEWEST_CORES = 8
_CORES_PER_GENERATOR = 4
"""A generator of load is one thread of Python, which a server with many threads outruns."""
_REPEATS = 200


def native_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Export once, and measure one case after the other."""
    many = os.cpu_count() or 1
    with scratch_folder() as folder, Generator() as generator:
        progress(f"exporting {sizes.ids:,} rows")
        exported = Exported(Workload(sizes), folder)
        exported.export(1)
        bench = _Bench(exported, sizes, generator)
        for case in cases:
            progress(case)
            if case in ("rps_16_cores", "threads_8_over_1") and many < _FEWEST_CORES:
                yield skipped(case, f"the machine has {many} cores, expected at least {_FEWEST_CORES}")
            else:
                yield getattr(bench, case)()


class _Bench:
    def __init__(self, exported: Exported, sizes: Sizes, generator: Generator) -> None:
        self._exported = exported
        self._sizes = sizes
        self._generator = generator

    def grpc_over_rest(self) -> Result:
        """Compare requests per second of gRPC and REST, turn by turn."""
        with self._serve() as ours:
            loads = [(self._offer(ours.grpc), self._offer(ours.rest)) for _ in range(self._sizes.rounds)]
        grpc, rest = np.array([[one.per_s, other.per_s] for one, other in loads]).T
        ratio = float(np.median(grpc / rest))
        return Result(
            case="grpc_over_rest",
            ours=float(np.median(grpc)),
            peer=float(np.median(rest)),
            ratio=ratio,
            unit="requests/s",
            rounds=len(loads),
        )

    def processor_over_parts(self) -> Result:
        """Compare the processor time of a request with the sum of parser, lookup and dense program alone."""
        parts_s = self._parts_s()
        with self._serve() as ours:
            spent = {
                name: self._processor_s(ours, target) for name, target in (("rest", ours.rest), ("grpc", ours.grpc))
            }
        worst = max(spent.values())
        return Result(
            case="processor_over_parts",
            ours=worst * 1e6,
            peer=parts_s * 1e6,
            ratio=worst / parts_s,
            unit="us",
            rounds=1,
            extra={f"{name}_us": seconds * 1e6 for name, seconds in spent.items()},
        )

    def interpreter_per_request(self) -> Result:
        """Count requests that need the interpreter: those that pass through Python in steady state."""
        with self._serve() as ours:
            before = _native_answers(ours)
            load = self._offer(ours.rest)
            asked = len(load.waits_ms)
            answered = _native_answers(ours) - before
        share = max(0, asked - answered) / asked
        return Result(case="interpreter_per_request", ours=share, peer=1.0, ratio=share, unit="of requests", rounds=1)

    def rps_busy_interpreter(self) -> Result:
        """Compare requests per second beside busy Python threads and without, over the share of the processors left."""
        with self._serve() as ours:
            free = self._offer(ours.rest).per_s
        with self._serve(busy=_BUSY_THREADS) as ours:
            busy = self._offer(ours.rest).per_s
        cores = len(os.sched_getaffinity(0))
        share = max(cores - 1, 1) / cores  # the interpreter runs one thread at a time
        return Result(
            case="rps_busy_interpreter",
            ours=busy,
            peer=free * share,
            ratio=busy / free / share,
            unit="requests/s",
            rounds=1,
            extra={"threads": _BUSY_THREADS, "processor_share": share},
        )

    def idle_connection_bytes(self) -> Result:
        """Measure the memory of the server per connection that has sent one request and waits."""
        with self._serve() as ours, ExitStack() as stack:
            _connect(ours, _WARM_CONNECTIONS, stack)
            before = _resident_bytes(ours.process.pid)
            _connect(ours, _IDLE_CONNECTIONS, stack)
            each = max(0, _resident_bytes(ours.process.pid) - before) / _IDLE_CONNECTIONS
        bar = 32 << 10
        return Result(
            case="idle_connection_bytes", ours=each, peer=float(bar), ratio=each / bar, unit="bytes", rounds=1
        )

    def rps_16_cores(self) -> Result:
        """Count requests per second of one process on all cores; the slower interface counts."""
        threads = len(os.sched_getaffinity(0))
        with self._serve(threads=threads) as ours:
            rest, grpc = self._offer_much(ours.rest), self._offer_much(ours.grpc)
        return Result(
            case="rps_16_cores",
            ours=min(rest, grpc),
            peer=1.0,
            ratio=min(rest, grpc),
            unit="requests/s",
            rounds=1,
            extra={"rest": rest, "grpc": grpc},
        )

    def threads_8_over_1(self) -> Result:
        """Compare requests per second with eight model threads and with one."""
        found = {}
        for threads in (8, 1):
            with self._serve(threads=threads) as ours:
                found[threads] = self._offer_much(ours.rest)
        return Result(
            case="threads_8_over_1",
            ours=found[8],
            peer=found[1],
            ratio=found[8] / found[1],
            unit="requests/s",
            rounds=1,
        )

    # --- measuring ---

    def _serve(self, threads: int | None = None, busy: int = 0) -> Ours:
        ours = Ours(self._exported.versions, self._exported.requests, threads or self._sizes.threads, busy_threads=busy)
        ours.await_version(1)
        return ours

    def _offer(self, target: Target) -> Load:
        sizes = self._sizes
        return self._generator.offer(target, clients=sizes.clients, seconds=sizes.turn_s, settle_s=sizes.settle_s)

    def _offer_much(self, target: Target) -> float:
        """Return the requests per second of several generators together."""
        count = max(1, len(os.sched_getaffinity(0)) // _CORES_PER_GENERATOR)
        sizes = self._sizes
        with ExitStack() as stack:
            generators = [stack.enter_context(Generator()) for _ in range(count)]
            for each in generators:
                each.begin(target, clients=sizes.clients, seconds=sizes.turn_s, settle_s=sizes.settle_s)
            return sum(each.end().per_s for each in generators)

    def _processor_s(self, ours: Ours, target: Target) -> float:
        """Return the processor time of the server per request."""
        self._offer(target)
        before = _processor_s(ours.process.pid)
        load = self._generator.offer(target, clients=self._sizes.clients, seconds=2 * self._sizes.turn_s, settle_s=0.0)
        return (_processor_s(ours.process.pid) - before) / len(load.waits_ms)

    def _parts_s(self) -> float:
        """Return the processor time of parser, lookup and dense program for one request, without a server."""
        set_threads(1)
        servable = Servable.load(self._exported.versions / "1")
        servable.open_native(find_onnx_library())
        native = servable.native
        assert native is not None
        records = _native.Records([first_request(self._exported.requests["example_batch"])])
        best = np.inf
        for _ in range(5):
            begin_s = time.thread_time()
            for _ in range(_REPEATS):
                native.score(records, "example_batch", [0])
            best = min(best, (time.thread_time() - begin_s) / _REPEATS)
        servable.close()
        return float(best)


def _connect(ours: Ours, count: int, stack: ExitStack) -> None:
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", ours.rest.port), timeout=60))
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.recv(1000)


def _processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _native_answers(ours: Ours) -> int:
    """Return the requests that the native path has answered."""
    start = "monolith_serving_native_requests_total"
    return int(sum(float(line.rpartition(" ")[2]) for line in ours.metrics() if line.startswith(start)))
