"""``SimulatedDisk``: which files survive a power loss, computed from the records of the fault layer.

The model is POSIX without favours. Bytes of a file are safe after an ``fsync`` of the file. A name is safe after an
``fsync`` of its folder; a rename between folders, after one of the target folder. Operations after the last sync may
survive or not, each for itself. After a failed sync, a later sync does not make the same bytes or names safe: the
kernel reports the error once and drops the pages.

``read_records`` parses the records. ``SimulatedDisk.apply`` follows them, and ``restore`` writes the survivors of a
power loss at that moment into a fresh folder. One thread.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["Record", "SimulatedDisk", "Survival", "read_records"]

_HEADER = struct.Struct("<cQQII")
_EXCHANGE = 2

Survival: TypeAlias = Literal["synced", "names", "removals", "newest", "random", "everything"]
"""Which operations after the last sync survive.

- ``synced``: none of them.
- ``names``: all changes of names, and no bytes. A rename that overtakes its data shows here.
- ``removals``: names that were removed, and nothing else. A removal that overtakes a rename shows here.
- ``newest``: the last change of names, and nothing else. A rename that overtakes earlier names shows here.
- ``random``: each change of names with a chance of one half; of the bytes none, all, a torn part, or only the size.
- ``everything``: all, as after a kill of the process. The result equals the real folder.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One operation on files.

    ``kind`` is one of: C create, M mkdir, W write, T truncate, S sync, F failed sync, R rename, L link, U unlink or
    rmdir, N note of the process, E injected fault.
    """

    kind: str
    inode: int
    number: int
    """Offset of a write, size of a truncate, flags of a rename, errno of a fault."""
    first: bytes
    """Path, written bytes, text of a note, or operation of a fault."""
    second: bytes
    """Target of a rename or link, path of a fault."""

    @property
    def text(self) -> str:
        """``first`` as text."""
        return os.fsdecode(self.first)


def read_records(path: Path) -> list[Record]:
    """Return the records in a file; a last one that a kill tore is dropped."""
    content = path.read_bytes() if path.exists() else b""
    records, at = [], 0
    while at + _HEADER.size <= len(content):
        kind, inode, number, first, second = _HEADER.unpack_from(content, at)
        begin = at + _HEADER.size
        at = begin + first + second
        if at > len(content):
            break
        records.append(
            Record(kind.decode(), inode, number, content[begin : begin + first], content[begin + first : at])
        )
    return records


@dataclass(eq=False)
class _File:
    content: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, bytes) of writes and (size, None) of truncations since the last sync."""
    doubtful: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Changes whose sync failed."""


@dataclass(eq=False)
class _Folder:
    names: dict[str, _Node] = field(default_factory=dict)
    safe: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = "_File | _Folder"


@dataclass(eq=False)
class _NameChange:
    """Entries that change together, and the folder whose sync makes the change safe."""

    folder: _Folder
    entries: list[tuple[_Folder, str, _Node | None]]
    is_doubtful: bool = False


class SimulatedDisk:
    """Follows records, and computes the files that survive a power loss.

    Args:
        root: Watched folder. Its content at this moment counts as safe.
    """

    def __init__(self, root: Path) -> None:
        self._prefix = str(root)
        self._nodes: dict[int, _Node] = {}
        self._changes: list[_NameChange] = []
        self._root = self._read(root)

    def _read(self, folder: Path) -> _Folder:
        node = _Folder()
        self._nodes[folder.stat().st_ino] = node
        for path in folder.iterdir():
            if path.is_dir():
                node.names[path.name] = self._read(path)
            else:
                content = path.read_bytes()
                node.names[path.name] = self._nodes[path.stat().st_ino] = _File(bytearray(content), content)
        node.safe = dict(node.names)
        return node

    # --- following ---

    def apply(self, record: Record) -> None:
        """Follow one operation."""
        match record.kind:
            case "C" | "M":
                node: _Node = _File() if record.kind == "C" else _Folder()
                self._nodes[record.inode] = node
                folder, name = self._find(record.first)
                self._change(folder, [(folder, name, node)])
            case "W":
                self._write(record)
            case "T":
                file = self._file(record.inode)
                _change_bytes(file.content, record.number, None)
                file.pending.append((record.number, None))
            case "S" | "F":
                self._sync(self._nodes[record.inode], is_done=record.kind == "S")
            case "R" | "L":
                self._rename(record)
            case "U":
                folder, name = self._find(record.first)
                self._change(folder, [(folder, name, None)])

    def _write(self, record: Record) -> None:
        file = self._file(record.inode)
        _change_bytes(file.content, record.number, record.first)
        file.pending.append((record.number, record.first))

    def _rename(self, record: Record) -> None:
        source, old = self._find(record.first)
        target, new = self._find(record.second)
        node = source.names[old]
        left: _Node | None = node if record.kind == "L" else None
        if record.number & _EXCHANGE:
            left = target.names[new]
        entries: list[tuple[_Folder, str, _Node | None]] = [(target, new, node)]
        if record.kind == "R":
            entries.insert(0, (source, old, left))
        self._change(target, entries)

    def _change(self, folder: _Folder, entries: list[tuple[_Folder, str, _Node | None]]) -> None:
        _put(entries, [place.names for place, _, _ in entries])
        self._changes.append(_NameChange(folder, entries))

    def _sync(self, node: _Node, *, is_done: bool) -> None:
        if isinstance(node, _File):
            if is_done:
                content = bytearray(node.safe)
                for offset, data in node.pending:
                    _change_bytes(content, offset, data)
                    node.doubtful = [each for each in node.doubtful if not _covers((offset, data), each)]
                node.safe = bytes(content)
            else:
                node.doubtful += node.pending
            node.pending = []
            return
        for change in [change for change in self._changes if change.folder is node]:
            if not is_done:
                change.is_doubtful = True
            elif not change.is_doubtful:
                _put(change.entries, [place.safe for place, _, _ in change.entries])
                self._forget_older(change)

    def _forget_older(self, change: _NameChange) -> None:
        """Drop a safe change, and earlier changes of the same names: they cannot come back."""
        at = self._changes.index(change)
        replaced = {(place, name) for place, name, _ in change.entries}
        for older in self._changes[:at]:
            older.entries = [entry for entry in older.entries if entry[:2] not in replaced]
        del self._changes[at]

    def _file(self, inode: int) -> _File:
        node = self._nodes[inode]
        assert isinstance(node, _File), inode
        return node

    def _find(self, path: bytes) -> tuple[_Folder, str]:
        """Return the folder of a path, and the name in it."""
        parts = os.fsdecode(path).removeprefix(self._prefix).strip("/").split("/")
        folder = self._root
        for part in parts[:-1]:
            node = folder.names[part]
            assert isinstance(node, _Folder), path
            folder = node
        return folder, parts[-1]

    # --- power loss ---

    def restore(self, target: Path, survival: Survival, chance: random.Random | None = None) -> None:
        """Write the survivors of a power loss at this moment into a new folder.

        Args:
            target: The folder; it must not exist.
            survival: Which operations after the last sync survive.
            chance: Random numbers for ``random``.
        """
        chance = chance or random.Random(0)
        names: dict[_Folder, dict[str, _Node]] = {}
        changed: set[_Folder] = set()

        def names_of(folder: _Folder) -> dict[str, _Node]:
            return names.setdefault(folder, dict(folder.safe))

        for change in self._changes:
            is_removal = all(node is None for _, _, node in change.entries)
            if (
                survival in ("names", "everything")
                or (survival == "removals" and is_removal)
                or (survival == "newest" and change is self._changes[-1])
                or (survival == "random" and chance.random() < 0.5)
            ):
                _put(change.entries, [names_of(place) for place, _, _ in change.entries])
                changed |= {place for place, _, _ in change.entries}
        paths = self._restore_folder(self._root, target, names_of, survival, chance)
        for folder in changed & paths.keys():  # their times are later than those of older folders
            later_s = paths[folder].stat().st_mtime + 10
            os.utime(paths[folder], (later_s, later_s))

    def _restore_folder(
        self,
        folder: _Folder,
        target: Path,
        names_of: Callable[[_Folder], dict[str, _Node]],
        survival: Survival,
        chance: random.Random,
    ) -> dict[_Folder, Path]:
        """Write a folder; return the paths of it and of the folders in it."""
        target.mkdir()
        paths = {folder: target}
        for name, node in sorted(names_of(folder).items()):
            if isinstance(node, _Folder):
                paths |= self._restore_folder(node, target / name, names_of, survival, chance)
            else:
                (target / name).write_bytes(_surviving_bytes(node, survival, chance))
        return paths


def _put(entries: list[tuple[_Folder, str, _Node | None]], places: list[dict[str, _Node]]) -> None:
    for (_, name, node), names in zip(entries, places, strict=True):
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _change_bytes(content: bytearray, offset: int, data: bytes | None) -> None:
    size = offset if data is None else offset + len(data)
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if data is None:
        del content[size:]
    else:
        content[offset:size] = data


def _covers(newer: tuple[int, bytes | None], older: tuple[int, bytes | None]) -> bool:
    """Return whether a change of bytes leaves nothing of an earlier one."""
    offset, data = newer
    if data is None:
        return older[0] >= offset
    return older[1] is not None and offset <= older[0] and older[0] + len(older[1]) <= offset + len(data)


def _surviving_bytes(file: _File, survival: Survival, chance: random.Random) -> bytes:
    changes = [*file.doubtful, *file.pending]
    if survival == "everything" or not changes:
        return bytes(file.content)
    kinds = ["none", "all", "torn", "size"]
    kind = chance.choice(kinds) if survival == "random" else "none"
    if kind == "none":
        return file.safe
    if kind == "all":
        return bytes(file.content)
    content = bytearray(file.safe)
    if kind == "size":
        content.extend(bytes(max(0, len(file.content) - len(content))))
        return bytes(content)
    for offset, data in changes[: chance.randrange(len(changes)) + 1]:
        part = data if data is None else data[: chance.randrange(len(data) + 1)]
        _change_bytes(content, offset, part)
    return bytes(content)
