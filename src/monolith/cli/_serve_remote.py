"""Options of ``monolith serve`` for distributed exports: the servers of the sub-models, and service discovery."""

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
    from monolith.serving.remote.addresses import Addresses
    from monolith.serving.remote.calls import Outcome

__all__ = ["DiscoveryOptions", "RemoteOptions"]

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """Addresses of the ps and dense servers of an entry, and the limits of calls to them."""

    remote: Annotated[
        list[str] | None, typer.Option(help="For an entry: PART=host:port,... with all replicas; repeat for each part.")
    ] = None
    remote_file: Annotated[
        Path | None, typer.Option(help='The same as a JSON file, {"ps_0": ["host:port"]}; reloaded when it changes.')
    ] = None
    remote_timeout_ms: Annotated[float, typer.Option(help="Timeout of a call to a ps or dense server, in ms.")] = 1000.0
    hedge_ms: Annotated[
        float | None, typer.Option(help="Call a second replica if the first has not answered after this many ms.")
    ] = None
    allow_degraded: Annotated[
        bool, typer.Option(help="Answer without the rows of a missing shard; such answers are marked and counted.")
    ] = False
    remote_token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token of the ps and dense servers.")
    ] = None
    remote_ca: Annotated[
        Path | None, typer.Option(help="CA of the ps and dense servers' certificates (PEM); turns TLS on.")
    ] = None
    remote_cert: Annotated[Path | None, typer.Option(help="Client certificate for servers that require one (PEM).")] = (
        None
    )
    remote_key: Annotated[Path | None, typer.Option(help="Private key of --remote-cert (PEM).")] = None
    remote_server_name: Annotated[
        str, typer.Option(help="Server name in the certificates, if it differs from the host.")
    ] = ""

    @contextmanager
    def calls(
        self, discovery: DiscoveryGuard | None, max_message_bytes: int, on_call: Callable[[str, Outcome], None]
    ) -> Iterator[RemoteCalls | None]:
        """Yield the client of the ps and dense servers; None if no option names their addresses."""
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
        from monolith.serving.remote.addresses import parse_remotes

        if self.remote and self.remote_file is not None:
            raise ConfigError("--remote and --remote-file are both given, expected one; leave one of them out")
        if self.remote:
            return GivenAddresses(parse_remotes(self.remote))
        if self.remote_file is not None:
            return FileAddresses(self.remote_file)
        return None if discovery is None else DiscoveredAddresses(discovery)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """Service discovery: how servers of sub-models find each other."""

    discovery: Annotated[
        str | None, typer.Option(help="Service discovery for servers of sub-models: file, zookeeper or consul.")
    ] = None
    replica: Annotated[
        int | None, typer.Option(min=0, help="Register this server as replica number N of --name, such as ps_0.")
    ] = None
    job: Annotated[str | None, typer.Option(help="Job name in ZooKeeper or Consul.")] = None
    discovery_folder: Annotated[Path | None, typer.Option(help="Shared folder, for --discovery file.")] = None
    zk_server: Annotated[str | None, typer.Option(help="ZooKeeper servers, host:port,...")] = None
    consul_server: Annotated[str | None, typer.Option(help="Consul agent, host:port.")] = None

    @contextmanager
    def opened(self) -> Iterator[DiscoveryGuard | None]:
        """Yield the connected discovery; None without --discovery."""
        from monolith.discovery import DiscoveryGuard, DiscoverySettings, open_discovery

        settings = DiscoverySettings(
            discovery_type=cast(Any, self.discovery),
            job=self.job,
            folder=self.discovery_folder,
            zk_server=self.zk_server,
            consul_server=self.consul_server,
        )
        discovery = open_discovery(settings, os.environ)
        if discovery is None:
            yield None
            return
        with DiscoveryGuard(discovery) as guard:
            yield guard

    @contextmanager
    def registered(self, discovery: DiscoveryGuard | None, name: str, address: str) -> Iterator[None]:
        """Register this server as a replica of a sub-model, and deregister it when the context ends."""
        if self.replica is None:
            yield
            return
        service = self._service(discovery, name, address)
        assert discovery is not None
        discovery.register(service)
        try:
            with _heartbeat(discovery, service.id):
                yield
        finally:
            try:
                discovery.deregister(service.id)
            except ClusterError as error:
                logger.warning("deregistration failed id=%s error=%s", service.id, error)

    def _service(self, discovery: DiscoveryGuard | None, name: str, address: str) -> ServiceInfo:
        from monolith.discovery import ServiceInfo, advertised_host, split_address

        assert self.replica is not None
        if discovery is None:
            raise ConfigError(f"--replica is {self.replica} and --discovery is None; give --discovery to register in")
        if not address:
            raise ConfigError(f"--replica is {self.replica} and --port is -1, expected a gRPC port; give --port")
        host, port = split_address(address)
        host = advertised_host(os.environ) if host in ("0.0.0.0", "::") else host
        return ServiceInfo(service_type=name, index=self.replica, host=host, port=port)


@contextmanager
def _heartbeat(discovery: DiscoveryGuard, service_id: str) -> Iterator[None]:
    """Send heartbeats while the context lasts."""
    ended = threading.Event()

    def send_heartbeats() -> None:
        while not ended.wait(_HEARTBEAT_S):
            try:
                discovery.heartbeat(service_id)
            except ClusterError as error:
                logger.warning("heartbeat failed id=%s error=%s", service_id, error)

    thread = threading.Thread(target=send_heartbeats, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
