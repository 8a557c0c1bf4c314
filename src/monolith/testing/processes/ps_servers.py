"""Parameter servers in this process, on free loopback ports: for tests and examples that need a few."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from monolith.core.config_sections import replace_settings
from monolith.ps import ParameterServer, ServerConfig

__all__ = ["PsServers"]


class PsServers:
    """``count`` servers of one job, started when the ``with`` block begins and stopped when it ends.

    Args:
        count: Number of servers.
        config: Settings except the index. With a ``delta_log``, each server has a separate folder in it.
    """

    def __init__(self, count: int = 1, config: ServerConfig | None = None) -> None:
        base = config or ServerConfig()
        self._configs = [_one_of(base, index, count) for index in range(count)]
        self.servers: list[ParameterServer] = []
        """The servers, by index."""

    @property
    def addresses(self) -> list[str]:
        """Their addresses, by index."""
        return [server.address for server in self.servers]

    def restart(self, index: int, config: ServerConfig | None = None) -> None:
        """Stop a server and start a new one on its port, empty unless ``config`` names a state to recover."""
        old = self.servers[index]
        port = int(old.address.rpartition(":")[2])
        old.stop(0.0)
        base = self._configs[index] if config is None else _one_of(config, index, len(self._configs))
        self.servers[index] = ParameterServer(replace_settings(base, port=port))
        self.servers[index].start()

    def __enter__(self) -> Self:
        try:
            for config in self._configs:
                server = ParameterServer(config)
                self.servers.append(server)
                server.start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for server in self.servers:
            server.stop(0.0)


def _one_of(config: ServerConfig, index: int, shards: int) -> ServerConfig:
    log = None if config.recovery.delta_log is None else config.recovery.delta_log / f"ps_{index}"
    return replace_settings(config, index=index, shards=shards, delta_log=log)
