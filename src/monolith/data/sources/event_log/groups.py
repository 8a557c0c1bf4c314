"""Positions of consumer groups: ``groups/NAME.json`` beside ``topic.json``, replaced by rename.

Members of a group commit the partitions that they read; a lock on the folder joins their commits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from monolith.core.durable_files import make_folder, only_writer, replace_file
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.event_log.topic import Topic

__all__ = ["PartitionPosition", "check_group", "commit_group", "load_group"]

PartitionPosition = Mapping[str, int]
"""``offset`` = the next offset to read, ``epoch`` = the epoch of the batch before it (0 = unknown)."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


def check_group(name: str) -> str:
    """Return the name of a group if it is valid.

    Raises:
        ConfigError: The name is invalid.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigError(f"group is {name!r}, expected 1 to 200 letters, digits, '.', '_' or '-'")
    return name


def load_group(topic: Topic, group: str) -> dict[int, PartitionPosition]:
    """Return the committed positions of a group by partition; empty before the first commit.

    Raises:
        DataError: The file is damaged, or belongs to another topic.
    """
    path = _path(topic, group)
    try:
        body = json.loads(path.read_bytes())
        log = body["log"]
        committed: dict[int, PartitionPosition] = {
            int(number): {"offset": int(each["offset"]), "epoch": int(each["epoch"])}
            for number, each in body["partitions"].items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"'{path}' is damaged: {error}; delete the file to read from start=") from error
    if log != topic.id:
        raise DataError(f"'{path}' belongs to log {log!r}, expected {topic.id!r}; delete the file to read from start=")
    return committed


def commit_group(topic: Topic, group: str, positions: Mapping[int, PartitionPosition]) -> None:
    """Save the positions of some partitions; other partitions of the group keep theirs.

    Raises:
        OSError: The file cannot be written; the former commit stays.
    """
    path = _path(topic, group)
    make_folder(path.parent)
    with only_writer(path.parent):
        joined = {**load_group(topic, group), **positions}
        body = {"log": topic.id, "partitions": {str(number): dict(joined[number]) for number in sorted(joined)}}
        replace_file(path, json.dumps(body).encode())


def _path(topic: Topic, group: str) -> Path:
    return topic.folder / "groups" / f"{check_group(group)}.json"
