"""The address of a training's controller: one line of a file in the model folder, present while the run lasts.

The file of a model folder at a URL is in the staging folder of the machine that trains, and is never uploaded.
"""

from __future__ import annotations

from pathlib import Path

from monolith.artifacts.remote_folder import local_path
from monolith.core.durable_files import replace_file
from monolith.core.errors import NoSuchService
from monolith.core.storage import is_url

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
    """Return the address in a model folder, which may be a URL, or ``target`` itself if it is a ``host:port``.

    Raises:
        NoSuchService: The folder has no address: no training runs there, or it runs without a controller.
    """
    folder = local_path(target)
    if not folder.is_dir() and _is_address(str(target)):
        return str(target)
    try:
        return address_path(folder).read_text().strip()
    except (FileNotFoundError, NotADirectoryError) as exc:
        place = f"at {str(target)!r} on this machine" if is_url(str(target)) else "there"
        raise NoSuchService(
            f"{address_path(folder)} is absent: no training with a controller runs {place}; "
            "start it with controller_port 0, or give host:port"
        ) from exc


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isdecimal() and "/" not in text
