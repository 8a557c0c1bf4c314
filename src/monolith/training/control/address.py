"""Where the controller of a training listens: one line in its model folder, there while it does.

Knows a file, no socket.
"""

from __future__ import annotations

from pathlib import Path

from monolith.core.durable_files import replace_file
from monolith.core.errors import NoSuchService

__all__ = ["ADDRESS_FILE", "address_path", "read_address", "remove_address", "write_address"]

ADDRESS_FILE = "controller_server_addr.txt"
"""Name of the file in the model folder."""


def address_path(model_dir: Path) -> Path:
    """Return the path of the file with a training's controller address."""
    return model_dir / ADDRESS_FILE


def write_address(model_dir: Path, address: str) -> None:
    """Write ``address`` atomically."""
    model_dir.mkdir(parents=True, exist_ok=True)
    replace_file(address_path(model_dir), address.encode())


def remove_address(model_dir: Path, address: str) -> None:
    """Remove the file of ``write_address``, unless another training has replaced it."""
    path = address_path(model_dir)
    try:
        if path.read_text().strip() == address:
            path.unlink()
    except FileNotFoundError:
        pass  # already removed


def read_address(target: str | Path) -> str:
    """Return the address behind a model folder, or ``target`` itself when it is a ``host:port``.

    Raises:
        NoSuchService: The folder has no address: nothing trains there, or without a controller.
    """
    folder = Path(target)
    if not folder.is_dir() and _is_address(str(target)):
        return str(target)
    try:
        return address_path(folder).read_text().strip()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise NoSuchService(
            f"{address_path(folder)} is absent: no training with a controller runs there; "
            "start it with RunConfig(controller_port=0), or give host:port"
        ) from exc


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isdecimal() and "/" not in text
