"""Addresses of the servers of sub-models: fixed, in an agent's file, or from discovery. Thread safe."""

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

from typing_extensions import override

from monolith.core.errors import ConfigError
from monolith.discovery import Discovery, Event, Removed, Watch, split_address

__all__ = ["Addresses", "DiscoveredAddresses", "FileAddresses", "GivenAddresses", "Place", "parse_remotes"]

logger = logging.getLogger(__name__)

_OLD_KEY = re.compile(r"(ps|dense):([0-9]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Servers of one sub-model."""

    name: str
    """Name of the sub-model on the servers."""
    addresses: tuple[str, ...]
    """gRPC address ``host:port`` of each replica."""


class Addresses(Protocol):
    """Address book of sub-models. Thread safe."""

    def find(self, model: str, part: str) -> Place:
        """Return the current servers of ``part`` (``ps_0``, ``dense_0``, ...) of a model; possibly no addresses.

        Raises:
            ClusterError: Discovery is unavailable.
        """

    def close(self) -> None:
        """Close watches. A second call does nothing."""


class GivenAddresses(Addresses):
    """Fixed addresses.

    Args:
        places: Sub-model to replicas. A key is ``ps_0``, or ``model:ps_0`` with several models; it is also the name of
            the sub-model on the servers.
    """

    def __init__(self, places: Mapping[str, Iterable[str]]) -> None:
        self._places = _check_addresses(places, "remote")

    @override
    def find(self, model: str, part: str) -> Place:
        return _find(self._places, model, part)

    @override
    def close(self) -> None:
        pass


class FileAddresses(Addresses):
    """Addresses in a JSON file, ``{"ps_0": ["host:port", ...], ...}``, which an agent replaces.

    The keys are those of ``GivenAddresses``; ``ps:0`` means ``ps_0``. An unreadable update keeps the old addresses.

    Args:
        path: The file.

    Raises:
        ConfigError: The file is unreadable at the start.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp = _stamp(self._path)
        self._refused: tuple[int, int, int] | None = None
        self._places = self._read()

    @override
    def find(self, model: str, part: str) -> Place:
        stamp = _stamp(self._path)
        with self._lock:
            if stamp != self._stamp:
                try:
                    self._places = self._read()
                    self._stamp = stamp
                except ConfigError as error:
                    if stamp != self._refused:
                        logger.warning("address file not read, keeping old addresses error=%s", error)
                    self._refused = stamp
                    if not isinstance(error.__cause__, OSError):  # such an error may pass: the next call reads again
                        self._stamp = stamp
            places = self._places
        return _find(places, model, part)

    @override
    def close(self) -> None:
        pass

    def _read(self) -> dict[str, tuple[str, ...]]:
        try:
            body: Any = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"address file {str(self._path)!r} is unreadable ({error}), expected JSON like "
                '{"ps_0": ["host:port"]}'
            ) from error
        if not isinstance(body, dict) or not all(isinstance(each, list) for each in body.values()):
            raise ConfigError(
                f'address file {str(self._path)!r} is invalid, expected JSON like {{"ps_0": ["host:port"]}}'
            )
        return _check_addresses(body, str(self._path))


class DiscoveredAddresses(Addresses):
    """Addresses of registered services: the service type is the sub-model's name, each index a replica.

    Args:
        discovery: Connected discovery client.
    """

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._watches: dict[str, Watch] = {}
        self._found: dict[str, dict[str, str]] = {}

    @override
    def find(self, model: str, part: str) -> Place:
        if part not in self._watches:
            with self._starting:
                if part not in self._watches:
                    self._found.setdefault(part, {})
                    self._watches[part] = self._discovery.watch(part, lambda event: self._note(part, event))
        with self._lock:
            return Place(part, tuple(sorted(set(self._found[part].values()))))

    @override
    def close(self) -> None:
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
    """Parse texts of the form ``PART=host:port,host:port``.

    >>> parse_remotes(["ps_0=a:1,b:1", "ps_1=c:1"])
    {'ps_0': ('a:1', 'b:1'), 'ps_1': ('c:1',)}

    Raises:
        ConfigError: A text has another form, or a part appears twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        if not key or not equals or not rest:
            raise ConfigError(f"--remote is {text!r}, expected PART=host:port,host:port, such as ps_0=10.0.0.7:8500")
        if key in found:
            raise ConfigError(
                f"--remote has {key!r} twice, expected all its replicas in one option, separated by commas"
            )
        found[key] = tuple(rest.split(","))
    return _check_addresses(found, "--remote")


def _check_addresses(places: Mapping[str, Iterable[Any]], where: str) -> dict[str, tuple[str, ...]]:
    found = {}
    for key, addresses in places.items():
        listed = tuple(addresses)
        for address in listed:
            try:
                split_address(address)
            except ConfigError as error:
                raise ConfigError(
                    f"{where}: address of {key!r} is {address!r}, expected host:port ({error})"
                ) from error
        old = _OLD_KEY.fullmatch(key)
        found[f"{old[1]}_{old[2]}" if old else key] = tuple(dict.fromkeys(listed))
    return found


def _find(places: Mapping[str, tuple[str, ...]], model: str, part: str) -> Place:
    key = f"{model}:{part}"
    return Place(key, places[key]) if key in places else Place(part, places.get(part, ()))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
