"""Discovery through a shared folder: ``<folder>/<type>/<index>`` holds an address.

For one machine, or a shared file system. A killed process leaves its file behind, with an address that does not answer,
until the next process in its place replaces it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from monolith.core.durable_files import only_writer, replace_file
from monolith.core.errors import AlreadyRegistered, ClusterError, ConfigError, ConnectionFailed
from monolith.discovery._backend import Backend
from monolith.discovery.address import split_address
from monolith.discovery.base import ServiceInfo

__all__ = ["FileDiscovery"]

logger = logging.getLogger(__name__)


class FileDiscovery(Backend):
    """Services as files.

    Args:
        folder: Folder of one job; created if missing.
        watch_interval_s: Seconds between the reads of a watch.
    """

    kind: ClassVar[str] = "file"

    def __init__(self, folder: str | os.PathLike[str], *, watch_interval_s: float = 0.5) -> None:
        super().__init__(watch_interval_s=watch_interval_s)
        self._folder = Path(folder)

    @override
    def _open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConnectionFailed(f"Connection failed: folder {self._folder} cannot be created ({error})") from error

    @override
    def _publish(self, service: ServiceInfo) -> None:
        path = self._path(service)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with only_writer(path.parent):
                replace_file(path, service.address.encode())
        except OSError as error:
            raise ClusterError(f"file {path} cannot be written ({error}); check folder and disk") from error

    @override
    def _withdraw(self, service: ServiceInfo) -> None:
        path = self._path(service)
        try:
            with only_writer(path.parent):
                if self._address(path) == service.address:
                    path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ClusterError(f"file {path} cannot be removed ({error}); remove it by hand") from error

    @override
    def _renew(self, service: ServiceInfo) -> None:
        holder = self._address(self._path(service))
        if holder is None:
            self._publish(service)
        elif holder != service.address:
            raise AlreadyRegistered(f"Service already registered: {service.id} was taken over by {holder}")

    @override
    def _read(self, service_type: str) -> list[ServiceInfo]:
        folder = self._folder / service_type
        try:
            names = [entry.name for entry in os.scandir(folder)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConnectionFailed(f"Connection failed: folder {folder} cannot be read ({error})") from error
        services = []
        for name in names:
            # Other names are files under construction.
            if name.isascii() and name.isdigit() and (address := self._address(folder / name)) is not None:
                host, port = split_address(address)
                services.append(ServiceInfo(service_type=service_type, index=int(name), host=host, port=port))
        return services

    def _path(self, service: ServiceInfo) -> Path:
        return self._folder / service.service_type / str(service.index)

    def _address(self, path: Path) -> str | None:
        """Return the address in a file; None without a file or a valid address."""
        try:
            text = path.read_text(encoding="utf-8").strip()
            split_address(text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConnectionFailed(f"Connection failed: file {path} cannot be read ({error})") from error
        except (ConfigError, UnicodeDecodeError) as error:
            logger.warning("invalid address in discovery file path=%s error=%s", path, error)
            return None
        return text
