"""Parse push targets: check and normalize addresses, find duplicates, and assign shards of ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from monolith.core.errors import ConfigError

__all__ = ["FleetAddress", "PushTarget", "canonical_target", "fleet_targets", "parse_targets", "split_fleets"]

_PORTS = {"http": 80, "https": 443}
_SHARD = re.compile(r"(?:.*:)?ps_(\d+)")
_FLEET = "zk://"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTarget:
    """One model on one server."""

    model: str
    """Name of the model on the server."""
    address: str
    """``host:port``."""
    is_encrypted: bool = False
    """Whether the connection uses TLS."""
    shard: tuple[int, int] = (0, 1)
    """(index, count): the target gets ids with ``uint64(id) % count == index``."""

    def __str__(self) -> str:
        return f"{self.model}={self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAddress:
    """A fleet whose servers are found through ZooKeeper."""

    zk_servers: str
    """``host:port,...``."""
    bzid: str
    model: str
    """Base name of the model in the fleet."""


def split_fleets(given: Sequence[str]) -> tuple[tuple[str, ...], tuple[FleetAddress, ...]]:
    """Return the fixed entries of the setting ``sync_targets``, and its fleets ``zk://host:port,.../BZID/MODEL``.

    >>> split_fleets(["serving:8500", "zk://zk1:2181,zk2:2181/ads/clicks"])[1][0].model
    'clicks'

    Raises:
        ConfigError: A fleet lacks a part.
    """
    fleets = []
    for text in given:
        if not text.startswith(_FLEET):
            continue
        servers, *path = text.removeprefix(_FLEET).split("/")
        if len(path) != 2 or not all((servers, *path)) or any(sign.isspace() for sign in text):
            raise ConfigError(f"sync_targets has the entry {text!r}, expected zk://host:port,.../BZID/MODEL")
        fleets.append(FleetAddress(zk_servers=servers, bzid=path[0], model=path[1]))
    return tuple(text for text in given if not text.startswith(_FLEET)), tuple(fleets)


def fleet_targets(servers: Mapping[int, Sequence[str]]) -> tuple[PushTarget, ...]:
    """Return the targets of a fleet: every server gets the ids of its shard, as the model ``ps_<shard>``.

    Args:
        servers: Shard to addresses.
    """
    count = max(servers, default=-1) + 1
    return tuple(
        PushTarget(model=f"ps_{shard}", address=address, shard=(shard, count))
        for shard, addresses in sorted(servers.items())
        for address in addresses
    )


def canonical_target(target: str) -> str:
    """Return ``scheme://host:port`` in lower case, so that equal targets have equal text.

    Raises:
        ValueError: The address is invalid; the text has the reason.

    >>> canonical_target("Serving:80/"), canonical_target("HTTPS://serving")
    ('http://serving:80', 'https://serving:443')
    """
    url = urlsplit(target if "://" in target else f"http://{target}")
    scheme = url.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError("endpoint scheme must be http or https")
    if url.path not in ("", "/") or "?" in target or "#" in target:
        raise ValueError("endpoint must not include a URL path or query")
    if not url.netloc or not url.hostname:
        raise ValueError("endpoint is missing host:port authority")
    if "@" in url.netloc:
        raise ValueError("endpoint must not include userinfo")
    port = url.port if url.port is not None else _PORTS[scheme]
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{scheme}://{host}:{port}"


def parse_targets(given: Sequence[str], model: str = "default") -> tuple[PushTarget, ...]:
    """Return the targets of the setting ``sync_targets``.

    Each of the sub-models ``ps_0``, ``ps_1``, ... of a distributed export gets the ids of its shard.

    >>> [str(target) for target in parse_targets(["serving:8500", "clicks=HTTP://Other:8500/"])]
    ['default=serving:8500', 'clicks=other:8500']

    Args:
        given: ``host:port``, ``http(s)://host:port``, or ``MODEL=`` and one of these.
        model: Model of entries without a name.

    Raises:
        ConfigError: An address is invalid, or two entries are equal.
    """
    if not model or any(sign.isspace() for sign in model):
        raise ConfigError(f"sync_model_name is {model!r}, expected a name without whitespace")
    found: list[PushTarget] = []
    for text in given:
        name, equals, address = text.partition("=")
        if not equals:
            name, address = model, text
        if not name or not address or text != text.strip() or any(sign.isspace() for sign in text):
            raise ConfigError(f"sync_targets has the entry {text!r}; give host:port, or MODEL=host:port")
        try:
            scheme, _, place = canonical_target(address).partition("://")
        except ValueError as error:
            raise ConfigError(f"sync_targets has the entry {text!r}: {error}; give host:port") from error
        target = PushTarget(model=name, address=place, is_encrypted=scheme == "https")
        if str(target) in map(str, found):
            raise ConfigError(f"sync_targets has {text!r} twice, which is {target}; name every model of a server once")
        found.append(target)
    return _sharded(found)


def _sharded(targets: list[PushTarget]) -> tuple[PushTarget, ...]:
    shards = {target.model: int(match[1]) for target in targets if (match := _SHARD.fullmatch(target.model))}
    count = len(set(shards.values()))
    if sorted(set(shards.values())) != list(range(count)):
        raise ConfigError(
            f"sync_targets names the sub-models {', '.join(sorted(shards))}; give all of ps_0, ps_1, ... of the export"
        )
    return tuple(
        PushTarget(
            model=each.model,
            address=each.address,
            is_encrypted=each.is_encrypted,
            shard=(shards[each.model], count) if each.model in shards else (0, 1),
        )
        for each in targets
    )
