"""Named tensors as files, and as bytes. The only module of training that imports safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from monolith.core.errors import ConfigError, ManifestInvalid

__all__ = ["pack_tensors", "read_tensors", "unpack_tensors", "write_tensors"]

try:
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file, save, save_file
except ImportError as exc:
    raise ConfigError("checkpoints need safetensors: pip install 'monolith[train]'") from exc


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors, which lie in the computer's memory, and wait until the disk has them.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # safetensors has no error class for a full disk
        raise OSError(f"cannot write '{path}': {error}") from error
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file.

    Raises:
        ManifestInvalid: ``write_tensors`` did not write the file.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ManifestInvalid(f"'{path}' cannot be read: {error}") from error


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors, which lie in the computer's memory, as bytes."""
    packed: bytes = save(dict(tensors))
    return packed


def unpack_tensors(packed: bytes) -> dict[str, Tensor]:
    """Return the tensors that ``pack_tensors`` packed."""
    return load(packed)
