"""Read from an export its sub-models and the name of its model.

Main types: ``find_sub_models``, ``read_model_name``. Local folders and URLs are read through ``core.storage``.
Exports of Monolith name the model in their manifest; a SavedModel names it in the ``model_name`` attribute of its
first node with op ``TfServingRemotePredict``.
"""

from __future__ import annotations

from collections.abc import Iterator

from monolith.agent.model_configs import newest_version, versions_in
from monolith.artifacts.checkpoint_manifest import MANIFEST
from monolith.core.durable_files import unseal
from monolith.core.errors import ConfigError, ManifestInvalid, RecordCorrupt
from monolith.core.storage import is_file, is_folder, list_names, open_file

__all__ = ["find_sub_models", "read_model_name"]

_REMOTE_OP = b"TfServingRemotePredict"
_SAVED_MODEL = "saved_model.pb"


def find_sub_models(export_base: str, *, field: str = "export_base") -> list[str]:
    """Return the sub-folders of an export that have a version, sorted.

    Args:
        export_base: Base folder of the export.
        field: Name of the argument, for the error.

    Raises:
        ConfigError: The folder does not exist.
    """
    if not is_folder(export_base):
        raise ConfigError(f"{field} is {export_base!r}, expected a folder that exists; give the base of an export")
    names = [name for name in list_names(export_base) if not name.startswith(".") and not name.isdigit()]
    return [name for name in names if versions_in(f"{export_base}/{name}")]


def read_model_name(export_base: str) -> str | None:
    """Return the name of the model of an export: that of the newest version of its entry, or None.

    Raises:
        ManifestInvalid: The manifest is corrupt.
        RecordCorrupt: The SavedModel is corrupt.
    """
    version = newest_version(f"{export_base}/entry")
    if version is None:
        return None
    folder = f"{export_base}/entry/{version}"
    if is_file(f"{folder}/{MANIFEST}"):
        try:
            return str(unseal(_read(f"{folder}/{MANIFEST}"))["name"])
        except (ValueError, KeyError) as error:
            raise ManifestInvalid(f"'{folder}/{MANIFEST}' is corrupt: {error}; export the model again") from error
    if is_file(f"{folder}/{_SAVED_MODEL}"):
        return saved_model_name(_read(f"{folder}/{_SAVED_MODEL}"), f"{folder}/{_SAVED_MODEL}")
    return None


def saved_model_name(content: bytes, source: str) -> str | None:
    """Return the model that the first remote operator of a SavedModel asks, or None without such an operator.

    Raises:
        RecordCorrupt: The bytes are not a SavedModel.
    """
    try:
        for meta_graph in _fields(memoryview(content), 2):
            for graph in _fields(meta_graph, 2):
                for node in _fields(graph, 1):
                    if _REMOTE_OP in (bytes(op) for op in _fields(node, 2)):
                        return _model_attribute(node)
    except (IndexError, ValueError) as error:
        raise RecordCorrupt(f"{source}: not a SavedModel ({error})") from error
    return None


def _model_attribute(node: memoryview) -> str | None:
    for attribute in _fields(node, 5):
        if b"model_name" in (bytes(key) for key in _fields(attribute, 1)):
            for value in _fields(attribute, 2):
                for text in _fields(value, 2):
                    return bytes(text).decode().partition(":")[0] or None
    return None


def _read(path: str) -> bytes:
    with open_file(path) as file:
        parts = []
        while part := file.read(1 << 24):
            parts.append(part)
    return b"".join(parts)


def _fields(message: memoryview, number: int) -> Iterator[memoryview]:
    """Yield the length-delimited fields of a protobuf message that have this number."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 1:
            at += 8
        elif kind == 5:
            at += 4
        elif kind == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a field ends behind the message")
            if key >> 3 == number:
                yield message[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {kind} is not known")
    if at > len(message):
        raise ValueError("a field ends behind the message")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
