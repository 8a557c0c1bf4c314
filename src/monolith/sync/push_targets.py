"""Parse push targets: check and normalize addresses, find duplicates, and assign shards of ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from monolith.core.errors import ConfigError

__all__ = ["PushTarget", "canonical_target", "parse_targets"]

_PORTS = {"http": 80, "https": 443}
_SHARD = re.compile(r"(?:.*:)?ps_(\d+)")


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
