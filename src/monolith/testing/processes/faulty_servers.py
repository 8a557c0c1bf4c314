"""Real parameter servers behind proxies, hurt on purpose, while clients write a ``History``; it hears of kills too.

The servers say that they are at 127.0.0.2, where the proxies have the ports that the servers have at 127.0.0.1: so both
transports pass through a proxy, each through its own.
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

__all__ = ["HARMS", "Harm", "FaultyServers", "tcp_addresses"]

Harm: TypeAlias = Literal["kill", "hold", "cut", "hang", "lose answers"]
HARMS: tuple[Harm, ...] = ("kill", "hold", "cut", "hang", "lose answers")
"""Killed at once; stopped for a while; connections broken, held up, or broken with the answers still in them."""

PROXY_HOST = "127.0.0.2"
_RETRIES = RetryPolicy(attempts=100_000, initial_backoff_s=0.02, max_backoff_s=0.2, deadline_s=120.0)


class FaultyServers:
    """``history.shards`` servers. Also a context manager.

    Args:
        history: Is told of kills.
        folder: Where their rows are saved.
        timeout_s: For one attempt of a call of their clients.
        log_interval_s: Seconds between segments of their delta logs; None = they have none, and a kill takes away what
            was learnt since the last ``save``.
        log_slack_s: How much later than that a segment may be on the disk.
        clock: Says when.
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
        """Return a store over all of them; it goes on when one was killed."""
        return RemoteStore(
            [process.address for process in self.processes],
            [numbers_table(self._history.clients)],
            transport=transport,
            timeout_s=self._timeout_s,
            retries=_RETRIES,
            on_restart=lambda restart: None,
        )

    def save(self) -> None:
        """Make durable what is acknowledged by now."""
        durable_until = self._clock.monotonic_s()
        with self.open_store("grpc") as store:
            store.snapshot(self._snapshot(self._saved + 1))
        self._saved += 1
        self._durable_until = durable_until

    def hurt(self, harm: Harm, index: int, wait: Callable[[], object]) -> None:
        """Do something bad to one server, ``wait`` meanwhile, and let it recover."""
        process, proxies = self.processes[index], self._proxies[index]
        if harm == "kill":
            self._kill(process, wait)
            return
        begin: dict[str, Callable[[], None]] = {
            "hold": process.hold,
            "cut": lambda: _each(proxies, CuttingProxy.cut),
            "hang": lambda: _each(proxies, CuttingProxy.hang),
            "lose answers": lambda: _each(proxies, lambda proxy: proxy.hang(requests=False)),
        }
        begin[harm]()
        try:
            wait()
            if harm == "lose answers":
                _each(proxies, CuttingProxy.drop)
        finally:
            process.release()
            _each(proxies, CuttingProxy.resume)

    def hurt_at_random(self, chance: random.Random, seconds: float, harms: Sequence[Harm] = HARMS) -> tuple[Harm, int]:
        """Hurt one of them in one way, for up to ``seconds``; return what was done to which."""
        harm, index = chance.choice(list(harms)), chance.randrange(len(self.processes))
        if harm == "kill" and chance.random() < 0.7:
            self.save()
        pause = threading.Event()
        self.hurt(harm, index, lambda: pause.wait(seconds * chance.random()))
        return harm, index

    def connections(self, transport: TransportName) -> int:
        """Return how many connections of a transport pass through the proxies now."""
        return sum(pair[transport == "data_plane"].connections for pair in self._proxies)

    def logs(self) -> str:
        """Return where all servers stand, and what they said; ends them."""
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
    """Like ``data_plane_addresses``, for a test to put in its place: not the Unix sockets, which no proxy can cut."""
    tcp = [tuple(one for one in greeting.data_plane if one.startswith("tcp:")) for greeting in greetings]
    return data_plane_addresses([replace(one, data_plane=told) for one, told in zip(greetings, tcp, strict=True)])


def _log_options(folder: Path, index: int, interval_s: float | None) -> list[object]:
    return [] if interval_s is None else ["--delta-log", folder / f"log-{index}", "--delta-interval", interval_s]


def _each(proxies: Sequence[CuttingProxy], do: Callable[[CuttingProxy], None]) -> None:
    for proxy in proxies:
        do(proxy)
