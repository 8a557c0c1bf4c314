"""``Topic``: a folder with the settings and the partitions of one topic.

``topic.json`` is written once, when the topic is created, and never changes. Every process that opens the topic reads
its settings from there, so writers and readers always agree. A topic object holds no file open.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from monolith import _native
from monolith.core.durable_files import make_folder, sync_folder, write_synced
from monolith.core.errors import ConfigError, DataError, VersionConflict

__all__ = ["Durability", "Topic", "TopicSettings"]

Durability: TypeAlias = Literal["commit", "interval", "never"]
"""When an append reaches the disk: before ``flush`` returns, within an interval, or when the system writes it back."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_MOST_PARTITIONS = 4096
_FILE = "topic.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings that a topic keeps for its life.

    Raises:
        ConfigError: A setting is out of range.
    """

    partitions: int = 1
    """Number of partitions."""
    durability: Durability = "interval"
    """When an append survives a power loss. A process death loses nothing that ``flush`` has returned for."""
    sync_interval_ms: int = 200
    """Time between two syncs with durability="interval"."""
    segment_bytes: int = 256 << 20
    """Size at which a segment ends."""
    segment_age_s: float = 0.0
    """Age at which a segment ends; 0 = none."""
    retain_bytes: int = 0
    """Bytes of a partition above which whole segments are removed; 0 = none."""
    retain_s: float = 0.0
    """Age above which whole segments are removed; 0 = none."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("partitions", 1, _MOST_PARTITIONS),
            ("sync_interval_ms", 1, 3_600_000),
            ("segment_bytes", 4096, 1 << 40),
            ("segment_age_s", 0, 1e9),
            ("retain_bytes", 0, 1 << 60),
            ("retain_s", 0, 1e9),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ConfigError(f"{name} is {value!r}, expected {least} to {most}")
        if self.durability not in get_args(Durability):
            raise ConfigError(f"durability is {self.durability!r}, expected one of {', '.join(get_args(Durability))}")


class Topic:
    """A topic on disk. Use ``create`` or ``open``.

    Attributes:
        folder: The topic's folder.
        name: The topic's name.
        id: Drawn when the topic is created; positions contain it.
        settings: The settings.
    """

    def __init__(self, folder: Path, id: str, log_ids: Iterable[int], settings: TopicSettings) -> None:
        self.folder = folder
        self.name = folder.name
        self.id = id
        self.settings = settings
        self._log_ids = tuple(log_ids)

    @classmethod
    def create(
        cls, root: str | os.PathLike[str], name: str, settings: TopicSettings | None = None, *, exist_ok: bool = True
    ) -> Topic:
        """Create a topic, or open the existing one.

        Args:
            root: Folder of the topics; created where it is absent.
            name: Name of the topic.
            settings: Settings of a new topic. An existing topic keeps its own settings.
            exist_ok: Whether the topic may exist.

        Raises:
            ConfigError: The name is invalid, or the topic exists with another number of partitions.
        """
        folder = _folder(root, name)
        make_folder(folder)
        if not (folder / _FILE).exists():
            _write_once(folder / _FILE, settings or TopicSettings())
        elif not exist_ok:
            raise ConfigError(f"topic {name!r} exists in '{folder.parent}', expected a new name; open the topic")
        topic = cls.open(root, name)
        if settings is not None and settings.partitions != topic.settings.partitions:
            raise ConfigError(
                f"partitions is {settings.partitions}, and topic {name!r} has {topic.settings.partitions} for its life;"
                " create a new topic"
            )
        return topic

    @classmethod
    def open(cls, root: str | os.PathLike[str], name: str) -> Topic:
        """Open an existing topic.

        Raises:
            ConfigError: The topic does not exist.
            DataError: ``topic.json`` is damaged.
            VersionConflict: A newer release created the topic.
        """
        folder = _folder(root, name)
        try:
            body = json.loads((folder / _FILE).read_bytes())
            if body.get("version") != _VERSION:
                raise VersionConflict(
                    f"version of '{folder / _FILE}' is {body.get('version')!r}, expected {_VERSION}; "
                    "use the release that wrote it"
                )
            settings = TopicSettings(**body["settings"])
            log_ids = [int(each, 16) for each in body["log_ids"]]
            if len(log_ids) != settings.partitions:
                raise ValueError(f"{len(log_ids)} log ids for {settings.partitions} partitions")
            return cls(folder, str(body["id"]), log_ids, settings)
        except FileNotFoundError:
            raise ConfigError(
                f"topic {name!r} does not exist in '{folder.parent}', expected {_FILE}; create the topic: "
                f"monolith log append 'log://{folder.parent}/{name}' --create"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"'{folder / _FILE}' is damaged: {error}; restore the file from a copy") from error

    @property
    def url(self) -> str:
        """The URL of the topic: ``log://PATH/TOPIC``."""
        return f"log://{self.folder}"

    @property
    def wake_path(self) -> str:
        """The page that every commit changes, and that readers wait on."""
        return str(self.folder / "WAKE")

    def partition_folder(self, partition: int) -> Path:
        """Return the folder of a partition."""
        return self.folder / f"part-{partition:05d}-of-{self.settings.partitions:05d}"

    def native_settings(self, partition: int) -> _native.EventLogSettings:
        """Return the settings of a partition as the native code takes them."""
        if not 0 <= partition < self.settings.partitions:
            raise ConfigError(f"partition is {partition}, expected 0 to {self.settings.partitions - 1}")
        return _native.EventLogSettings(
            stream=stream_name(self.name, partition),
            folder=str(self.partition_folder(partition)),
            log=self._log_ids[partition],
            partition=partition,
            partitions=self.settings.partitions,
            durability=self.settings.durability,
            segment_bytes=self.settings.segment_bytes,
            segment_age_ms=int(self.settings.segment_age_s * 1000),
            retain_bytes=self.settings.retain_bytes,
            retain_ms=int(self.settings.retain_s * 1000),
        )

    def open_partition(self, partition: int) -> _native.EventLogPartition:
        """Open a partition; recover it where a process died inside an append.

        Raises:
            RecordCorrupt: The header of the last segment is damaged, and batches follow it.
            ConfigError: The folder is on a network file system.
        """
        return _native.EventLogPartition(self.native_settings(partition))

    def open_partitions(self, partitions: Iterable[int] | None = None) -> list[_native.EventLogPartition]:
        """Open several partitions; None = all."""
        numbers = range(self.settings.partitions) if partitions is None else partitions
        return [self.open_partition(number) for number in numbers]


def stream_name(topic: str, partition: int) -> str:
    """Return the name of a partition in errors and chunks."""
    return f"log {topic}[{partition}]"


def _folder(root: str | os.PathLike[str], name: str) -> Path:
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigError(f"topic is {name!r}, expected 1 to 200 letters, digits, '.', '_' or '-'")
    return Path(root).absolute() / name


def _write_once(path: Path, settings: TopicSettings) -> None:
    """Write ``topic.json``; the file of a process that came first stays."""
    body: dict[str, Any] = {
        "version": _VERSION,
        "id": secrets.token_hex(8),
        "log_ids": [secrets.token_hex(8) for _ in range(settings.partitions)],
        "settings": dataclasses.asdict(settings),
    }
    temporary = path.with_name(f"{path.name}.tmp-{secrets.token_hex(8)}")
    try:
        write_synced(temporary, (json.dumps(body, indent=2) + "\n").encode())
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
