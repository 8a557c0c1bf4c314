"""The options of ``monolith serve`` about other servers: where sub-models are, and how this one is found.

What is asked of those servers is not known here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from monolith.cli._serve_security import client_security
from monolith.core.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from monolith.discovery import DiscoveryGuard, ServiceInfo
    from monolith.serving import RemoteCalls, RemoteSettings
    from monolith.serving.remote_addresses import Addresses
    from monolith.serving.remote_calls import Outcome

__all__ = ["DiscoveryOptions", "RemoteOptions"]

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """Where an entry finds its tables, and how long it waits for them."""

    remote: Annotated[
        list[str] | None, typer.Option(help="Of an entry: PART=host:port,... with all replicas; once for each part.")
    ] = None
    remote_file: Annotated[
        Path | None, typer.Option(help='The same as JSON, {"ps_0": ["host:port"]}, read again when it changes.')
    ] = None
    remote_timeout_ms: Annotated[float, typer.Option(help="Longest time for rows or dense part of a batch.")] = 1000.0
    hedge_ms: Annotated[
        float | None, typer.Option(help="Ask another replica too when one takes so long; off when not given.")
    ] = None
    allow_degraded: Annotated[
        bool, typer.Option(help="Answer without the rows of a missing shard; such answers are marked and counted.")
    ] = False
    remote_token_file: Annotated[Path | None, typer.Option(help="Bearer token of the servers that are asked.")] = None
    remote_ca: Annotated[Path | None, typer.Option(help="Authority of their certificates (PEM); turns TLS on.")] = None
    remote_cert: Annotated[Path | None, typer.Option(help="Certificate to show to those that ask for one (PEM).")] = (
        None
    )
    remote_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None
    remote_server_name: Annotated[
        str, typer.Option(help="Name in their certificates, where it is not the host that is dialled.")
    ] = ""

    @contextmanager
    def calls(
        self, discovery: DiscoveryGuard | None, max_message_bytes: int, on_call: Callable[[str, Outcome], None]
    ) -> Iterator[RemoteCalls | None]:
        """Give what asks other servers, by the one way in which they are named; None when none is."""
        from monolith.serving import RemoteCalls

        settings = self._settings(max_message_bytes)
        addresses = self._addresses(discovery)
        if addresses is None:
            yield None
            return
        with ExitStack() as stack:
            calls = RemoteCalls(addresses, settings, on_call=on_call)
            stack.callback(calls.close)
            yield calls

    def _settings(self, max_message_bytes: int) -> RemoteSettings:
        from monolith.serving import RemoteSettings

        return RemoteSettings(
            timeout_s=self.remote_timeout_ms / 1e3,
            hedge_s=None if self.hedge_ms is None else self.hedge_ms / 1e3,
            allow_degraded=self.allow_degraded,
            max_message_bytes=max_message_bytes,
            security=client_security(
                "remote",
                ca=self.remote_ca,
                cert=self.remote_cert,
                key=self.remote_key,
                server_name=self.remote_server_name,
                token_file=self.remote_token_file,
            ),
        )

    def _addresses(self, discovery: DiscoveryGuard | None) -> Addresses | None:
        from monolith.serving import DiscoveredAddresses, FileAddresses, GivenAddresses
        from monolith.serving.remote_addresses import parse_remotes

        if self.remote and self.remote_file is not None:
            raise ConfigError("--remote and --remote-file are both given; give one of them")
        if self.remote:
            return GivenAddresses(parse_remotes(self.remote))
        if self.remote_file is not None:
            return FileAddresses(self.remote_file)
        return None if discovery is None else DiscoveredAddresses(discovery)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """Where servers of sub-models are found, and as what this one is."""

    discovery: Annotated[
        str | None, typer.Option(help="Where servers of sub-models are found: file, zookeeper or consul.")
    ] = None
    replica: Annotated[
        int | None, typer.Option(min=0, help="Register there as this replica of --name, such as ps_0.")
    ] = None
    job: Annotated[str | None, typer.Option(help="Name of the job in ZooKeeper or Consul.")] = None
    discovery_folder: Annotated[Path | None, typer.Option(help="Folder of discovery by file.")] = None
    zk_server: Annotated[str | None, typer.Option(help="host:port,... of ZooKeeper.")] = None
    consul_server: Annotated[str | None, typer.Option(help="host:port of the Consul agent.")] = None

    @contextmanager
    def opened(self) -> Iterator[DiscoveryGuard | None]:
        """Give the discovery that is asked for, connected; None when none is."""
        from monolith.discovery import DiscoveryGuard, DiscoverySettings, open_discovery

        settings = DiscoverySettings(
            discovery_type=cast(Any, self.discovery),
            job=self.job,
            folder=self.discovery_folder,
            zk_server=self.zk_server,
            consul_server=self.consul_server,
        )
        found = open_discovery(settings, os.environ)
        if found is None:
            yield None
            return
        with DiscoveryGuard(found) as guard:
            yield guard

    @contextmanager
    def registered(self, discovery: DiscoveryGuard | None, name: str, address: str) -> Iterator[None]:
        """Make this server known as one replica of a sub-model, while the context lasts."""
        if self.replica is None:
            yield
            return
        service = self._service(discovery, name, address)
        assert discovery is not None
        discovery.register(service)
        try:
            with _alive(discovery, service.id):
                yield
        finally:
            try:
                discovery.deregister(service.id)
            except ClusterError as error:
                logger.warning("discovery did not take the end of this server id=%s error=%s", service.id, error)

    def _service(self, discovery: DiscoveryGuard | None, name: str, address: str) -> ServiceInfo:
        from monolith.discovery import ServiceInfo, advertised_host, split_address

        assert self.replica is not None
        if discovery is None:
            raise ConfigError(f"--replica is {self.replica} without --discovery; say where to register")
        if not address:
            raise ConfigError(f"--replica is {self.replica}, but gRPC is not served; give --port")
        host, port = split_address(address)
        host = advertised_host(os.environ) if host in ("0.0.0.0", "::") else host
        return ServiceInfo(service_type=name, index=self.replica, host=host, port=port)


@contextmanager
def _alive(discovery: DiscoveryGuard, service_id: str) -> Iterator[None]:
    """Give signs of life while the context lasts."""
    ended = threading.Event()

    def say_alive() -> None:
        while not ended.wait(_HEARTBEAT_S):
            try:
                discovery.heartbeat(service_id)
            except ClusterError as error:
                logger.warning("discovery did not take a sign of life id=%s error=%s", service_id, error)

    thread = threading.Thread(target=say_alive, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
