"""The options of ``monolith serve`` about other servers: where sub-models are, and how this one is found."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from monolith.core.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from monolith.discovery import DiscoveryGuard
    from monolith.serving import RemoteCalls, RemoteSettings
    from monolith.serving.remote_addresses import Addresses
    from monolith.serving.remote_calls import Outcome

__all__ = ["discovery_of", "registered", "remote_calls"]

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 10.0


@contextmanager
def discovery_of(
    kind: str | None, job: str | None, folder: Path | None, zk_server: str | None, consul_server: str | None
) -> Iterator[DiscoveryGuard | None]:
    """Give the discovery that is asked for, connected; None when none is."""
    from monolith.discovery import DiscoveryGuard, DiscoverySettings, open_discovery

    settings = DiscoverySettings(
        discovery_type=cast(Any, kind), job=job, folder=folder, zk_server=zk_server, consul_server=consul_server
    )
    found = open_discovery(settings, os.environ)
    if found is None:
        yield None
        return
    with DiscoveryGuard(found) as guard:
        yield guard


@contextmanager
def remote_calls(
    remotes: Sequence[str],
    file: Path | None,
    discovery: DiscoveryGuard | None,
    settings: RemoteSettings,
    on_call: Callable[[str, Outcome], None],
) -> Iterator[RemoteCalls | None]:
    """Give what asks other servers, by the one way in which they are named; None when none is."""
    from monolith.serving import DiscoveredAddresses, FileAddresses, GivenAddresses, RemoteCalls
    from monolith.serving.remote_addresses import parse_remotes

    if remotes and file is not None:
        raise ConfigError("--remote and --remote-file are both given; give one of them")
    addresses: Addresses
    if remotes:
        addresses = GivenAddresses(parse_remotes(remotes))
    elif file is not None:
        addresses = FileAddresses(file)
    elif discovery is not None:
        addresses = DiscoveredAddresses(discovery)
    else:
        yield None
        return
    with ExitStack() as stack:
        calls = RemoteCalls(addresses, settings, on_call=on_call)
        stack.callback(calls.close)
        yield calls


@contextmanager
def registered(discovery: DiscoveryGuard | None, name: str, replica: int | None, address: str) -> Iterator[None]:
    """Make this server known as one replica of a sub-model, while the context lasts."""
    if replica is None:
        yield
        return
    from monolith.discovery import ServiceInfo, advertised_host, split_address

    if discovery is None:
        raise ConfigError(f"--replica is {replica} without --discovery; say where to register")
    if not address:
        raise ConfigError(f"--replica is {replica}, but gRPC is not served; give --port")
    host, port = split_address(address)
    host = advertised_host(os.environ) if host in ("0.0.0.0", "::") else host
    service = ServiceInfo(service_type=name, index=replica, host=host, port=port)
    discovery.register(service)
    ended = threading.Event()

    def say_alive() -> None:
        while not ended.wait(_HEARTBEAT_S):
            try:
                discovery.heartbeat(service.id)
            except ClusterError as error:
                logger.warning("discovery did not take a sign of life id=%s error=%s", service.id, error)

    thread = threading.Thread(target=say_alive, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            discovery.deregister(service.id)
        except ClusterError as error:
            logger.warning("discovery did not take the end of this server id=%s error=%s", service.id, error)
