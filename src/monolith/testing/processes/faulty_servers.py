"""``FaultyServers``: real parameter servers behind proxies, with injected faults, while clients write a ``History``.

The servers advertise 127.0.0.2, where the proxies listen on the ports that the servers have at 127.0.0.1. So both
transports pass through a proxy, each through a separate one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from monolith.core.clock import Clock, SystemClock
from monolith.core.retry import RetryPolicy
from monolith.ps import RemoteStore
from monolith.ps.link import Greeting
from monolith.ps.store import TransportName
from monolith.ps.transport import data_plane_addresses
from monolith.testing.processes.cutting_proxy import CuttingProxy
from monolith.testing.processes.ps_processes import PsProcess
from monolith.testing.suites.history import History, Kill, numbers_table

__all__ = ["FAULTS", "Fault", "FaultyServers", "tcp_addresses"]

Fault: TypeAlias = Literal["kill", "hold", "cut", "hang", "lose answers", "lose requests"]
FAULTS: tuple[Fault, ...] = ("kill", "hold", "cut", "hang", "lose answers", "lose requests")
"""kill: SIGKILL. hold: paused for a while. cut: connections broken. hang: both directions delayed. lose answers and
lose requests: a one-way partition, whose delayed bytes never arrive."""

PROXY_HOST = "127.0.0.2"
_RETRIES = RetryPolicy(attempts=100_000, initial_backoff_s=0.02, max_backoff_s=0.2, deadline_s=120.0)


class FaultyServers:
    """``history.shards`` servers. Also a context manager.

    Args:
        history: Records the kills.
        folder: Folder of their saved rows.
        timeout_s: Timeout of one attempt of a client's call.
        log_interval_s: Seconds between segments of their delta logs; None = no log, and a kill loses the updates since
            the last ``save``.
        log_slack_s: Largest delay of a segment on the disk beyond that interval.
        clock: Clock of the recorded times.
    """

    def __init__(
        self,
        history: History,
        folder: Path,
        *,
        timeout_s: float = 1.0,
        log_interval_s: float | None = None,
        log_slack_s: float = 3.0,
        clock: Clock | None = None,
    ) -> None:
        self._history = history
        self._folder = folder
        self._timeout_s = timeout_s
        self._log_s = None if log_interval_s is None else log_interval_s + log_slack_s
        self._clock = clock or SystemClock()
        self._stack = ExitStack()
        self._saved = 0
        self._durable_until = self._clock.monotonic_s()
        logs = [
            [] if log_interval_s is None else _log_options(folder, i, log_interval_s) for i in range(history.shards)
        ]
        self.processes = [
            PsProcess(index, history.shards, options, advertised_host=PROXY_HOST) for index, options in enumerate(logs)
        ]
        self._proxies = [
            [
                self._stack.enter_context(CuttingProxy(f"127.0.0.1:{port}", host=PROXY_HOST, port=port))
                for port in (process.port, process.data_port)
            ]
            for process in self.processes
        ]

    def __enter__(self) -> Self:
        try:
            for process in self.processes:
                self._stack.enter_context(process)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def open_store(self, transport: TransportName) -> RemoteStore:
        """Return a store over all servers, which survives the kill of a server."""
        return RemoteStore(
            [process.address for process in self.processes],
            [numbers_table(self._history.clients)],
            transport=transport,
            timeout_s=self._timeout_s,
            retries=_RETRIES,
            on_restart=lambda restart: None,
        )

    def save(self) -> None:
        """Make all acknowledged updates durable."""
        durable_until = self._clock.monotonic_s()
        with self.open_store("grpc") as store:
            store.snapshot(self._snapshot(self._saved + 1))
        self._saved += 1
        self._durable_until = durable_until

    def inject(self, fault: Fault, index: int, wait: Callable[[], object]) -> None:
        """Inject a fault into one server, call ``wait``, and repair the server."""
        process, proxies = self.processes[index], self._proxies[index]
        if fault == "kill":
            self._kill(process, wait)
            return
        begin: dict[str, Callable[[], None]] = {
            "hold": process.hold,
            "cut": lambda: _each(proxies, CuttingProxy.cut),
            "hang": lambda: _each(proxies, CuttingProxy.hang),
            "lose answers": lambda: _each(proxies, lambda proxy: proxy.hang(requests=False)),
            "lose requests": lambda: _each(proxies, lambda proxy: proxy.hang(answers=False)),
        }
        begin[fault]()
        try:
            wait()
            if fault in ("lose answers", "lose requests"):
                _each(proxies, CuttingProxy.drop)
        finally:
            process.release()
            _each(proxies, CuttingProxy.resume)

    def inject_at_random(
        self, chance: random.Random, seconds: float, faults: Sequence[Fault] = FAULTS
    ) -> tuple[Fault, int]:
        """Inject one fault into one server, for up to ``seconds``; return the fault and the server."""
        fault, index = chance.choice(list(faults)), chance.randrange(len(self.processes))
        if fault == "kill" and chance.random() < 0.7:
            self.save()
        pause = threading.Event()
        self.inject(fault, index, lambda: pause.wait(seconds * chance.random()))
        return fault, index

    def connections(self, transport: TransportName) -> int:
        """Return the number of a transport's connections through the proxies."""
        return sum(pair[transport == "data_plane"].connections for pair in self._proxies)

    def logs(self) -> str:
        """Abort all servers; return their stacks and logs."""
        for process in self.processes:
            process.abort()
        return "\n".join(f"--- server {process.index}\n{process.log}" for process in self.processes)

    def _kill(self, process: PsProcess, wait: Callable[[], object]) -> None:
        start = self._clock.monotonic_s()
        process.kill()
        end = self._clock.monotonic_s()
        durable_until = self._durable_until if self._log_s is None else max(self._durable_until, start - self._log_s)
        self._history.kills.append(Kill(shard=process.index, start=start, end=end, durable_until=durable_until))
        wait()
        process.start(*(["--recover-from", self._snapshot(self._saved)] if self._saved else []))

    def _snapshot(self, number: int) -> Path:
        return self._folder / f"snapshot-{number}"


def tcp_addresses(greetings: Sequence[Greeting]) -> list[str] | None:
    """Return TCP addresses: replaces ``data_plane_addresses``, whose Unix sockets bypass the proxies."""
    tcp = [tuple(one for one in greeting.data_plane if one.startswith("tcp:")) for greeting in greetings]
    return data_plane_addresses([replace(one, data_plane=places) for one, places in zip(greetings, tcp, strict=True)])


def _log_options(folder: Path, index: int, interval_s: float | None) -> list[object]:
    return [] if interval_s is None else ["--delta-log", folder / f"log-{index}", "--delta-interval", interval_s]


def _each(proxies: Sequence[CuttingProxy], do: Callable[[CuttingProxy], None]) -> None:
    for proxy in proxies:
        do(proxy)
