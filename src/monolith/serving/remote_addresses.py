"""Where the sub-models of an entry are served: addresses that were given, in an agent's file, or found by discovery.

Addresses only; who is asked first, and what is said, is not known here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from monolith.core.errors import ConfigError
from monolith.discovery import Discovery, Event, Removed, Watch, split_address

__all__ = ["Addresses", "DiscoveredAddresses", "FileAddresses", "GivenAddresses", "Place", "parse_remotes"]

logger = logging.getLogger(__name__)

_OLD_KEY = re.compile(r"(ps|dense):([0-9]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one sub-model is served."""

    name: str
    """What the servers call it."""
    addresses: tuple[str, ...]
    """``host:port`` of gRPC of each replica."""


class Addresses(Protocol):
    """Who serves the sub-models. Safe to use from several threads."""

    def find(self, model: str, part: str) -> Place:
        """Return where ``part`` (``ps_0``, ``dense_0``, ...) of a model is served now; no addresses when nowhere.

        Raises:
            ClusterError: Discovery cannot be asked.
        """

    def close(self) -> None:
        """End watches; a second call does nothing."""


class GivenAddresses:
    """Addresses that do not change.

    Args:
        places: Sub-model to its replicas. A key is ``ps_0``, or ``model:ps_0`` where several models are asked; it is
            also what the servers call the sub-model.
    """

    def __init__(self, places: Mapping[str, Iterable[str]]) -> None:
        self._places = _checked(places, "remote")

    def find(self, model: str, part: str) -> Place:
        """Return where a sub-model is served."""
        return _found(self._places, model, part)

    def close(self) -> None:
        """Do nothing."""


class FileAddresses:
    """Addresses in a file of JSON, ``{"ps_0": ["host:port", ...], ...}``, that an agent replaces when they change.

    The keys are those of ``GivenAddresses``; ``ps:0`` is read as ``ps_0``. A file that cannot be read changes nothing.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read now.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp = _stamp(self._path)
        self._places = self._read()

    def find(self, model: str, part: str) -> Place:
        """Return where a sub-model is served, after the file was read again if it has changed."""
        stamp = _stamp(self._path)
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._places = self._read()
                except ConfigError as error:
                    logger.warning("addresses stay as they are error=%s", error)
            places = self._places
        return _found(places, model, part)

    def close(self) -> None:
        """Do nothing."""

    def _read(self) -> dict[str, tuple[str, ...]]:
        try:
            body: Any = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"file of addresses {str(self._path)!r} cannot be read ({error}); write JSON like "
                '{"ps_0": ["host:port"]}'
            ) from error
        if not isinstance(body, dict) or not all(isinstance(each, list) for each in body.values()):
            raise ConfigError(f'{str(self._path)!r} holds no addresses; write JSON like {{"ps_0": ["host:port"]}}')
        return _checked(body, str(self._path))


class DiscoveredAddresses:
    """Addresses of services that registered: the service type is the sub-model's name, each index a replica.

    Args:
        discovery: Where they register; connected.
    """

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._watches: dict[str, Watch] = {}
        self._found: dict[str, dict[str, str]] = {}

    def find(self, model: str, part: str) -> Place:
        """Return where a sub-model is served; the first call for each begins to watch."""
        if part not in self._watches:
            with self._starting:
                if part not in self._watches:
                    self._found.setdefault(part, {})
                    self._watches[part] = self._discovery.watch(part, lambda event: self._note(part, event))
        with self._lock:
            return Place(part, tuple(sorted(set(self._found[part].values()))))

    def close(self) -> None:
        """End the watches."""
        with self._starting:
            for watch in self._watches.values():
                watch.close()

    def _note(self, part: str, event: Event) -> None:
        service = event.service
        with self._lock:
            if isinstance(event, Removed):
                self._found[part].pop(service.id, None)
            else:
                self._found[part][service.id] = service.address


def parse_remotes(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the addresses of ``PART=host:port,host:port`` texts.

    >>> parse_remotes(["ps_0=a:1,b:1", "ps_1=c:1"])
    {'ps_0': ('a:1', 'b:1'), 'ps_1': ('c:1',)}

    Raises:
        ConfigError: A text is not of this form, or names a part for the second time.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        if not key or not equals or not rest:
            raise ConfigError(f"--remote is {text!r}; write PART=host:port,host:port, such as ps_0=10.0.0.7:8500")
        if key in found:
            raise ConfigError(f"--remote names {key!r} twice; give all its replicas at once, with commas")
        found[key] = tuple(rest.split(","))
    return _checked(found, "--remote")


def _checked(places: Mapping[str, Iterable[Any]], where: str) -> dict[str, tuple[str, ...]]:
    found = {}
    for key, addresses in places.items():
        listed = tuple(addresses)
        for address in listed:
            try:
                split_address(address)
            except ConfigError as error:
                raise ConfigError(f"{where}: {address!r} of {key!r} is no address ({error})") from error
        old = _OLD_KEY.fullmatch(key)
        found[f"{old[1]}_{old[2]}" if old else key] = tuple(dict.fromkeys(listed))
    return found


def _found(places: Mapping[str, tuple[str, ...]], model: str, part: str) -> Place:
    key = f"{model}:{part}"
    return Place(key, places[key]) if key in places else Place(part, places.get(part, ()))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
