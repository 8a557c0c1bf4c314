"""Write the addresses of sub-models for the entry server of an agent.

Main type: ``AddressesFile``. The entry reads it through ``monolith serve --remote-file``.

Invariants: the file is complete at any moment (written to a temporary name, then renamed). It is written only when its
content changes. While ZooKeeper is away the last file stays.

Threading: one thread writes; ``wake`` may be called from any thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from monolith.agent.background import BackgroundLoop
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError
from monolith.discovery.address import split_address

__all__ = ["AddressesFile", "addresses_text", "write_atomically"]


def addresses_text(addresses: Mapping[str, Iterable[str]]) -> str:
    """Return the JSON of addresses by sub-model: keys and addresses sorted, no address twice, no invalid address.

    The server refuses a file with an invalid address as a whole, so a bad node must not reach it.

    >>> addresses_text({"ps_0": ["10.0.0.8:1", "10.0.0.7:1"]})
    '{"ps_0": ["10.0.0.7:1", "10.0.0.8:1"]}'
    """
    return json.dumps({key: sorted(filter(_is_address, set(listed))) for key, listed in sorted(addresses.items())})


def _is_address(text: str) -> bool:
    try:
        return split_address(text)[1] > 0
    except ConfigError:
        return False


def write_atomically(path: Path, text: str) -> None:
    """Write a file to a temporary name and rename it; a reader sees the old or the new content."""
    temporary = path.with_name(f"{path.name}.writing")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:  # a full disk is reported without the path
        raise OSError(error.errno, error.strerror, str(path)) from error


class AddressesFile:
    """The addresses file of one entry server.

    Args:
        path: The file.
        read: Returns the present addresses.
        clock: Measures the age of the last change.
    """

    def __init__(
        self, path: Path, read: Callable[[], Mapping[str, Iterable[str]]], *, clock: Clock | None = None
    ) -> None:
        self._path = path
        self._read = read
        self._clock = clock or SystemClock()
        self._text: str | None = None
        self._changed_s = self._clock.monotonic_s()
        self._loop = BackgroundLoop("agent-addresses", self.write, interval_s=60.0)

    def start(self) -> None:
        """Write the file now, and again after each ``wake``."""
        self.write()
        self._loop.start(immediately=False)

    def wake(self) -> None:
        """Write the file soon if the addresses changed."""
        self._loop.wake()

    def write(self) -> None:
        """Write the file if the addresses changed."""
        text = addresses_text(self._read())
        if text != self._text:
            write_atomically(self._path, text)
            self._text = text
            self._changed_s = self._clock.monotonic_s()

    @property
    def age_s(self) -> float:
        """Seconds since the addresses changed."""
        return self._clock.monotonic_s() - self._changed_s

    def stop(self) -> None:
        """End the thread; the file stays."""
        self._loop.stop()
